"""Dask clusters: their size, workers, plugins and clients."""
