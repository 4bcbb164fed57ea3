"""Runs as Dask tasks: shards that tasks hold, slices of programs, and waits for them."""
