"""Predictions: a simulator of events, quick estimates, and runs on very many GPUs."""
