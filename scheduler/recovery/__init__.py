"""Runs over processes that survive the loss of workers, by checkpoints."""
