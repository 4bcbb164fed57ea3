"""Runs as Dask tasks: shards held by tasks, slices of programs, and waits for them."""
