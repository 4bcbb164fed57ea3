"""Task graphs whose edges follow from what each task reads and writes.

A builder adds tasks in a valid sequential order and declares, per task, which
regions it reads, updates and writes; `TaskGraph` derives the edges, as DLA-Future
and SLATE derive theirs from declared accesses.  Nothing here knows of owners,
devices, priorities or look-ahead.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hetero_la.scheduler.graph.accesses import Edges, LastAccesses
from hetero_la.scheduler.graph.tasks import (
    INITIAL,
    OWN,
    Diagonal,
    Matrix,
    PerStep,
    Region,
    Task,
    TaskBlock,
    ValueSpec,
    require_independent,
    resolve,
)
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout

if TYPE_CHECKING:
    import networkx

#: Size of a task that updates: one column of tiles, or one tile.
Granularity = Literal["column", "tile"]


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
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> graph = TaskGraph(TileLayout(4, 4, 2))
    >>> A = graph.matrix("A")
    >>> graph.add("getrf", step=0, column=0, updates=[A[0:, 0]])
    >>> graph.add("gemm", step=0, column=1, reads=[A[1, 0]], updates=[A[1, 1]])
    >>> graph.tasks[1].after
    (0,)
    """

    def __init__(self, layout: TileLayout, granularity: Granularity = "column") -> None:
        self.layout = layout
        self.granularity = granularity
        self.blocks: list[TaskBlock] = []
        self.values: dict[str, ValueSpec] = {}
        #: How the shapes of per-step values depend on a step's tile; not part of a pickle.
        self.shapes: dict[str, Callable[[Diagonal], tuple[int, ...]]] = {}
        self.results: tuple[str, ...] = ()
        #: Per-step values that are there before the first task, at every worker.
        self.given: frozenset[tuple[str, int]] = frozenset()
        self._accesses = LastAccesses(layout.mt)
        #: Those of the whole graph, if this one is what remains of it.
        self._touched: dict[int, tuple[int, int]] | None = None
        self._count = 0
        self._columns: tuple[int, int] | None = None  # the current ones of `column_blocks`
        self._tasks: list[Task] = []
        #: What was added, a list for each loop over a block's columns.
        self._added: list[tuple[tuple[int, int] | None, list[dict[str, Any]]]] = []

    _repr_html_ = as_html

    def __repr__(self) -> str:
        layout = self.layout
        tiles = f"{layout.mt} x {layout.nt} tiles"
        return one_line("TaskGraph", counted(len(self), "task"), f"{tiles} of {layout.nb_text}")

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "shapes": {}}

    @property
    def tasks(self) -> list[Task]:
        """All tasks, in the builder's order; made from the blocks at the first access."""
        if len(self._tasks) < self._count:
            made = [b.task(c, self.blocks) for b in self.blocks for c in range(b.start, b.stop)]
            self._tasks = sorted(made)  # by their indices
        return self._tasks

    def matrix(self, name: str) -> Matrix:
        """Declare the matrix that the layout cuts."""
        return Matrix(name, self.layout.mt)

    def per_step(
        self,
        name: str,
        shape: Callable[[Diagonal], tuple[int, ...]],
        dtype: Any = None,
        *,
        result: bool = False,
    ) -> PerStep:
        """Declare a value of each step; with `result`, the run returns it.

        Its shape depends on the step's diagonal tile.
        """
        if result:
            self.results += (name,)
        self.shapes[name] = shape
        self.values[name] = ValueSpec(tuple(map(shape, self._diagonals)).__getitem__, dtype)
        return PerStep(name)

    @functools.cached_property
    def _diagonals(self) -> list[Diagonal]:
        layout = self.layout
        return [
            Diagonal(layout.diagonal(k), layout.m - layout.row(k + 1))
            for k in range(max(layout.kt, 1))
        ]

    def vectors(self) -> set[str]:
        """Return the names of one-dimensional per-step values: small, so receivers keep them."""
        return {name for name, value in self.values.items() if len(value.shape(0)) == 1}

    def row_blocks(self, start: int, stop: int | None = None) -> Iterator[slice]:
        """Yield rows ``start:stop`` as one block, or tile by tile, by the graph's granularity."""
        stop = self.layout.mt if stop is None else stop
        if self.granularity == "tile":
            yield from (slice(i, i + 1) for i in range(start, stop))
            return
        first, last = self._columns or (0, 1)
        if resolve(start, first) < stop <= resolve(start, last - 1):
            raise ValueError(f"some tile columns from {first} to {last - 1} have rows, others none")
        if resolve(start, first) < stop:
            yield slice(start, stop)

    def column_blocks(self, start: int, stop: int) -> Iterator[int]:
        """Yield tile columns ``start:stop`` as one block or one by one, by the granularity.

        A block's number stands for the column of each of its tasks.  What the loop's body
        adds may read other columns, but none of the block's.
        """
        if self._columns is not None:
            raise ValueError("blocks of columns cannot be within one another")
        if self.granularity == "tile" or stop - start < 2:
            yield from range(start, stop)
            return
        known, first = len(self.blocks), self._count
        self._columns = start, stop
        self._added.append((self._columns, []))
        yield OWN
        self._columns = None
        # Column by column, each goes through the loop's body.
        stride = self._count - first
        self._count = first + stride * (stop - start)
        for block in self.blocks[known:]:
            block.stride = stride
            block.first += stride * (block.start - start)

    def add(
        self,
        kind: str,
        *,
        step: int,
        column: int,
        reads: Sequence[Region] = (),
        updates: Sequence[Region] = (),
        writes: Sequence[Region] = (),
    ) -> None:
        """Append a task; it depends on the earlier tasks whose data it touches.

        With a column of `column_blocks`, append the tasks of all of them.
        """
        if self._columns is None:
            self._added.append((None, []))
        self._added[-1][1].append({
            "kind": kind, "step": step, "column": column,
            "reads": reads, "updates": updates, "writes": writes,
        })  # fmt: skip
        if (column == OWN) != (self._columns is not None):
            raise ValueError(f"{kind} of step {step}: a block's column belongs in its loop, alone")
        accesses = tuple(reads), tuple(updates), tuple(writes)
        if self._columns is None:
            self._append(kind, step, column, column + 1, accesses)
        else:
            start, stop = self._columns
            require_independent(kind, step, range(start, stop), accesses, self.values)
            names = {region.name for part in accesses for region in part if region.own}
            cuts = {cut for name in names for cut in self._accesses.cuts(name, start, stop)}
            for a, b in itertools.pairwise((start, *sorted(cuts), stop)):
                if b - a > 1:
                    self._append(kind, step, a, b, accesses)
                else:  # regions of a single task need not be relative to a column
                    own = (tuple([region.of(a) for region in part]) for part in accesses)
                    self._append(kind, step, a, b, tuple(own))
        self._count += 1

    def _append(
        self, kind: str, step: int, start: int, stop: int,
        accesses: tuple[tuple[Region, ...], ...],
    ) -> None:  # fmt: skip
        """Append a block of tasks on columns that have the same history."""
        reads, updates, writes = accesses
        block = TaskBlock(
            len(self.blocks), self._count, kind, step, start, stop, reads, updates, writes
        )
        edges, values, accessed = Edges(block), self.values, self._accesses
        for region in reads:
            if not self.given or region[:2] not in self.given:
                accessed.read(region, edges, value=region.name in values)
        for region in updates:
            accessed.write(region, edges, value=region.name in values, update=True)
        for region in writes:
            accessed.write(region, edges, value=region.name in values, update=False)
        block.after, block.flows = tuple(edges.after), tuple(edges.flows)
        block.disturbed = tuple(edges.disturbed)
        self.blocks.append(block)

    def remaining(self, step: int) -> TaskGraph:
        """Return the graph of the tasks from `step` on, once all before it are done.

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
        graph._touched = self.touched_rows()
        graph.given = frozenset(
            region[:2]
            for block in self.blocks
            for region in block.writes
            if block.step < step and region.name in self.values
        )
        for columns, calls in self._added:
            left = [call for call in calls if call["step"] >= step]
            if columns is None or not left:
                for call in left:
                    graph.add(**call)
                continue
            for _ in graph.column_blocks(*columns):
                for call in left:
                    graph.add(**call)
        return graph

    def last_writers(self, name: str) -> Iterator[tuple[TaskBlock, Region]]:
        """Yield each written part of matrix `name`, with the block that wrote it last."""
        return self._accesses.last_writers(name)

    def touched_rows(self) -> dict[int, tuple[int, int]]:
        """Return, for each tile column, the first tile row that a task accesses, and the end.

        No other rows need travel.  A graph that remains of another has those of the whole.

        Examples
        --------
        >>> from hetero_la.algorithms.cholesky import cholesky_tasks
        >>> cholesky_tasks(TileLayout(6, 6, 2)).touched_rows()
        {0: (0, 3), 1: (1, 3), 2: (2, 3)}
        """
        if self._touched is not None:
            return self._touched
        return {part.index: part[2:] for part in self._accesses.touched("A")}

    def made_columns(self) -> set[int]:
        """Return the tile columns of the matrix that are written before they are read."""
        written, read = set[int](), set[int]()
        for block in self.blocks:
            initial = [region for writer, region in block.flows if writer == INITIAL]
            for regions, columns in ((block.writes, written), (initial, read)):
                for region in regions:
                    if region.name not in self.values:
                        own = range(block.start, block.stop) if region.own else (region.index,)
                        columns.update(own)
        return written - read

    def shape(self, region: Region) -> tuple[int, ...]:
        """Return the shape of a region, in elements."""
        name, index, start, stop = region
        if name in self.values:
            return self.values[name].shape(index)
        rows, widths = self.layout.row_starts, self.layout.column_widths
        return rows[stop] - rows[start], widths[index]

    def flops(self, task: Task) -> float:
        """Return the floating-point operations of a task (real arithmetic)."""
        return SPECS[task.kind].flops([self.shape(region) for region in task.accesses])

    def is_topological(self, order: Sequence[int]) -> bool:
        """Return whether `order` has every task once, and none before those it depends on."""
        position = {index: place for place, index in enumerate(order)}
        return len(position) == len(order) == len(self.tasks) and all(
            position[before] < position[task.index] for task in self.tasks for before in task.after
        )

    def to_networkx(
        self, dtype: Any = np.float64, placement: Sequence[int] | None = None
    ) -> networkx.DiGraph:
        """Return the graph as a networkx graph, for analysis, drawing and export.

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
        found = networkx.DiGraph()
        for task in self.tasks:
            owner = {} if placement is None else {"owner": placement[task.index]}
            found.add_node(
                task.index, kind=task.kind, step=task.step, column=task.column,
                flops=self.flops(task), bytes=sum(self._nbytes(r, dtype) for r in task.accesses),
                **owner,
            )  # fmt: skip
            found.add_edges_from((before, task.index) for before in task.after)
        return found

    def _nbytes(self, region: Region, dtype: Any) -> int:
        value = self.values.get(region.name)
        own = dtype if value is None or value.dtype is None else value.dtype
        return math.prod(self.shape(region)) * np.dtype(own).itemsize
