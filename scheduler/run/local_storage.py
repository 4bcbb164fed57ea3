"""Storage of one worker's columns side by side in one array, filled and read by others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hetero_la.tiles.arrays.transfer import device_index
from hetero_la.tiles.kernels.device import Array, Device, Queue
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ALL_ROWS

Span = tuple[int, int]  #: first element column, and the one past the last


class LocalStorage:
    """A worker's columns side by side in one array, on the host or on a GPU.

    Parameters
    ----------
    array : array, shape (m, width)
        Column-major; receives the result.
    spans : dict
        First element column in the matrix -> span in `array`.
    blocks : dict, optional
        First element column in the matrix -> its tile column, only read, and let go of once it
        is loaded; where there are none, the input is in `array`.
    """

    def __init__(
        self, array: Array, spans: dict[int, Span], blocks: dict[int, Array] | None = None
    ) -> None:
        self.array, self._spans = array, spans
        self._blocks = None if blocks is None else dict(blocks)

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return the array itself, where the device can work in it."""
        place = device_index(self.array)
        here = device.by_reference if place is None else device.index == place
        return (self.array, self._blocks is None) if here else (None, False)

    def load(self, device: Device, start: int, stop: int, target: Array) -> None:
        """Copy columns to the device."""
        source = self.block(start) if self._blocks is None else self._blocks.pop(start)
        device.copy(target, source, Queue.COPY)

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy columns back."""
        device.copy(self.block(start)[rows], source[rows], Queue.COPY)

    def flush(self, device: Device) -> None:
        """Do nothing: `Device.synchronize` completes the copies."""

    def columns(self) -> Iterator[tuple[int, int, Array]]:
        """First element column of each tile column, the one past its last, and the column."""
        for start, (first, last) in self._spans.items():
            yield start, start + last - first, self.array[:, first:last]

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


def local_spans(layout: TileLayout, columns: Sequence[int]) -> dict[int, Span]:
    """First element column of each of a worker's tile columns -> its span in the shard."""
    spans, stop = {}, 0
    for column in columns:
        first, last = layout.columns(column)
        spans[first] = stop, stop + last - first
        stop += last - first
    return spans


def whole_spans(layout: TileLayout) -> dict[int, Span]:
    """Return the spans of all columns, in the matrix's own order."""
    return local_spans(layout, range(layout.nt + layout.rt))
