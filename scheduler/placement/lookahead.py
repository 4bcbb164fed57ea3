"""Order of a worker's tasks: look-ahead as a priority and a bound."""

from __future__ import annotations

from collections.abc import Callable

from hetero_la.scheduler.graph.task_graph import TaskGraph

Priority = tuple[int, int, int, int, int]


class Order:
    """Sort keys of tasks: the smallest runs first.

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
        Step by which a column has travelled to its worker; the work of earlier steps on
        it waits so long, but never longer than its panel can.
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
        """When the work of a step on a column is due, and whether that can wait (1) or not (0)."""
        depth, kt = self._depth, self._kt
        if column - depth <= step <= column < kt:
            return column - depth, 0
        if self._arrival is None:
            return step, 1
        # After the last step, laswp overwrites what that work reads.
        return max(step, min(self._arrival(column), column - depth - 1, kt - 1)), 1

    def is_next(self, step: int, column: int) -> bool:
        """Whether what can wait on a column is what its first urgent task waits for."""
        return self.phase(step, column) == (column - self._depth - 1, 1)

    def key(self, step: int, kind: str, column: int, index: int) -> Priority:
        """The sort key of a task."""
        phase, trailing = self.phase(step, column)
        return phase, trailing, step, self._ranks[step, kind], index
