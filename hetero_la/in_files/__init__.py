"""Factorizations of matrices in files, in parts."""
