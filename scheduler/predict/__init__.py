"""Predictions: an event simulator, quick estimates, and runs on very many GPUs."""
