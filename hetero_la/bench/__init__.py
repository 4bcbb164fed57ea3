"""Measurements beside the libraries that a user has: SciPy, CuPy and torch."""
