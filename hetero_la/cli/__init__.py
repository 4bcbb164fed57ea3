"""Command line ``hetero-la``."""
