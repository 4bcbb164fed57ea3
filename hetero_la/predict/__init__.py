"""Predictions of run times: searches of tile sizes, profiles, machines of many GPUs."""
