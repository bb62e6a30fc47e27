"""A diagnosis for people: words, pictures, one page, and the output folder."""
