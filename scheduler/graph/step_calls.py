"""Kernel calls of each step of a factorization, without the graph of the whole.

Every step of a right-looking factorization is the first step of a smaller one.  So the
builder is called for the last few steps only, and any other step is their first one, on more
rows and columns, and with a tile of its own size: kernels and shapes are those of the full graph,
for numbers of tiles for which that would be too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region, Task, ValueSpec
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout

#: Steps that the builder is asked for: enough that the tiles 0, 1, 2, 3 and the last differ.
_LAST_STEPS = 6
_COLUMN = 2  # stands for any column that is not the panel's

Shapes = list[tuple[int, ...]]


class Call(NamedTuple):
    """A kernel, and the shapes of its arrays."""

    kind: str
    shapes: Shapes


class StepCalls:
    """Kernel calls of every step.

    Parameters
    ----------
    build : callable
        Makes the graph of a layout.
    layout : TileLayout
        The whole matrix, without right-hand sides.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> steps = StepCalls(lu_tasks, TileLayout(10**6, 10**6, 1000))
    >>> steps.panel(0)[0]
    Call(kind='getrf', shapes=[(1000000, 1000), (1000,), (1,)])
    >>> steps.update(400, 401, width=5000)[-1]
    Call(kind='gemm', shapes=[(599000, 1000), (1000, 5000), (599000, 5000)])
    """

    def __init__(self, build: Callable[[TileLayout], TaskGraph], layout: TileLayout) -> None:
        if layout.nrhs:
            raise ValueError(f"there must be no right-hand sides, not {layout.nrhs}")
        self.layout = layout
        self._before = max(layout.kt - _LAST_STEPS, 0)
        self._last = build(layout.trailing(self._before))
        self._build = build
        #: Size of a step's tile -> per-step values of a graph whose first tile has that size.
        self._values: dict[int, dict[str, ValueSpec]] = {}
        self._tasks: dict[tuple[int, int], list[Task]] = {}
        for task in self._last.tasks:
            self._tasks.setdefault((task.step, task.column), []).append(task)
        #: Kernels after the last step.
        self.closing = {t.kind for t in self._last.tasks if t.step >= self._last.layout.kt}
        updates = [task for task in self._last.tasks if task.column > task.step]
        #: Whether a kernel call for several tile columns needs neighbours in the matrix.
        self.trapezoid = any(SPECS[task.kind].trapezoid for task in updates)

    def panel(self, k: int) -> list[Call]:
        """Return the calls that factor panel `k`."""
        return [Call(task.kind, self._shapes(task, k, k)) for task in self._found(k, k)]

    def update(self, k: int, j: int, width: int | None = None) -> list[Call]:
        """Return the calls of step `k` on tile column `j`, or on `width` columns from there on."""
        calls = []
        for task in self._found(k, j):
            shapes = self._shapes(task, k, j)
            if width is not None:
                for place, region in enumerate(task.accesses):
                    if region.index == task.column and region.name not in self._last.values:
                        shapes[place] = (shapes[place][0], width)
            calls.append(Call(task.kind, shapes))
        return calls

    def message_bytes(self, k: int, dtype: Any) -> int:
        """Return the bytes of panel `k` that other workers need for their updates."""
        rows: dict[str, tuple[int, int]] = {}
        small = 0
        values: set[str] = set()
        for task in self._found(k, k + 1):
            for region in task.reads:
                if region.name in self._last.values:
                    values.add(region.name)
                elif region.index != task.column:
                    start, stop = self._rows(region, k, k + 1)
                    low, high = rows.get(region.name, (start, stop))
                    rows[region.name] = min(low, start), max(high, stop)
        for name in values:
            value = self._values_of(k)[name]
            shape = value.shape(max(k - self._before, 0))
            small += math.prod(shape) * np.dtype(value.dtype or dtype).itemsize
        width = self.layout.column_width(k) * np.dtype(dtype).itemsize
        return small + sum(stop - start for start, stop in rows.values()) * width

    def kept_elements(self, k: int) -> int:
        """Return the elements of per-step values, in the matrix's dtype, that panel `k` makes."""
        values = self._values_of(k)
        return sum(
            math.prod(values[region.name].shape(region.index))
            for task in self._found(k, k)
            for region in task.writes
            if region.name in values and values[region.name].dtype is None
        )

    def _values_of(self, k: int) -> dict[str, ValueSpec]:
        """Return the per-step values of the small graph that represents step `k`."""
        if k >= self._before:
            return self._last.values
        size = self.layout.column_width(k)
        if size not in self._values:
            trailing = self.layout.trailing(self._before, first=size)
            self._values[size] = self._build(trailing).values
        return self._values[size]

    def _found(self, k: int, j: int) -> list[Task]:
        if k >= self._before:
            return self._tasks.get((k - self._before, j - self._before), [])
        return self._tasks[0, 0 if j == k else _COLUMN]

    def _shapes(self, task: Task, k: int, j: int) -> Shapes:
        return [self._shape(region, k, j) for region in task.accesses]

    def _shape(self, region: Region, k: int, j: int) -> tuple[int, ...]:
        if region.name in self._last.values:
            return self._values_of(k)[region.name].shape(region.index)
        if k >= self._before:
            return self._last.shape(region)
        start, stop = self._rows(region, k, j)
        return stop - start, self.layout.column_width(self._tile(region.index, k, j))

    def _rows(self, region: Region, k: int, j: int) -> tuple[int, int]:
        """Return the element rows in the whole matrix of a region of the small graph."""
        tiles = (self._tile(tile, k, j) for tile in (region.start, region.stop))
        start, stop = (self.layout.row(tile) for tile in tiles)
        return start, stop

    def _tile(self, tile: int, k: int, j: int) -> int:
        """Return the matrix's tile for one of the small graph, in step `k` on column `j`."""
        if k >= self._before:
            return tile + self._before
        names = {0: k, 1: k + 1, _COLUMN: j, _COLUMN + 1: j + 1}
        return names.get(tile, self.layout.mt)
