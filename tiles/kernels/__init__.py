"""Kernels: their records, the devices that run them, and implementations for each device kind."""
