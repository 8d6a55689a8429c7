"""A report: run directories in, one self-contained page and its figures out."""
