"""What each step of a factorization calls, without the graph of the whole.

All steps of a right-looking factorization are alike but for the sizes of their tiles, the
first and the last one excepted.  So the builder is asked for a graph of a few tiles, and its
tasks' regions are measured in a matrix of any size: kernels and shapes are those of the graph
that really runs, for as many tiles as nobody would want to make tasks of.
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
        Its own.
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
        """Tile `k` of a matrix."""
        (start, end), (_, right) = layout.rows(k), layout.columns(k)
        return Tile(start, end - start, right - start, layout.m - end, layout.n - right)

    def place(self, width: int = 0, above: int = 0) -> Place:
        """A tile column of `width` whose own diagonal tile begins `above` rows below this one."""
        end = self.start + self.rows
        return Place(self, (0, self.start, end, end + above, end + self.below), width)


class Place(NamedTuple):
    """Where a call is made: bounds of tile rows, in elements, and the width of its column."""

    tile: Tile
    bounds: tuple[int, int, int, int, int]
    width: int


class _Rows(NamedTuple):
    """An array that is rows of the panel's tile column, or of the task's own."""

    start: int
    stop: int
    own: bool

    def shape(self, place: Place) -> tuple[int, ...]:
        """In elements."""
        rows = place.bounds[self.stop] - place.bounds[self.start]
        return rows, place.width if self.own else place.tile.columns


class _Value(NamedTuple):
    """An array that is a per-step value of this step, or of the one before."""

    name: str
    size: Callable[[Diagonal], tuple[int, ...]]
    dtype: Any
    before: bool

    def shape(self, place: Place) -> tuple[int, ...]:
        """In elements; of the step before, only the rows below its tile are known."""
        tile = place.tile
        order = min(tile.rows, tile.columns)
        return self.size(Diagonal(order, tile.below + (tile.rows if self.before else 0)))

    def nbytes(self, place: Place, dtype: Any) -> int:
        """In bytes, of a matrix of elements of `dtype`."""
        return math.prod(self.shape(place)) * np.dtype(self.dtype or dtype).itemsize


class _Kernel(NamedTuple):
    """A task of a small graph, which stands for those of any size."""

    kind: str
    reads: Sequence[_Rows | _Value]
    changes: Sequence[_Rows | _Value]

    def call(self, place: Place) -> Call:
        """Its call in a matrix."""
        return Call(self.kind, [array.shape(place) for array in (*self.reads, *self.changes)])

    @property
    def changes_matrix(self) -> bool:
        """Whether it changes more than per-step values."""
        return any(isinstance(array, _Rows) for array in self.changes)


class _Pattern:
    """The tasks of one step of a small graph, by what they are for."""

    def __init__(
        self, build: Build, first: bool, below: bool, beyond: bool, right_hand_sides: bool
    ) -> None:
        inner = below and beyond
        steps = 5 if inner else 1 if first else 3
        self._k = 0 if first else 1 if inner else steps - 1
        rows, columns = (steps + (more and not inner) for more in (below, beyond))
        layout = TileLayout(rows, columns, 1, rows if right_hand_sides else 0)
        self._graph = graph = build(layout)
        self._nt, self._last_row = layout.nt, layout.mt
        k, right = self._k, layout.nt + layout.rt - 1
        #: A column of the matrix that stands for all to the right of the panel.
        self._column = min(k + 2, layout.nt - 1)
        # What a task works with, its first array, says to which tile it belongs.
        tasks = [task for task in graph.tasks if task.accesses[0].index == k]
        later = [task for task in tasks if task.step != k]
        self.panel = self._kernels(t for t in tasks if t.step == k == t.column)
        self.update = self._kernels(t for t in tasks if t.step == k < t.column == self._column)
        closing = self._kernels(t for t in later if t.column < layout.nt)
        #: What is done at the end for all columns at once, and what to the tile's own.
        self.chain = [kernel for kernel in closing if not kernel.changes_matrix]
        self.closing = [kernel for kernel in closing if kernel.changes_matrix]
        self.beside = self.substitution = list[_Kernel]()
        #: Whether what comes later leaves out right-hand sides that are zero above the tile.
        self.skips = False
        if right_hand_sides:
            self.beside = self._kernels(t for t in tasks if t.step == k and t.column == right)
            self.substitution = self._kernels(t for t in later if t.column == right)
            self.skips = bool(self.substitution) and all(t.column != layout.nt for t in later)

    def _kernels(self, tasks: Iterable[Task]) -> list[_Kernel]:
        return [
            _Kernel(
                task.kind,
                [self._array(region) for region in task.reads],
                [self._array(region) for region in task.updates + task.writes],
            )
            for task in tasks
        ]

    def _array(self, region: Region) -> _Rows | _Value:
        name, index, start, stop = region
        if name in self._graph.values:
            dtype = self._graph.values[name].dtype
            return _Value(name, self._graph.shapes[name], dtype, index < self._k)
        return _Rows(self._bound(start), self._bound(stop), index != self._k)

    def _bound(self, row: int) -> int:
        """Which of a place's bounds a tile row of the small graph stands for."""
        # Where two are the same row, either does; the nearest to the tile is known in any case.
        known = {self._last_row: 4, self._column: 3, self._k + 1: 2, self._k: 1, 0: 0}
        return known[row]


class StepKernels:
    """The calls of a routine's steps in matrices of any size.

    Parameters
    ----------
    build : callable
        Makes the graph of a layout.

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
        """Those of a builder, whose small graphs are kept."""
        return cls(build)

    def panel(self, tile: Tile, *, right_hand_sides: bool = False) -> list[Call]:
        """What factors the panel that begins at a tile."""
        return _calls(self._pattern(tile, right_hand_sides=right_hand_sides).panel, tile)

    def update(self, tile: Tile, width: int, above: int = 0) -> list[Call]:
        """What a step does to `width` columns of the trailing matrix.

        Of a trapezoid these begin `above` rows below the tile.
        """
        kernels = self._pattern(tile, right_hand_sides=False).update
        return _calls(kernels, tile, width, above)

    def beside(self, tile: Tile, width: int) -> list[Call]:
        """What a step does to `width` columns of right-hand sides."""
        return _calls(self._pattern(tile, right_hand_sides=True).beside, tile, width)

    def closing(self, tile: Tile) -> tuple[list[Call], list[Call]]:
        """What comes after the last step for the tile: of all columns at once, and of its own."""
        pattern = self._pattern(tile, right_hand_sides=False)
        return _calls(pattern.chain, tile), _calls(pattern.closing, tile)

    def substitution(self, tile: Tile, width: int) -> list[Call]:
        """What comes after the last step for the tile, on `width` columns of right-hand sides."""
        return _calls(self._pattern(tile, right_hand_sides=True).substitution, tile, width)

    def rides_along(self, tile: Tile) -> bool:
        """Whether a step does the same to right-hand sides as to the trailing matrix."""
        own = [kernel.kind for kernel in self._pattern(tile, right_hand_sides=False).update]
        beside = [kernel.kind for kernel in self._pattern(tile, right_hand_sides=True).beside]
        return own == beside

    def begins_late(self, tile: Tile) -> bool:
        """Whether `substitution` leaves out as many right-hand sides as rows are above."""
        return self._pattern(tile, right_hand_sides=True).skips

    def message_bytes(self, tile: Tile, dtype: Any) -> int:
        """Bytes of a panel that the others need for their updates."""
        place, rows, values = tile.place(), set[int](), dict[str, _Value]()
        for kernel in self._pattern(tile, right_hand_sides=False).update:
            for array in kernel.reads:
                if isinstance(array, _Value):
                    values[array.name] = array
                elif not array.own:
                    rows |= {array.start, array.stop}
        whole = _Rows(min(rows, default=0), max(rows, default=0), own=False)
        matrix = math.prod(whole.shape(place)) * np.dtype(dtype).itemsize
        return matrix + sum(value.nbytes(place, dtype) for value in values.values())

    def closing_bytes(self, tile: Tile, dtype: Any) -> int:
        """Bytes that others need of what `closing` does for all columns at once."""
        chain = self._pattern(tile, right_hand_sides=False).chain
        return sum(
            array.nbytes(tile.place(), dtype)
            for kernel in chain
            for array in kernel.changes
            if isinstance(array, _Value)
        )

    def kept_elements(self, tile: Tile) -> int:
        """Elements of the matrix's type that a panel leaves besides the matrix itself."""
        return sum(
            math.prod(array.shape(tile.place()))
            for kernel in self._pattern(tile, right_hand_sides=False).panel
            for array in kernel.changes
            if isinstance(array, _Value) and array.dtype is None
        )

    def _pattern(self, tile: Tile, *, right_hand_sides: bool) -> _Pattern:
        first, below, beyond = tile.start == 0, tile.below > 0, tile.beyond > 0
        key = first, below, beyond, right_hand_sides
        if key not in self._patterns:
            self._patterns[key] = _Pattern(self._build, *key)
        return self._patterns[key]


def _calls(kernels: Sequence[_Kernel], tile: Tile, width: int = 0, above: int = 0) -> list[Call]:
    place = tile.place(width, above)
    return [kernel.call(place) for kernel in kernels]
