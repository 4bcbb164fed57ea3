"""Order of a worker's tasks: look-ahead as a priority and a bound."""

from __future__ import annotations

from collections.abc import Callable

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import TaskBlock

Priority = tuple[int, int, int, int, int]


class Order:
    """Order of tasks by sort keys: the smallest runs first.

    The panel of column c, and the updates of that column in the `depth` steps
    before, come before the rest of step ``c - depth``; panels of one block
    (`TileLayout.block`) count as one step.  Equal kernels of one step
    stand together, so that adjacent columns can be merged into one call.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    depth : int
        Look-ahead: how many panels are factored ahead of the trailing update.
    arrival : callable, optional
        Step, one of the factorization's, by which a column has been copied to its worker; the
        work of earlier steps on it waits for that, unless it would delay the column's panel.  Until
        all have been copied, no finished column is overwritten.
    """

    def __init__(
        self, graph: TaskGraph, depth: int, arrival: Callable[[int], int] | None = None
    ) -> None:
        self._depth, self._arrival, layout = depth, arrival, graph.layout
        self._kt = layout.kt
        columns = range(layout.nt + layout.rt)
        #: Step by which all columns have arrived.
        self._complete = max(map(arrival, columns), default=0) if arrival else 0
        begins = [layout.block(k)[0] for k in range(self._kt)]
        starts = [*range(-depth, 0), *sorted(set(begins))]
        place = {start: number for number, start in enumerate(starts)}
        #: The first step of each panel's block, and of the block at which it is due.
        self._begins, self._due = begins, [starts[place[b] - depth] for b in begins]
        ranks: dict[tuple[object, ...], int] = {}
        #: Place of each block's kernel in its step, in the builder's order.
        self._ranks = [ranks.setdefault(self._purpose(b), len(ranks)) for b in graph.blocks]

    def phase(self, step: int, column: int) -> tuple[int, int]:
        """Return the step at which work on a column is due, and 1 if it can wait, else 0."""
        begin = self._begins[step] if step < self._kt else step
        if column >= self._kt:
            due = column - self._depth
        elif (due := self._due[column]) <= begin <= self._begins[column]:
            return due, 0
        if self._arrival is None:
            return begin, 1
        if column < self._kt and begin > self._begins[column]:
            # A finished column is overwritten, which columns that arrive late may still read.
            return max(begin, self._complete), 1
        return max(begin, min(self._arrival(column), due - 1)), 1

    def is_next(self, step: int, column: int) -> bool:
        """Return whether a column's first urgent task waits for this deferrable work."""
        return column < self._kt and self.phase(step, column) == (self._due[column] - 1, 1)

    def key(self, block: TaskBlock, column: int) -> Priority:
        """Return the sort key of a block's task on a column."""
        phase, trailing = self.phase(block.step, column)
        return phase, trailing, block.step, self._ranks[block.number], block.index(column)

    def _purpose(self, block: TaskBlock) -> tuple[object, ...]:
        """Return what blocks have in common that do the same to different columns."""
        panel = block.reads[0][:2] if block.reads else None
        left = block.start < block.step < self._kt
        return block.step, block.kind, left, panel
