"""Runs: what executes programs, in the calling thread or in threads of this process."""
