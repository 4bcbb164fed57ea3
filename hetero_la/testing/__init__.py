"""Test matrices, and LAPACK's error ratios."""
