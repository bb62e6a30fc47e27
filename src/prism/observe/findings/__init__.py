"""What is slow and who is to blame: one file per kind of evidence."""
