"""Placement: the worker of each task, and the order of a worker's tasks."""
