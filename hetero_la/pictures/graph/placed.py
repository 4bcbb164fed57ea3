"""Task graph with workers, weights and critical path, as pictures show it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_la.scheduler.graph.analysis import average_parallelism, critical_path, total_work
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.tiles.arrays.counted import counted

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def format_amount(value: float, unit: str) -> str:
    """Format a number with its unit, to three digits.

    Examples
    --------
    >>> format_amount(0.00123, "s"), format_amount(2.5e9, "flop"), format_amount(0.0, "s")
    ('1.23 ms', '2.5 Gflop', '0 s')
    """
    scale, prefix = next((p for p in _PREFIXES if value >= p[0]), _PREFIXES[-1])
    return f"{value / scale:.3g} {prefix}{unit}" if value else f"0 {unit}"


@dataclass(frozen=True, eq=False)
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
        Weight of each task, from which the critical path follows.
    unit : str
        Unit of the weights: ``"s"`` or ``"flop"``.
    title : str
        Title of the pictures.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> placed = PlacedGraph.unplaced(lu_tasks(TileLayout(4, 4, 2)), "LU")
    >>> len(placed.path), placed.summary
    (5, '9 tasks; critical path 5 tasks, 45.3 flop of 45.3 flop of work; average parallelism 1')
    """

    graph: TaskGraph
    placement: Sequence[int]
    workers: Sequence[str]
    weights: np.ndarray
    unit: str
    title: str

    @classmethod
    def unplaced(cls, graph: TaskGraph, title: str) -> PlacedGraph:
        """Return a graph without a plan: one worker, and weights in flops."""
        weights = np.array([graph.flops(task) for task in graph.tasks])
        return cls(graph, [0] * len(graph), ["any worker"], weights, "flop", title)

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
        on_path = format_amount(float(self.weights[self.path].sum()), self.unit)
        work = format_amount(total_work(self.graph, self.weights), self.unit)
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
