"""Microbenchmarks that measure a machine for its model."""
