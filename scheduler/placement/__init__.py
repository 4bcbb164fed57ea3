"""Placement: which worker runs a task, and in which order."""
