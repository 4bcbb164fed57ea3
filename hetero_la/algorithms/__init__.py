"""Algorithms, each as the builder of a task graph."""
