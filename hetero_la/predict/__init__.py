"""Predictions of run times: tile size searches, profiles, machines with many GPUs."""
