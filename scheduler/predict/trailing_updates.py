"""How long each worker's part of a step's trailing update takes, for very many workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hetero_la.scheduler.graph.step_calls import StepCalls
from hetero_la.scheduler.graph.step_kernels import Call


class Phases:
    """Trailing updates, of tile columns that are dealt out one by one.

    In phase p step p is applied to what is neither up to date nor one of the next `depth`
    columns (`lookahead.Order.phase`), in as many calls as `programs` merges it into.

    Parameters
    ----------
    steps : StepCalls
        What a step calls.
    workers, depth : int
        How many workers, and look-ahead.
    seconds : callable
        Time of some calls, one after the other.

    Examples
    --------
    >>> from hetero_la.algorithms.qr import qr_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> steps = StepCalls(qr_tasks, TileLayout(6, 5, 1))
    >>> def width(calls):
    ...     return float(sum(call.shapes[-1][1] for call in calls))
    >>> phases = Phases(steps, 2, 1, width)
    >>> [phases.of(p).tolist() for p in range(4)]
    [[2.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        steps: StepCalls,
        workers: int,
        depth: int,
        seconds: Callable[[Sequence[Call]], float],
    ) -> None:
        self._steps, self._depth, self._seconds = steps, depth, seconds
        self._team = np.arange(workers)
        self._known: dict[int, np.ndarray] = {}
        layout = steps.layout
        self._nt = layout.nt
        # Where only neighbours in the matrix make one kernel call, and each worker has none, what
        # a column costs depends on the step's tile size alone: size -> seconds of each column,
        # and of each with the same worker's later ones.
        self._single = steps.trapezoid and workers > 1
        self._by_size: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._widths = self._with_later(np.array([*layout.column_widths, *[0] * workers]))

    def _with_later(self, columns: np.ndarray) -> np.ndarray:
        """For each tile column the sum over it and the same worker's later ones."""
        total, workers = columns.copy(), len(self._team)
        for j in range(self._nt - 1, -1, -1):
            total[j] += total[j + workers]
        return total

    def _single_columns(self, phase: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of each tile column, and with the later ones, where a kernel call is for one."""
        size = self._steps.layout.column_width(phase)
        if size not in self._by_size:
            columns = np.zeros(self._nt + len(self._team))
            for j in range(phase + 1, self._nt):
                columns[j] = self._seconds(self._steps.update(phase, j))
            self._by_size[size] = columns, self._with_later(columns)
        return self._by_size[size]

    def of(self, phase: int) -> np.ndarray:
        """Seconds of each worker, shape (workers,)."""
        if phase not in self._known:
            self._known[phase] = self._made(phase)
        return self._known[phase]

    def forget(self, phase: int) -> None:
        """Drop what will not be asked for again."""
        self._known.pop(phase, None)

    def first(self, phase: int, worker: int) -> float:
        """Seconds until the worker's first column is up to date."""
        if self._single:
            columns, _ = self._single_columns(phase)
            return float(columns[self._columns(phase)[worker]])
        return float(self.of(phase)[worker])

    def _start(self, phase: int) -> int:
        """First tile column of a phase."""
        return min(phase + self._depth + 1, max(self._steps.layout.kt, phase + 1))

    def _columns(self, phase: int) -> np.ndarray:
        """First tile column of each worker, or one beyond the last of all."""
        start = self._start(phase)
        own: np.ndarray = start + (self._team - start) % len(self._team)
        return np.minimum(own, self._nt)

    def _made(self, phase: int) -> np.ndarray:
        own = self._columns(phase)
        if self._single:
            _, with_later = self._single_columns(phase)
            return with_later[own]
        widths = self._widths[own]
        seconds = np.zeros(len(own))
        for width in np.unique(widths[widths > 0]).tolist():
            calls = self._steps.update(phase, self._start(phase), width)
            seconds[widths == width] = self._seconds(calls)
        return seconds
