"""Task graph of a plan, in which each task has a worker."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.pictures.graph.files import draw, require_suffix
from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.planning.decisions import Decisions
from hetero_la.scheduler.graph.task_graph import Granularity, TaskGraph
from hetero_la.scheduler.machine.model import graph_seconds
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement

if TYPE_CHECKING:
    import networkx


class PlannedGraph(TaskGraph):
    """Task graph of a plan, with the worker and the predicted seconds of each task.

    Parameters
    ----------
    graph : TaskGraph
        Graph whose tasks are shared.
    decided : Decisions
        Routine, element type, workers, and their machine model.
    distribution : Distribution
        Owner of each tile column.

    Examples
    --------
    >>> import hetero_la
    >>> graph = hetero_la.plan("lu", (1000, 1000), nb=250).graph
    >>> len(graph), graph.to_networkx().nodes[0]["owner"]
    (34, 0)
    """

    def __init__(self, graph: TaskGraph, decided: Decisions, distribution: Distribution) -> None:
        super().__init__(graph.layout, graph.granularity)
        vars(self).update(vars(graph))
        self.decided, self.distribution = decided, distribution

    @functools.cached_property
    def placement(self) -> list[int]:
        """Worker of each task, as an index into `workers`."""
        return list(Placement(self, self.distribution, self.decided.panel_worker))

    @functools.cached_property
    def seconds(self) -> np.ndarray:
        """Predicted seconds of each task on its worker, without transfers; shape (tasks,)."""
        return graph_seconds(self, self.placement, self.decided.model, self.decided.dtype)

    def to_networkx(
        self, dtype: Any = None, placement: Sequence[int] | None = None
    ) -> networkx.DiGraph:
        """Return the graph for analysis, drawing and export, its nodes with their ``owner``.

        As `TaskGraph.to_networkx`, with the plan's dtype and placement by default.
        """
        return super().to_networkx(
            self.decided.dtype if dtype is None else dtype,
            self.placement if placement is None else placement,
        )

    def placed(self, granularity: Granularity = "column") -> PlacedGraph:
        """Return the graph as it is drawn, with its workers and predicted times.

        Parameters
        ----------
        granularity : {"column", "tile"}, optional
            Size of a task: one column of tiles, as in a run, or one tile.

        Raises
        ------
        ValueError
            For another granularity.
        """
        if granularity not in ("column", "tile"):
            raise ValueError(f"granularity must be 'column' or 'tile', not {granularity!r}")
        decided = self.decided
        title = f"{decided.heading}{', tile by tile' if granularity == 'tile' else ''}"
        names = [worker.name for worker in decided.workers]
        if granularity == "column":
            return PlacedGraph(self, self.placement, names, self.seconds, title)
        graph = ROUTINES[decided.routine].tasks(self.layout, granularity)
        placement = list(Placement(graph, self.distribution, decided.panel_worker))
        seconds = graph_seconds(graph, placement, decided.model, decided.dtype)
        return PlacedGraph(graph, placement, names, seconds, title)

    def draw(
        self,
        path: str | os.PathLike[str],
        *,
        granularity: Granularity = "column",
        collapse: bool | None = None,
    ) -> None:
        """Draw the graph with its workers and its critical path.

        Parameters
        ----------
        path : path
            File to write, in the format of its suffix: ``.svg``, ``.png`` (with the extra `viz`),
            ``.dot`` or ``.html``, a page that zooms and needs no network.
        granularity : {"column", "tile"}, optional
            Size of a task: one column of tiles, as in a run, or one tile.
        collapse : bool, optional
            Whether to draw all tasks of one step, kind and worker as one mark; by default this is
            done for graphs that are too large to be read task by task.

        Raises
        ------
        ValueError
            For another suffix or granularity, and for ``.png`` where Matplotlib is
            missing.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import hetero_la
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "lu.svg"
        ...     hetero_la.plan("lu", (400, 400), nb=100).graph.draw(path)
        ...     path.read_text().count(">getrf<")
        4
        """
        require_suffix(path)  # before the graph is built
        draw(self.placed(granularity), path, collapse=collapse)
