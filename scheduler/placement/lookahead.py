"""Order of a worker's tasks: look-ahead as a priority and a bound."""

from __future__ import annotations

from collections.abc import Callable

from hetero_la.scheduler.graph.task_graph import TaskGraph

Priority = tuple[int, int, int, int, int]


class Order:
    """Order of tasks by sort keys: the smallest runs first.

    The panel of column c, and the updates of that column in the `depth` steps
    before, come before the rest of step ``c - depth``.  Equal kernels of one step
    stand together, so that adjacent columns can be merged into one call.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    depth : int
        Look-ahead: how many panels are factored ahead of the trailing update.
    arrival : callable, optional
        Step, one of the factorization's, by which a column has been copied to its worker; the
        work of earlier steps on it waits for that, unless it would delay the column's panel.
    """

    def __init__(
        self, graph: TaskGraph, depth: int, arrival: Callable[[int], int] | None = None
    ) -> None:
        self._depth, self._arrival = depth, arrival
        self._kt = graph.layout.kt
        self._ranks: dict[tuple[int, str], int] = {}  # kernels of a step in the builder's order
        for block in graph.blocks:
            self._ranks.setdefault((block.step, block.kind), len(self._ranks))

    def phase(self, step: int, column: int) -> tuple[int, int]:
        """Return the step at which work on a column is due, and 1 if it can wait, else 0."""
        depth = self._depth
        if column - depth <= step <= column < self._kt:
            return column - depth, 0
        if self._arrival is None:
            return step, 1
        return max(step, min(self._arrival(column), column - depth - 1)), 1

    def is_next(self, step: int, column: int) -> bool:
        """Return whether a column's first urgent task waits for this deferrable work."""
        return self.phase(step, column) == (column - self._depth - 1, 1)

    def key(self, step: int, kind: str, column: int, index: int) -> Priority:
        """Return the sort key of a task."""
        phase, trailing = self.phase(step, column)
        return phase, trailing, step, self._ranks[step, kind], index
