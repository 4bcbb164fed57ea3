"""Kernels: one specification each, one implementation per device kind."""
