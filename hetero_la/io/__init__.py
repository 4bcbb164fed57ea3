"""Reading and writing of matrices in files."""
