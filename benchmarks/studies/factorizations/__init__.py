"""Whole factorizations: their matrices, runs of their programs, and what they stand beside."""
