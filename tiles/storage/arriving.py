"""Columns of a matrix on the host, copied to a device by a thread of their own.

The thread that runs a program would otherwise fill pinned buffers before it enqueues the first
kernels, and load or compile these only after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue
from hetero_la.tiles.storage.staging import Staging


class ColumnCopy(NamedTuple):
    """A column that is to be copied: its first element column, where it goes, and its source."""

    start: int
    target: Array
    source: Array


class ArrivingColumns:
    """Copies of columns to a device, one after the other, which begin at once.

    Parameters
    ----------
    device : Device
        The device, which is active here.  The thread uses its companion, whose copies begin when
        the device's copy queue has come here.
    columns : sequence of ColumnCopy
        The columns, in order.
    then : callable
        Called by the thread once all have been copied.
    """

    def __init__(
        self, device: Device, columns: Sequence[ColumnCopy], then: Callable[[], None]
    ) -> None:
        self._device, self._ready = device.companion, device.record(Queue.COPY)
        self._columns, self._then = columns, then
        self._arrived: dict[int, Future[Event]] = {column.start: Future() for column in columns}
        self._stopped = threading.Event()
        # The thread gets a list of its own: `wait_for` may take columns before it runs.
        arrivals = list(self._arrived.values())
        self._thread = threading.Thread(
            target=self._copy, args=(arrivals,), name="hetero-la-load", daemon=True
        )
        self._thread.start()

    def wait_for(self, start: int) -> Event:
        """Return the event of a column's arrival, once its copy is enqueued; None on a host."""
        return self._arrived.pop(start).result()

    def wait(self) -> None:
        """Wait until all columns have been copied, or the copies have ended early."""
        self._thread.join()

    def stop(self) -> None:
        """End the copies, and wait until nobody reads the sources, or uses the companion."""
        self._stopped.set()
        self._thread.join()

    def _copy(self, arrivals: list[Future[Event]]) -> None:
        try:
            with self._device.activate():
                self._device.wait(Queue.COPY, self._ready)
                nbytes = sum(column.target.nbytes for column in self._columns)
                staging = Staging(self._device, nbytes=nbytes)
                try:
                    copies = staging.upload_each(self._wanted())
                    for arrived, _ in zip(arrivals, copies, strict=True):
                        arrived.set_result(self._device.record(Queue.COPY))
                    self._then()
                finally:
                    staging.abandon()  # of what is complete, nothing is left to wait for
                    self._device.synchronize()
        except BaseException as error:  # which the thread that waits for a column raises
            for arrived in arrivals:
                if not arrived.done():
                    arrived.set_exception(error)

    def _wanted(self) -> Iterator[tuple[Array, Array]]:
        for _, target, source in self._columns:
            if self._stopped.is_set():
                raise RunAbortedError("the run has ended before all columns were loaded")
            yield target, source
