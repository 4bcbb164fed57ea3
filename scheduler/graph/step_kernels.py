"""Kernel calls of each step of a factorization, without the graph of the whole.

All steps of a right-looking factorization except the first and the last differ only in the
sizes of their tiles.  So the builder is called for a few tiles only, and its tasks' regions are
measured in a matrix of any size: kernels and shapes are those of the full graph, for numbers of
tiles for which that would be too large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Diagonal, Region, Task
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout

Build = Callable[[TileLayout], TaskGraph]
Shapes = list[tuple[int, ...]]


class Call(NamedTuple):
    """A kernel, and the shapes of its arrays."""

    kind: str
    shapes: Shapes


class Tile(NamedTuple):
    """The diagonal tile of a step, in elements of the matrix.

    Attributes
    ----------
    start : int
        Rows above it, and columns to its left.
    rows, columns : int
        Its own rows and columns.
    below, beyond : int
        Rows below it; columns of the matrix to its right.
    """

    start: int
    rows: int
    columns: int
    below: int
    beyond: int

    @staticmethod
    def of(layout: TileLayout, k: int) -> Tile:
        """Return diagonal tile `k` of a matrix."""
        (start, end), (_, right) = layout.rows(k), layout.columns(k)
        return Tile(start, end - start, right - start, layout.m - end, layout.n - right)


class _Array(NamedTuple):
    """Array of a task of a small graph, in a matrix of any size.

    Attributes
    ----------
    size : callable or None
        Shape of a per-step value; None for rows of the matrix.
    start, stop : int
        Bounds of `_calls` at which its rows begin and end.
    other : bool
        Whether it is in the task's own tile column, and not the panel's; for a per-step value,
        whether it is of the step before, of whose tile only the rows below it are known.
    name : str
        Name of the matrix or value.
    dtype : dtype or None
        Element type of a value; None for the matrix's.
    """

    size: Callable[[Diagonal], tuple[int, ...]] | None
    start: int
    stop: int
    other: bool
    name: str
    dtype: Any


class _Kernel(NamedTuple):
    """Task of a small graph, which represents those of any size."""

    kind: str
    arrays: list[_Array]
    reads: int  #: number of arrays that it only reads

    @property
    def changes_matrix(self) -> bool:
        """Whether it changes more than per-step values."""
        return any(array.size is None for array in self.arrays[self.reads :])


class _Pattern:
    """Tasks of one step of a small graph, by their purpose.

    Parameters
    ----------
    build : callable
        Builder of the graph, from a layout.
    first, below, beyond : bool
        Whether the step is the first one, and whether there are rows below its tile and
        columns to its right; without both it is the last one.
    right_hand_sides : bool
        Whether the graph has right-hand sides.
    """

    def __init__(
        self, build: Build, first: bool, below: bool, beyond: bool, right_hand_sides: bool
    ) -> None:
        inner = below and beyond
        steps = 5 if inner else 1 if first else 3
        self._k = 0 if first else 1 if inner else steps - 1
        rows, columns = (steps + (more and not inner) for more in (below, beyond))
        layout = TileLayout(rows, columns, 1, rows if right_hand_sides else 0)
        self._graph = graph = build(layout)
        self._last_row = layout.mt
        k, right = self._k, layout.nt + layout.rt - 1
        #: A column of the matrix that represents all to the right of the panel.
        self._column = min(k + 2, layout.nt - 1)
        # The first array of a task tells to which tile it belongs.
        tasks = [task for task in graph.tasks if task.accesses[0].index == k]
        later = [task for task in tasks if task.step != k]
        self.panel = self._kernels(t for t in tasks if t.step == k == t.column)
        self.update = self._kernels(t for t in tasks if t.step == k < t.column == self._column)
        closing = self._kernels(t for t in later if t.column < layout.nt)
        #: Calls at the end for all columns at once, and for the tile's own.
        self.chain = [kernel for kernel in closing if not kernel.changes_matrix]
        self.closing = [kernel for kernel in closing if kernel.changes_matrix]
        self.beside = self.substitution = list[_Kernel]()
        #: Whether later calls leave out right-hand sides that are zero above the tile.
        self.skips = False
        if right_hand_sides:
            self.beside = self._kernels(t for t in tasks if t.step == k and t.column == right)
            self.substitution = self._kernels(t for t in later if t.column == right)
            self.skips = bool(self.substitution) and all(t.column != layout.nt for t in later)

    def _kernels(self, tasks: Iterable[Task]) -> list[_Kernel]:
        return [
            _Kernel(task.kind, [self._array(region) for region in task.accesses], len(task.reads))
            for task in tasks
        ]

    def _array(self, region: Region) -> _Array:
        name, index, start, stop = region
        if name in self._graph.values:
            size, dtype = self._graph.shapes[name], self._graph.values[name].dtype
            return _Array(size, 0, 0, index < self._k, name, dtype)
        return _Array(None, self._bound(start), self._bound(stop), index != self._k, name, None)

    def _bound(self, row: int) -> int:
        """Return the bound of `_calls` for the beginning of a tile row."""
        # Later keys override: at the end of the matrix, several are the same row.
        known = {self._last_row: 4, self._column: 3, self._k + 1: 2, self._k: 1, 0: 0}
        return known[row]


class StepKernels:
    """Calls of a routine's steps in matrices of any size.

    Parameters
    ----------
    build : callable
        Builder of the graph, from a layout.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> steps = StepKernels.of(lu_tasks)
    >>> tile = Tile(2000, 1000, 1000, 599000, 599000)
    >>> steps.panel(tile)[0]
    Call(kind='getrf', shapes=[(600000, 1000), (1000,), (1,)])
    >>> steps.update(tile, 5000)[-1]
    Call(kind='gemm', shapes=[(599000, 1000), (1000, 5000), (599000, 5000)])
    >>> [[call.kind for call in part] for part in steps.closing(tile)]
    [['compose'], ['laswp']]
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self._patterns: dict[tuple[bool, bool, bool, bool], _Pattern] = {}
        inner = self._pattern(Tile(1, 1, 1, 1, 1), right_hand_sides=False)
        #: Whether an update touches no more than the lower triangle of the trailing matrix.
        self.trapezoid = any(SPECS[kernel.kind].trapezoid for kernel in inner.update)

    @classmethod
    @functools.cache
    def of(cls, build: Build) -> StepKernels:
        """Return the kernels of a builder, whose small graphs are kept."""
        return cls(build)

    def panel(self, tile: Tile, *, right_hand_sides: bool = False) -> list[Call]:
        """Return the calls that factor the panel that begins at a tile."""
        return _calls(self._pattern(tile, right_hand_sides=right_hand_sides).panel, tile)

    def update(self, tile: Tile, width: int, above: int = 0) -> list[Call]:
        """Return the calls of a step on `width` columns of the trailing matrix.

        In a trapezoid these begin `above` rows below the tile.
        """
        kernels = self._pattern(tile, right_hand_sides=False).update
        return _calls(kernels, tile, width, above)

    def beside(self, tile: Tile, width: int) -> list[Call]:
        """Return the calls of a step on `width` columns of right-hand sides."""
        return _calls(self._pattern(tile, right_hand_sides=True).beside, tile, width)

    def closing(self, tile: Tile) -> tuple[list[Call], list[Call]]:
        """Return the calls after the last step for the tile: on all columns, and on its own."""
        pattern = self._pattern(tile, right_hand_sides=False)
        return _calls(pattern.chain, tile), _calls(pattern.closing, tile)

    def substitution(self, tile: Tile, width: int) -> list[Call]:
        """Return the calls after the last step for the tile, on `width` right-hand sides."""
        return _calls(self._pattern(tile, right_hand_sides=True).substitution, tile, width)

    def rides_along(self, tile: Tile) -> bool:
        """Return whether a step does the same to right-hand sides as to the trailing matrix."""
        own = [kernel.kind for kernel in self._pattern(tile, right_hand_sides=False).update]
        beside = [kernel.kind for kernel in self._pattern(tile, right_hand_sides=True).beside]
        return own == beside

    def begins_late(self, tile: Tile) -> bool:
        """Return whether `substitution` leaves out as many right-hand sides as rows are above."""
        return self._pattern(tile, right_hand_sides=True).skips

    def message_bytes(self, tile: Tile, dtype: Any) -> int:
        """Return the bytes of a panel that other workers need for their updates."""
        kernels = self._pattern(tile, right_hand_sides=False).update
        read = {array for kernel in kernels for array in kernel.arrays[: kernel.reads]}
        values = [array for array in read if array.size is not None]
        ends = {end for a in read if a.size is None and not a.other for end in a[1:3]} or {0}
        rows = _Array(None, min(ends), max(ends), False, "", None)
        return _bytes([*values, rows], tile, dtype)

    def closing_bytes(self, tile: Tile, dtype: Any) -> int:
        """Return the bytes that other workers need of what `closing` computes for all columns."""
        chain = self._pattern(tile, right_hand_sides=False).chain
        return _bytes((a for kernel in chain for a in kernel.arrays[kernel.reads :]), tile, dtype)

    def kept_elements(self, tile: Tile) -> int:
        """Return the elements of per-step values, in the matrix's dtype, that a panel makes."""
        panel = self._pattern(tile, right_hand_sides=False).panel
        changed = [array for kernel in panel for array in kernel.arrays[kernel.reads :]]
        kept = [array for array in changed if array.size and array.dtype is None]
        return _bytes(kept, tile, np.int8)

    def _pattern(self, tile: Tile, *, right_hand_sides: bool) -> _Pattern:
        first, below, beyond = tile.start == 0, tile.below > 0, tile.beyond > 0
        key = first, below, beyond, right_hand_sides
        if key not in self._patterns:
            self._patterns[key] = _Pattern(self._build, *key)
        return self._patterns[key]


def _calls(kernels: Sequence[_Kernel], tile: Tile, width: int = 0, above: int = 0) -> list[Call]:
    """Return the calls on a tile column of `width` whose rows begin `above` rows below the tile."""
    start, rows, columns, below, _ = tile
    end, order = start + rows, min(rows, columns)
    bounds = (0, start, end, end + above, end + below)
    widths = columns, width
    diagonals = Diagonal(order, below), Diagonal(order, below + rows)
    return [
        Call(
            kind,
            [
                size(diagonals[other]) if size else (bounds[stop] - bounds[begin], widths[other])
                for size, begin, stop, other, _, _ in arrays
            ],
        )
        for kind, arrays, _ in kernels
    ]


def _bytes(arrays: Iterable[_Array], tile: Tile, dtype: Any) -> int:
    """Return the bytes of arrays of one panel, in a matrix of elements of `dtype`."""
    arrays = list(arrays)
    (call,) = _calls([_Kernel("", arrays, 0)], tile)
    return sum(
        math.prod(shape) * np.dtype(array.dtype or dtype).itemsize
        for array, shape in zip(arrays, call.shapes, strict=True)
    )
