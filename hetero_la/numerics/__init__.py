"""Numerical methods beside the factorizations: condition numbers, refinement, scaling."""
