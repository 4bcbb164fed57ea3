"""Tiles: layout, storage, pivots and the kernels that work on them.

Installed as ``hetero_la.tiles``; nothing here knows of graphs, workers or Dask.
"""

if __name__ != "hetero_la.tiles":
    raise ImportError(
        f"import this package as hetero_la.tiles, not as {__name__!r}: "
        "two names would make two copies of every class"
    )
