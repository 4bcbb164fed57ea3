"""Tasks, and the regions of tiles that they touch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.kernels.spec import SPECS

#: Number in place of a writer, for data that is there before the first task.
INITIAL = -1
#: The tile column of each task of a block, as a number that no tile has: what is computed
#: from it, as the rows of ``A[j:, j]``, is relative to that column.
OWN = 1 << 40
#: All tasks of a block, in the place of the column of one of them.
ALL = -1
_ABSOLUTE = OWN >> 1  # smaller numbers are not relative to a column


def resolve(number: int, column: int) -> int:
    """Return a tile row or column that may be relative to a task's own `column`.

    Examples
    --------
    >>> resolve(3, 7), resolve(OWN, 7), resolve(OWN + 1, 7)
    (3, 7, 8)
    """
    return number if number < _ABSOLUTE else number - OWN + column


class Region(NamedTuple):
    """Tile rows ``[start, stop)`` of tile column `index` of matrix `name`.

    A per-step value has one tile: ``Region(name, k, 0, 1)``.
    """

    name: str
    index: int  # type: ignore[assignment]  # nobody searches a region as a tuple
    start: int
    stop: int

    def covers(self, other: Region) -> bool:
        """Return whether the rows of `other`, of the same column, are among these."""
        return self.start <= other.start and other.stop <= self.stop

    @property
    def own(self) -> bool:
        """True if it is in each task's own tile column."""
        return self.index >= _ABSOLUTE

    @property
    def sloped(self) -> bool:
        """True if its rows depend on each task's own tile column."""
        return self.start >= _ABSOLUTE or self.stop >= _ABSOLUTE

    def of(self, column: int) -> Region:
        """Return the region of the task of one tile column of a block."""
        name, index, start, stop = self
        if index < _ABSOLUTE and start < _ABSOLUTE and stop < _ABSOLUTE:
            return self
        return Region(name, resolve(index, column), resolve(start, column), resolve(stop, column))


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

    def __repr__(self) -> str:
        after = f"after {', '.join(map(str, self.after))}" if self.after else ""
        where = f"step {self.step}", f"column {self.column}"
        return one_line("Task", f"{self.index}: {self.kind}", *where, after)

    @property
    def accesses(self) -> tuple[Region, ...]:
        """All regions, in the order in which the kernel takes them."""
        return self.reads + self.updates + self.writes


class TaskBlock:
    """One kernel on adjacent tile columns: a task for each, which differ in nothing else.

    What the tasks do to their own columns is said relative to these (`OWN`), and so are
    their edges.

    Attributes
    ----------
    number : int
        Position among the graph's blocks.
    first, stride : int
        Index of the first column's task, and distance from one to the next.
    kind, step
        As of each `Task`.
    start, stop : int
        The tile columns.
    reads, updates, writes, accesses : tuple of Region
        As of each `Task`.
    common : tuple of Region
        Those of `accesses` that are not of each task's own column.
    single : bool
        Whether it is one task.
    after : tuple of (int, int)
        Blocks, by number, and which of their tasks must have ended: the one of a column, that
        of the same column (`OWN`), or `ALL`.
    disturbed : tuple of (int, int)
        Those of `after` whose data is overwritten.
    flows : tuple of (int, Region)
        For each region read or updated, the block that wrote it last, or `INITIAL`.
    """

    __slots__ = (
        "accesses", "after", "common", "disturbed", "first", "flows", "kind", "number", "reads",
        "single", "start", "step", "stop", "stride", "updates", "writes",
    )  # fmt: skip

    def __init__(
        self, number: int, first: int, kind: str, step: int, start: int, stop: int,
        reads: tuple[Region, ...], updates: tuple[Region, ...], writes: tuple[Region, ...],
    ) -> None:  # fmt: skip
        self.number, self.first, self.stride = number, first, 1
        self.kind, self.step, self.start, self.stop = kind, step, start, stop
        self.reads, self.updates, self.writes = reads, updates, writes
        self.accesses, self.single = reads + updates + writes, stop - start == 1
        self.common = self.accesses
        if not self.single:
            self.common = tuple([region for region in reads if region.index < _ABSOLUTE])
        self.after: tuple[tuple[int, int], ...] = ()
        self.disturbed: tuple[tuple[int, int], ...] = ()
        self.flows: tuple[tuple[int, Region], ...] = ()

    def index(self, column: int) -> int:
        """Return the index of the task of a tile column, which a single task ignores."""
        return self.first if self.single else self.first + (column - self.start) * self.stride

    def regions(self, column: int) -> tuple[Region, ...]:
        """Return the regions that the task of a tile column accesses."""
        if self.single:
            return self.accesses
        found = []
        for region in self.accesses:
            name, index, start, stop = region
            if index >= _ABSOLUTE and start < _ABSOLUTE and stop < _ABSOLUTE:
                found.append(Region(name, column, start, stop))
            else:
                found.append(region.of(column))
        return tuple(found)

    def indices(self, which: int, column: int) -> Iterable[int]:
        """Return indices of the tasks that an edge from another block's task of `column` names."""
        return [self.index(other) for other in self.columns(which, column)]

    def columns(self, which: int, column: int) -> Sequence[int]:
        """Return the tile columns of these tasks."""
        if which == ALL:
            return range(self.start, self.stop)
        return (self.start if self.single else resolve(which, column),)

    def task(self, column: int, blocks: Sequence[TaskBlock]) -> Task:
        """Return the task of a tile column; `blocks` are the graph's."""
        after = {i for n, which in self.after for i in blocks[n].indices(which, column)}
        flows = []
        for writer, region in self.flows:
            found = region.of(column)
            flows.append((INITIAL if writer < 0 else blocks[writer].index(found.index), found))
        reads, updates, writes = (
            tuple(region.of(column) for region in regions)
            for regions in (self.reads, self.updates, self.writes)
        )
        return Task(
            self.index(column), self.kind, self.step, column, reads, updates, writes,
            tuple(sorted(after)), tuple(flows),
        )  # fmt: skip


def require_independent(
    kind: str,
    step: int,
    columns: range,
    accesses: tuple[tuple[Region, ...], ...],
    values: Collection[str],
) -> None:
    """Raise ValueError unless the tasks of a block could be done in any order.

    Parameters
    ----------
    kind, step
        As of each task.
    columns : range
        The block's tile columns.
    accesses : tuple of tuple of Region
        What each task reads, updates and writes.
    values : collection of str
        Names of per-step values.
    """
    reads, updates, writes = accesses
    for region in reads + updates + writes:
        if region.own:
            apart = region.index == OWN and region.name not in values
        else:
            changes = region in updates or region in writes
            among = region.name not in values and region.index in columns
            apart = not changes and not among
        if not apart or SPECS[kind].chain:
            raise ValueError(
                f"{kind} of step {step} makes tile columns {columns[0]} to {columns[-1]} "
                "depend on one another: they cannot be in one block"
            )


class Matrix:
    """A matrix of tiles, whose index expressions are regions: ``A[k:, j]``, ``A[i, j]``."""

    def __init__(self, name: str, mt: int) -> None:
        self._name, self._mt = name, mt

    def __getitem__(self, key: tuple[int | slice, int]) -> Region:
        i, j = key
        if isinstance(i, slice):
            return Region(self._name, j, i.start or 0, self._mt if i.stop is None else i.stop)
        return Region(self._name, j, i, i + 1)


class PerStep:
    """A value of each step, whose index expressions are regions: ``W[k]``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, k: int) -> Region:
        return Region(self._name, k, 0, 1)


class Diagonal(NamedTuple):
    """Order of a diagonal tile, and the rows below it, on which sizes of per-step values depend."""

    order: int
    below: int


class ValueSpec(NamedTuple):
    """Shape (a function of the step) and dtype (None: the matrix's) of a per-step value."""

    shape: Callable[[int], tuple[int, ...]]
    dtype: Any
