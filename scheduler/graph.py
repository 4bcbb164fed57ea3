"""Task graphs whose edges follow from what each task reads and writes.

A builder adds tasks in a valid sequential order and declares, per task, which
regions it reads, updates and writes; `TaskGraph` derives the edges, as DLA-Future
and SLATE derive theirs from declared accesses.  Nothing here knows of owners,
devices, priorities or look-ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hetero_la.scheduler.tasks import INITIAL, Matrix, PerStep, Region, Task, ValueSpec
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.layout import TileLayout

if TYPE_CHECKING:
    import networkx


class _Segment:
    """Adjacent tiles with the same last writer, and who has read which of them since."""

    __slots__ = ("readers", "start", "stop", "writer")

    def __init__(
        self, start: int, stop: int, writer: int, readers: list[tuple[int, int, int]]
    ) -> None:
        self.start, self.stop, self.writer, self.readers = start, stop, writer, readers


class TaskGraph:
    """A directed acyclic graph of tile tasks.

    Parameters
    ----------
    layout : TileLayout
        How the matrix is cut.
    granularity : {"column", "tile"}, optional
        Whether one task updates a column of tiles or one tile; see `row_blocks`.

    Examples
    --------
    >>> from hetero_la.tiles.layout import TileLayout
    >>> graph = TaskGraph(TileLayout(4, 4, 2))
    >>> A = graph.matrix("A")
    >>> panel = graph.add("getrf", step=0, column=0, updates=[A[0:, 0]])
    >>> update = graph.add("gemm", step=0, column=1, reads=[A[1, 0]], updates=[A[1, 1]])
    >>> update.after
    (0,)
    """

    def __init__(
        self, layout: TileLayout, granularity: Literal["column", "tile"] = "column"
    ) -> None:
        self.layout = layout
        self.granularity = granularity
        self.tasks: list[Task] = []
        self.values: dict[str, ValueSpec] = {}
        self.results: tuple[str, ...] = ()
        #: Per-step values that are there before the first task, at every worker.
        self.given: frozenset[tuple[str, int]] = frozenset()
        self._segments: dict[tuple[str, int], list[_Segment]] = {}

    def __len__(self) -> int:
        return len(self.tasks)

    def matrix(self, name: str) -> Matrix:
        """Declare the matrix that the layout cuts."""
        return Matrix(name, self.layout.mt)

    def per_step(
        self,
        name: str,
        shape: Callable[[int], tuple[int, ...]],
        dtype: Any = None,
        *,
        result: bool = False,
    ) -> PerStep:
        """Declare a value that each step has one of, and whether the run returns it."""
        if result:
            self.results += (name,)
        shapes = tuple(shape(k) for k in range(max(self.layout.kt, 1)))
        self.values[name] = ValueSpec(shapes.__getitem__, dtype)  # can be pickled
        return PerStep(name)

    def vectors(self) -> set[str]:
        """Names of the one-dimensional per-step values: small, so receivers keep them."""
        return {name for name, value in self.values.items() if len(value.shape(0)) == 1}

    def row_blocks(self, start: int, stop: int | None = None) -> Iterator[slice]:
        """Rows ``start:stop`` as one block, or tile by tile, by the graph's granularity."""
        stop = self.layout.mt if stop is None else stop
        if self.granularity == "tile":
            yield from (slice(i, i + 1) for i in range(start, stop))
        elif start < stop:
            yield slice(start, stop)

    def add(
        self,
        kind: str,
        *,
        step: int,
        column: int,
        reads: Sequence[Region] = (),
        updates: Sequence[Region] = (),
        writes: Sequence[Region] = (),
    ) -> Task:
        """Append a task; it depends on the earlier tasks whose data it touches."""
        index = len(self.tasks)
        after: set[int] = set()
        flows: list[tuple[int, Region]] = []
        for region in reads:
            self._read(region, index, after, flows)
        for region in updates:
            self._write(region, index, after, flows)
        for region in writes:
            self._write(region, index, after, None)
        after.discard(INITIAL)
        task = Task(
            index, kind, step, column, tuple(reads), tuple(updates), tuple(writes),
            tuple(sorted(after)), tuple(flows),
        )  # fmt: skip
        self.tasks.append(task)
        return task

    def _overlapping(self, region: Region) -> tuple[list[_Segment], int, int]:
        """The segments of a tile column, and which of them `region` touches."""
        segments = self._segments.get(region[:2])
        if segments is None:
            tiles = 1 if region.name in self.values else self.layout.mt
            segments = self._segments[region[:2]] = [_Segment(0, tiles, INITIAL, [])]
        # From the end: a factorization works on the last rows of a column.
        last = len(segments)
        while last > 0 and segments[last - 1].start >= region.stop:
            last -= 1
        first = last
        while first > 0 and segments[first - 1].stop > region.start:
            first -= 1
        return segments, first, last

    def remaining(self, step: int) -> TaskGraph:
        """The graph of the tasks from `step` on, once all before it are done.

        What these have made of the matrix is there at the start, and so are their per-step
        values (`given`), at every worker.

        Examples
        --------
        >>> from hetero_la.algorithms.lu import lu_tasks
        >>> graph = lu_tasks(TileLayout(6, 6, 2)).remaining(2)
        >>> [task.kind for task in graph.tasks]
        ['getrf', 'compose', 'compose', 'laswp', 'laswp']
        """
        graph = TaskGraph(self.layout, self.granularity)
        graph.values, graph.results = self.values, self.results
        graph.given = frozenset(
            region[:2]
            for task in self.tasks
            for region in task.writes
            if task.step < step and region.name in self.values
        )
        for task in self.tasks:
            if task.step >= step:
                graph.add(
                    task.kind, step=task.step, column=task.column,
                    reads=task.reads, updates=task.updates, writes=task.writes,
                )  # fmt: skip
        return graph

    def _read(
        self, region: Region, index: int, after: set[int], flows: list[tuple[int, Region]]
    ) -> None:
        if region[:2] in self.given:
            return
        segments, first, last = self._overlapping(region)
        for segment in segments[first:last]:
            after.add(segment.writer)
            segment.readers.append((index, region.start, region.stop))
            flows.append((segment.writer, _clip(region, segment)))

    def _write(
        self, region: Region, index: int, after: set[int], flows: list[tuple[int, Region]] | None
    ) -> None:
        segments, first, last = self._overlapping(region)
        kept: list[_Segment] = []
        for segment in segments[first:last]:
            after.add(segment.writer)
            after.update(
                reader
                for reader, start, stop in segment.readers
                if start < region.stop and stop > region.start
            )
            if flows is not None:
                flows.append((segment.writer, _clip(region, segment)))
            if segment.start < region.start:
                kept.append(
                    _Segment(segment.start, region.start, segment.writer, segment.readers[:])
                )
            if segment.stop > region.stop:
                kept.append(_Segment(region.stop, segment.stop, segment.writer, segment.readers[:]))
        kept.append(_Segment(region.start, region.stop, index, []))
        kept.sort(key=lambda segment: segment.start)
        segments[first:last] = kept

    def final_writers(self, name: str) -> Iterator[tuple[int, Region]]:
        """Each part of matrix `name` with the task that wrote it last."""
        for (owner, column), segments in self._segments.items():
            if owner == name:
                for segment in segments:
                    yield segment.writer, Region(name, column, segment.start, segment.stop)

    def made_columns(self) -> set[int]:
        """Tile columns of the matrix that are written before anything is read of them."""
        made = {
            region.index
            for task in self.tasks
            for region in task.writes
            if region.name not in self.values
        }
        if made:
            made -= {r.index for t in self.tasks for writer, r in t.flows if writer == INITIAL}
        return made

    def shape(self, region: Region) -> tuple[int, ...]:
        """Shape of a region, in elements."""
        if region.name in self.values:
            return self.values[region.name].shape(region.index)
        rows = self.layout.row(region.stop) - self.layout.row(region.start)
        return rows, self.layout.column_width(region.index)

    def flops(self, task: Task) -> float:
        """Floating-point operations of a task (real arithmetic)."""
        return SPECS[task.kind].flops([self.shape(region) for region in task.accesses])

    def is_topological(self, order: Sequence[int]) -> bool:
        """Whether `order` names every task once, none before those it depends on."""
        position = {index: place for place, index in enumerate(order)}
        return len(position) == len(order) == len(self.tasks) and all(
            position[before] < position[task.index] for task in self.tasks for before in task.after
        )

    def to_networkx(
        self, dtype: Any = np.float64, placement: Sequence[int] | None = None
    ) -> networkx.DiGraph:
        """The graph for analysis, drawing and export.

        Parameters
        ----------
        dtype : dtype, optional
            Element type, from which a node's ``bytes`` follow.
        placement : sequence of int, optional
            Worker of each task, as in ``plan.placement``.

        Returns
        -------
        networkx.DiGraph
            Nodes are task indices with ``kind``, ``step``, ``column``, ``flops`` (real
            ones; a complex operation is counted as one), ``bytes`` (of what the task
            touches) and, of a placed graph, ``owner``; an edge means "before".
        """
        import networkx

        if placement is not None and len(placement) != len(self):
            raise ValueError(f"{len(self)} tasks need as many workers, not {len(placement)}")
        graph = networkx.DiGraph()
        itemsize = np.dtype(dtype).itemsize
        for task in self.tasks:
            touched = sum(
                math.prod(self.shape(region)) * self._itemsize(region, itemsize)
                for region in task.accesses
            )
            owner = {} if placement is None else {"owner": placement[task.index]}
            graph.add_node(
                task.index, kind=task.kind, step=task.step, column=task.column,
                flops=self.flops(task), bytes=touched, **owner,
            )  # fmt: skip
            graph.add_edges_from((before, task.index) for before in task.after)
        return graph

    def _itemsize(self, region: Region, itemsize: int) -> int:
        """Bytes of an element of a region, given those of an element of the matrix."""
        value = self.values.get(region.name)
        return itemsize if value is None or value.dtype is None else np.dtype(value.dtype).itemsize


def _clip(region: Region, segment: _Segment) -> Region:
    if segment.start <= region.start and region.stop <= segment.stop:
        return region
    start, stop = max(region.start, segment.start), min(region.stop, segment.stop)
    return Region(region.name, region.index, start, stop)
