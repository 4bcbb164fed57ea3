"""Storage of one worker's columns side by side in one array, filled and read by others."""

from __future__ import annotations

import numpy as np

from hetero_la.scheduler.run.job import Job
from hetero_la.tiles.arrays.device import Array, Device, Queue
from hetero_la.tiles.arrays.transfer import device_index
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ALL_ROWS

Span = tuple[int, int]  #: first element column, and the one past the last


class LocalStorage:
    """A worker's columns side by side in one array, on the host or on a GPU.

    Parameters
    ----------
    array : array, shape (m, width)
        Column-major.
    spans : dict
        First element column in the matrix -> span in `array`.
    """

    def __init__(self, array: Array, spans: dict[int, Span]) -> None:
        self.array, self._spans = array, spans

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return the array itself, where the device can work in it."""
        place = device_index(self.array)
        here = device.by_reference if place is None else device.index == place
        return (self.array, True) if here else (None, False)

    def load(self, device: Device, start: int, stop: int, target: Array) -> None:
        """Copy columns to the device."""
        device.copy(target, self.block(start), Queue.COPY)

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy columns back."""
        device.copy(self.block(start)[rows], source[rows], Queue.COPY)

    def flush(self, device: Device) -> None:
        """Do nothing: `Device.synchronize` completes the copies."""

    def block(self, start: int, last: int | None = None) -> Array:
        """Return the tile column that begins at element column `start`, without a copy.

        With `last`, return the adjacent columns from there to the one that begins at `last`.
        """
        stop = self._spans[start if last is None else last][1]
        return self.array[:, self._spans[start][0] : stop]

    def diagonal_extent(self, layout: TileLayout) -> dict[tuple[str, int], np.ndarray]:
        """Return ("diagonal", start) -> smallest and largest modulus of each diagonal tile."""
        extent = {}
        for start in self._spans:
            if start < min(layout.m, layout.n):
                size = abs(self.block(start)[start:].diagonal())
                extent["diagonal", start] = np.array([float(size.min()), float(size.max())])
        return extent


def local_spans(job: Job, worker: int) -> dict[int, Span]:
    """Return first element column -> span in the shard, for each tile column of a worker."""
    spans, stop = {}, 0
    for column in job.programs[worker].columns:
        first, last = job.layout.columns(column)
        spans[first] = stop, stop + last - first
        stop += last - first
    return spans
