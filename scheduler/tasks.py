"""Tasks, and the regions of tiles that they touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

#: Stands for the writer of what is there before the first task.
INITIAL = -1


class Region(NamedTuple):
    """Tile rows ``[start, stop)`` of tile column `index` of matrix `name`.

    A per-step value has one tile: ``Region(name, k, 0, 1)``.
    """

    name: str
    index: int  # type: ignore[assignment]  # nobody searches a region as a tuple
    start: int
    stop: int

    def covers(self, other: Region) -> bool:
        """Whether the rows of `other`, of the same column, are among these."""
        return self.start <= other.start and other.stop <= self.stop


class Task(NamedTuple):
    """One kernel call on tiles; `after` and `flows` are derived by the graph.

    Attributes
    ----------
    index : int
        Position in the builder's order.
    kind : str
        Kernel name.
    step, column : int
        Enough to find the owner and the priority.
    reads, updates, writes : tuple of Region
        Read only; read and written; written only.
    after : tuple of int
        Tasks that must have ended before this one starts.
    flows : tuple of (int, Region)
        For each region read or updated, the task that wrote it last, or
        `INITIAL`.
    """

    index: int  # type: ignore[assignment]  # nobody searches a task as a tuple
    kind: str
    step: int
    column: int
    reads: tuple[Region, ...]
    updates: tuple[Region, ...]
    writes: tuple[Region, ...]
    after: tuple[int, ...]
    flows: tuple[tuple[int, Region], ...]

    @property
    def accesses(self) -> tuple[Region, ...]:
        """All regions, in the order in which the kernel takes them."""
        return self.reads + self.updates + self.writes


class Matrix:
    """Names tile regions: ``A[k:, j]``, ``A[i, j]``."""

    def __init__(self, name: str, mt: int) -> None:
        self._name, self._mt = name, mt

    def __getitem__(self, key: tuple[int | slice, int]) -> Region:
        i, j = key
        if isinstance(i, slice):
            return Region(self._name, j, i.start or 0, self._mt if i.stop is None else i.stop)
        return Region(self._name, j, i, i + 1)


class PerStep:
    """Names one value per step: ``W[k]``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, k: int) -> Region:
        return Region(self._name, k, 0, 1)


class ValueSpec(NamedTuple):
    """Shape (a function of the step) and dtype (None: the matrix's) of a per-step value."""

    shape: Callable[[int], tuple[int, ...]]
    dtype: Any
