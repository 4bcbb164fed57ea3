"""Task -> worker, as a pure function."""

from __future__ import annotations

from hetero_la.scheduler.distribution import Distribution
from hetero_la.scheduler.graph import TaskGraph
from hetero_la.scheduler.tasks import Task
from hetero_la.tiles.kernels.spec import SPECS


def is_panel(task: Task, kt: int) -> bool:
    """Whether a task belongs to the chain of small steps that factors a panel."""
    return task.step == task.column < kt and SPECS[task.kind].chain


def place(
    graph: TaskGraph, distribution: Distribution, panel_worker: int | None = None
) -> list[int]:
    """Worker of each task: the owner of its column computes.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    distribution : Distribution
        Owners of the tile columns.
    panel_worker : int or None, optional
        Worker that factors every panel; None leaves panels to the owners.
    """
    owners, kt = distribution.owners, graph.layout.kt
    if panel_worker is None:
        return [owners[task.column] for task in graph.tasks]
    return [panel_worker if is_panel(task, kt) else owners[task.column] for task in graph.tasks]
