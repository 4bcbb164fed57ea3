"""The public functions and result objects."""
