"""Order of a worker's tasks: look-ahead as a priority and a bound."""

from __future__ import annotations

from collections.abc import Callable

from hetero_la.scheduler.graph import TaskGraph
from hetero_la.scheduler.tasks import Task

Priority = tuple[int, int, int, int, int]


def is_urgent(task: Task, depth: int, kt: int) -> bool:
    """Whether a task is one of the `kt` panels, or updates one of the next `depth`."""
    return task.column - depth <= task.step <= task.column < kt


def priorities(
    graph: TaskGraph, depth: int, arrival: Callable[[int], int] | None = None
) -> list[Priority]:
    """Sort keys of all tasks: the smallest runs first.

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
    last = graph.layout.kt - 1  # after it, laswp overwrites what that work reads
    rank: dict[tuple[int, str], int] = {}  # kernels of a step in the builder's order
    keys = []
    for task in graph.tasks:
        kind = rank.setdefault((task.step, task.kind), len(rank))
        if is_urgent(task, depth, last + 1):
            keys.append((task.column - depth, 0, task.step, kind, task.index))
        else:
            phase = task.step
            if arrival is not None:
                phase = max(phase, min(arrival(task.column), task.column - depth - 1, last))
            keys.append((phase, 1, task.step, kind, task.index))
    return keys
