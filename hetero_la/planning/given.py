"""Where a run finds its matrix, and in what pieces."""

from __future__ import annotations

from typing import NamedTuple

from hetero_la.scheduler.machine.model import Source


class Given(NamedTuple):
    """Where a run finds its matrix, and in what pieces.

    Attributes
    ----------
    on_host : bool
        Whether it is in host memory.
    source : {"row-major", "column-major", "in place", "pinned"}
        Its memory order there.
    home : int or None
        The GPU that has it.
    together : int
        How many adjacent tile columns have one owner, since its blocks are that wide.
    blocks : int
        Number of its blocks if it is a Dask array.
    mapped : bool
        Whether it is in a file, whose pages may be more than memory has room for.
    """

    on_host: bool = False
    source: Source = "row-major"
    home: int | None = None
    together: int = 1
    blocks: int = 0
    mapped: bool = False
