"""Matrices in files."""
