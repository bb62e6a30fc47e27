"""A diagnosis as people read it: words, pictures, one page, and the output folder."""
