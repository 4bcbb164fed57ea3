"""Charts of runs and of rates."""
