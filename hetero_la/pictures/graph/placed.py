"""Task graph with workers, weights and critical path, as pictures show it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_la.scheduler.graph.analysis import average_parallelism, critical_path, total_work
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.arrays.displayed import as_html, one_line


@dataclass(frozen=True, eq=False, repr=False)
class PlacedGraph:
    """A task graph whose tasks have workers and weights.

    Attributes
    ----------
    graph : TaskGraph
        The tasks.
    placement : sequence of int
        Worker of each task.
    workers : sequence of str
        Names of the workers.
    weights : numpy.ndarray, shape (tasks,)
        Predicted seconds of each task, from which the critical path follows.
    title : str
        Title of the pictures.

    Examples
    --------
    >>> import hetero_la
    >>> placed = hetero_la.plan("lu", (4, 4), nb=2).graph.placed()
    >>> placed.title, len(placed.graph)
    ('LU of 4 × 4, tiles of 2, the calling thread', 9)
    """

    graph: TaskGraph
    placement: Sequence[int]
    workers: Sequence[str]
    weights: np.ndarray
    title: str

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return one_line("PlacedGraph", counted(len(self.graph), "task"), self.title)

    @functools.cached_property
    def path(self) -> list[int]:
        """Task indices on the critical path."""
        return critical_path(self.graph, self.weights)

    @functools.cached_property
    def kinds(self) -> list[str]:
        """Kernels, in the order in which the builder first uses them."""
        return list(dict.fromkeys(task.kind for task in self.graph.tasks))

    @functools.cached_property
    def steps(self) -> int:
        """Number of steps, those after the factorization included."""
        return max((task.step for task in self.graph.tasks), default=-1) + 1

    @property
    def summary(self) -> str:
        """Size, critical path and parallelism, in one line."""
        on_path = in_seconds(float(self.weights[self.path].sum()))
        work = in_seconds(total_work(self.graph, self.weights))
        parallelism = average_parallelism(self.graph, self.weights)
        return (
            f"{counted(len(self.graph), 'task')}; critical path "
            f"{counted(len(self.path), 'task')}, {on_path} of {work} of work; "
            f"average parallelism {parallelism:.3g}"
        )

    def column_name(self, column: int) -> str:
        """Return the name of a tile column; those beyond the matrix are right-hand sides."""
        nt = self.graph.layout.nt
        return f"column {column}" if column < nt else f"rhs {column - nt}"
