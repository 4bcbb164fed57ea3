"""Charts of runs, of kernel rates and of scaling."""
