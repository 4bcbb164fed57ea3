"""Properties of a task graph: critical path, width, average parallelism.

All of them assume as many workers as tasks, and no transfers, so they bound every placement.
`weights` are the costs of the tasks: by default their floating-point operations; with
``plan.task_seconds``, seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph

Weights = Sequence[float] | np.ndarray


class Width(NamedTuple):
    """Number of tasks that run at once: ``tasks[i]`` from ``times[i]`` to ``times[i + 1]``.

    The last entry of `tasks` is 0.
    """

    times: np.ndarray
    tasks: np.ndarray


def task_weights(graph: TaskGraph, weights: Weights | None = None) -> np.ndarray:
    """Return `weights` as an array, shape (tasks,); by default the tasks' flops.

    Raises
    ------
    ValueError
        If there are not as many weights as tasks, or one is negative or not a number.
    """
    if weights is None:
        weights = [graph.flops(task) for task in graph.tasks]
    given = np.asarray(weights, np.float64)
    if given.shape != (len(graph),):
        raise ValueError(f"{len(graph)} tasks need as many weights, not shape {given.shape}")
    if not (given >= 0).all():
        raise ValueError(f"weights must not be negative, and the smallest is {given.min()}")
    return given


def earliest_times(
    graph: TaskGraph, weights: Weights | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of each task if it starts as soon as its predecessors have ended.

    Examples
    --------
    >>> from hetero_la.algorithms.qr import qr_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> start, stop = earliest_times(qr_tasks(TileLayout(2, 2, 1)), [2, 3, 1, 1, 1])
    >>> start.tolist(), stop.tolist()
    ([0.0, 2.0, 5.0, 5.0, 6.0], [2.0, 5.0, 6.0, 6.0, 7.0])
    """
    starts: list[float] = []
    stops: list[float] = []
    for task, weight in zip(graph.tasks, task_weights(graph, weights).tolist(), strict=True):
        starts.append(max([stops[before] for before in task.after], default=0.0))
        stops.append(starts[-1] + weight)
    return np.array(starts), np.array(stops)


def critical_path(graph: TaskGraph, weights: Weights | None = None) -> list[int]:
    """Return the heaviest chain of tasks, each of which depends on the one before.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    weights : array_like of float, shape (tasks,), optional
        What each task takes.

    Returns
    -------
    list of int
        Task indices, from the first to the last.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> graph = lu_tasks(TileLayout(9, 9, 3))
    >>> [graph.tasks[i].kind for i in critical_path(graph)]
    ['getrf', 'trtri', 'trmm', 'gemm', 'getrf', 'trtri', 'trmm', 'gemm', 'getrf']
    """
    _, stops = earliest_times(graph, weights)
    # Where tasks of no weight tie, the earliest: what follows them adds nothing.
    at = int(stops.argmax()) if len(stops) else -1
    path: list[int] = []
    while at >= 0:
        path.append(at)
        at = max(graph.tasks[at].after, key=stops.__getitem__, default=-1)
    return path[::-1]


def total_work(graph: TaskGraph, weights: Weights | None = None) -> float:
    """Return the sum of the weights of all tasks.

    Examples
    --------
    >>> from hetero_la.algorithms.cholesky import cholesky_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> total_work(cholesky_tasks(TileLayout(9, 9, 9)))  # n^3 / 3
    243.0
    """
    return float(task_weights(graph, weights).sum())


def average_parallelism(graph: TaskGraph, weights: Weights | None = None) -> float:
    """Return total work over the critical path's: more workers than this are of no use.

    Examples
    --------
    >>> from hetero_la.algorithms.qr import qr_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> narrow, wide = qr_tasks(TileLayout(400, 20, 20)), qr_tasks(TileLayout(400, 400, 20))
    >>> average_parallelism(narrow), round(average_parallelism(wide), 1)
    (1.0, 7.7)
    """
    length = float(earliest_times(graph, weights)[1].max(initial=0.0))
    return total_work(graph, weights) / length if length else 0.0


def width(graph: TaskGraph, weights: Weights | None = None) -> Width:
    """Return how many tasks run at which time, if each starts as early as it can.

    Tasks of no weight take no time, and are not counted.

    Examples
    --------
    >>> from hetero_la.algorithms.qr import qr_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> graph = qr_tasks(TileLayout(9, 9, 3))
    >>> times, tasks = width(graph, [1] * len(graph))
    >>> times.tolist(), tasks.tolist()
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 2, 2, 1, 2, 1, 0])
    """
    starts, stops = earliest_times(graph, weights)
    busy = stops > starts
    times, place = np.unique(np.concatenate([starts[busy], stops[busy]]), return_inverse=True)
    change = np.repeat([1, -1], int(busy.sum()))
    counts = np.bincount(place, weights=change, minlength=len(times)).cumsum()
    return Width(times, counts.astype(np.intp))
