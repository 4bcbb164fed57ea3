"""Runs, measured or predicted, as data for pictures: their calls, bounds, and use of resources."""
