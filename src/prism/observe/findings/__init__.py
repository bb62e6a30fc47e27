"""Which component is slow and what causes it: one file per kind of evidence."""
