"""Placement: the worker of each task, as a pure function of graph and distribution."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import TaskBlock
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.tiles.kernels.device import DeviceKind
from hetero_la.tiles.kernels.spec import SPECS


def panels_alone(kinds: Sequence[DeviceKind], panel_worker: int | None) -> bool:
    """Return whether a panel is factored with all of its GPU, as other GPUs wait for it.

    Parameters
    ----------
    kinds : sequence of {"cpu", "gpu"}
        Kinds of the owners of columns.
    panel_worker : int or None
        Worker that factors every panel; None if owners do.

    Examples
    --------
    >>> panels_alone(["gpu", "gpu"], None), panels_alone(["gpu"], None)
    (True, False)
    """
    return panel_worker is None and len(kinds) > 1 and set(kinds) == {"gpu"}


class Placement:
    """Worker of each task: ``placement[i]`` is that of ``graph.tasks[i]``.

    A task runs on the owner of its column.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    distribution : Distribution
        Owners of the tile columns.
    panel_worker : int or None, optional
        Worker that factors every panel; None leaves panels to the owners.

    Examples
    --------
    >>> from hetero_la.algorithms.qr import qr_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> graph = qr_tasks(TileLayout(4, 4, 2))
    >>> columns = Distribution.cyclic(2, [1.0, 1.0, 0.0])
    >>> list(zip([task.kind for task in graph.tasks], Placement(graph, columns, 2)))
    [('geqrf', 2), ('larfb_c', 1), ('geqrf', 2), ('lacpy', 0), ('lacpy', 1)]
    """

    def __init__(
        self, graph: TaskGraph, distribution: Distribution, panel_worker: int | None = None
    ) -> None:
        self._graph, self._owners, self._kt = graph, distribution.owners, graph.layout.kt
        self.panel_worker = panel_worker
        self._divided: dict[tuple[int, int], dict[int, Sequence[int]]] = {}

    def __len__(self) -> int:
        return len(self._graph)

    def __getitem__(self, index: int) -> int:
        return self._workers[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    @functools.cached_property
    def _workers(self) -> list[int]:
        workers = [0] * len(self._graph)
        for block in self._graph.blocks:
            for column in range(block.start, block.stop):
                workers[block.index(column)] = self.worker(block, column)
        return workers

    def is_panel(self, block: TaskBlock) -> bool:
        """Return whether a block is a task of a panel's factorization."""
        return block.step == block.start < self._kt and SPECS[block.kind].chain

    def worker(self, block: TaskBlock, column: int) -> int:
        """Return the worker of a block's task on `column`, which a single task ignores."""
        if self.panel_worker is not None and self.is_panel(block):
            return self.panel_worker
        return self._owners[block.start if block.single else column]

    def shares(self, block: TaskBlock) -> Mapping[int, Sequence[int]]:
        """Return, for each worker of a block, in order of columns, the columns that it computes."""
        if self.panel_worker is not None and self.is_panel(block):
            return {self.panel_worker: (block.start,)}
        key = block.start, block.stop
        shares = self._divided.get(key)
        if shares is None:
            divided: dict[int, list[int]] = {}
            for column in range(*key):
                divided.setdefault(self._owners[column], []).append(column)
            shares = self._divided[key] = {w: tuple(columns) for w, columns in divided.items()}
        return shares
