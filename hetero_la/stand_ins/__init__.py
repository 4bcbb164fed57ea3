"""Our functions in the place of SciPy's and NumPy's."""
