"""Matrices in files as the home of columns: read and written in parts, never as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from hetero_la.tiles.kernels.device import Array, Device, Event, Queue
from hetero_la.tiles.storage.shard import ALL_ROWS, Wanted
from hetero_la.tiles.storage.staging import Staging

#: Columns on their way to the file, each with a buffer of its own.
_DEPARTING = 4


class StoredMatrix(Protocol):
    """A matrix that can be read and written in parts: a memory map, an array of h5py or Zarr."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, part: tuple[slice, slice]) -> Any:
        """Read a part."""

    def __setitem__(self, part: tuple[slice, slice], value: np.ndarray) -> None:
        """Write a part."""


class FileStorage:
    """Storage that reads columns from one stored matrix, and writes them to another.

    A thread of its own writes, so that runs go on meanwhile.

    Parameters
    ----------
    source, target : StoredMatrix, shape (m, n)
        The matrix, and its result; `target` also gives back what was written.
    lower : bool, optional
        Whether only the lower triangle of the result counts: what is above is written as zeros.
    keep : callable, optional
        Called with the first column, the rows, and what they hold, before rows that the run has
        written are written again.
    """

    def __init__(
        self, source: StoredMatrix, target: StoredMatrix,
        keep: Callable[[int, slice, np.ndarray], None] = lambda start, rows, old: None, *,
        lower: bool = False,
    ) -> None:  # fmt: skip
        self.source, self.target, self._keep, self._lower = source, target, keep, lower
        self._thread = ThreadPoolExecutor(1, "hetero-la-store")
        self._free = threading.Semaphore(_DEPARTING)
        #: First column -> rows that were stored, and what ends when they are written.
        self._written: dict[int, list[tuple[slice, Future[None]]]] = {}
        self._staging: dict[Device, Staging] = {}

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return nothing: no worker can work in a file."""
        return None, False

    def begin_loading(self, device: Device, columns: Sequence[Wanted]) -> None:
        """Do nothing: columns are read when they are needed."""

    def load(
        self, device: Device, start: int, stop: int, target: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Read rows of some columns."""
        self._upload(device, target, self.source[rows, start:stop])

    def reload(
        self, device: Device, start: int, stop: int, target: Array, rows: slice,
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        """Read rows of what was written before."""
        for _, written in self._written.get(start, ()):
            written.result()
        self._upload(device, target, self.target[rows, start:stop])

    def let_read(self, device: Device, start: int, count: int, check: Callable[[], None]) -> None:
        """Do nothing: there is one worker."""

    def let_overwrite(self, device: Device, start: int, queue: Queue) -> None:
        """Do nothing: the STORE queue itself reads."""

    def _upload(self, device: Device, target: Array, part: Any) -> None:
        staging = self._staging.setdefault(device, Staging(device))
        staging.upload(target, np.asarray(part, target.dtype))

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Let the thread write rows of some columns; wait if it has many to write."""
        self._free.acquire()
        buffer = np.empty(source.shape, source.dtype, order="F")
        device.copy(buffer, source, Queue.STORE)
        arrived = device.record(Queue.STORE)
        before = self._written.setdefault(start, [])
        again = any(_overlap(rows, others) for others, _ in before)
        columns = slice(start, stop)
        write = self._thread.submit(self._write, arrived, buffer, columns, rows, again)
        before.append((rows, write))

    def _write(
        self, arrived: Event, buffer: np.ndarray, columns: slice, rows: slice, again: bool
    ) -> None:
        try:
            if arrived is not None:
                arrived.synchronize()
            if again:
                self._keep(columns.start, rows, np.asarray(self.target[rows, columns]))
            if self._lower:
                above = np.triu_indices(buffer.shape[1], rows.start - columns.start + 1)
                inside = above[0] < buffer.shape[0]
                buffer[above[0][inside], above[1][inside]] = 0
            self.target[rows, columns] = buffer
        finally:
            self._free.release()

    def settle(self) -> None:
        """Wait until all that was stored has been written."""
        for column in self._written.values():
            for _, written in column:
                written.result()

    def flush(self, device: Device) -> None:
        """Wait until all columns have been written."""
        device.synchronize()
        self.settle()
        self._thread.shutdown()

    def abandon(self, device: Device) -> None:
        """End the writing, after an error, and wait until nobody writes to the file any more."""
        self._thread.shutdown(cancel_futures=True)
        for staging in self._staging.values():
            staging.abandon()


def _overlap(one: slice, other: slice) -> bool:
    return bool(one.start < other.stop and other.start < one.stop)
