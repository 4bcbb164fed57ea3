"""Preconditions and warnings."""
