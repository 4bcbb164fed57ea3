"""Time of each worker's part of a step's trailing update, for very many workers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from hetero_la.tiles.storage.layout import TileLayout


class TrailingUpdates:
    """Times of trailing updates of tile columns that are dealt out cyclically, one by one.

    In phase p, step p is applied to all later columns but the next `depth` ones
    (`lookahead.Order.phase`), in the same merged calls as in programs.

    Parameters
    ----------
    layout : TileLayout
        How the matrix is cut.
    workers, depth : int
        Number of workers, and look-ahead.
    seconds : callable
        Time of step k on a number of columns from tile column j on.
    single : bool
        Whether a kernel call is for one tile column.

    Examples
    --------
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> updates = TrailingUpdates(TileLayout(6, 5, 1), 2, 1, lambda k, j, width: width, False)
    >>> [updates.worker_seconds(p).tolist() for p in range(4)]
    [[2.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self, layout: TileLayout, workers: int, depth: int,
        seconds: Callable[[int, int, int], float], single: bool,
    ) -> None:  # fmt: skip
        self._layout, self._depth, self._seconds, self._single = layout, depth, seconds, single
        self._team = np.arange(workers)
        #: Seconds of each worker in a phase, shape (workers,).
        self.worker_seconds = functools.lru_cache(depth + 2)(self._worker_seconds)
        self._nt = layout.nt
        # Where a kernel call is for one column, its time depends on the step's tile size alone:
        # size -> seconds of each column, and the sum with the same worker's later ones.
        self._by_size: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._widths = self._with_later(np.array([*layout.column_widths, *[0] * workers]))

    def _with_later(self, columns: np.ndarray) -> np.ndarray:
        """Return for each tile column the sum over it and the same worker's later ones."""
        total, workers = columns.copy(), len(self._team)
        for j in range(self._nt - 1, -1, -1):
            total[j] += total[j + workers]
        return total

    def _single_columns(self, phase: int) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds of each tile column, and with the later ones, if each has its own call."""
        size = self._layout.column_width(phase)
        if size not in self._by_size:
            columns = np.zeros(self._nt + len(self._team))
            for j in range(phase + 1, self._nt):
                columns[j] = self._seconds(phase, j, self._layout.column_width(j))
            self._by_size[size] = columns, self._with_later(columns)
        return self._by_size[size]

    def first_column_seconds(self, phase: int, worker: int) -> float:
        """Return the seconds until the worker's first column is up to date."""
        if self._single:
            columns, _ = self._single_columns(phase)
            return float(columns[self._columns(phase)[worker]])
        return float(self.worker_seconds(phase)[worker])

    def _start(self, phase: int) -> int:
        """Return the first tile column of a phase."""
        return min(phase + self._depth + 1, max(self._layout.kt, phase + 1))

    def _columns(self, phase: int) -> np.ndarray:
        """Return the first tile column of each worker, or one beyond the last column."""
        start = self._start(phase)
        own: np.ndarray = start + (self._team - start) % len(self._team)
        return np.minimum(own, self._nt)

    def _worker_seconds(self, phase: int) -> np.ndarray:
        own = self._columns(phase)
        if self._single:
            _, with_later = self._single_columns(phase)
            return with_later[own]
        widths = self._widths[own]
        seconds = np.zeros(len(own))
        for width in np.unique(widths[widths > 0]).tolist():
            seconds[widths == width] = self._seconds(phase, self._start(phase), width)
        return seconds
