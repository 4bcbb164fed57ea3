"""Kernels: one specification for each, and one implementation for each device kind."""
