"""Columns of a result on their way from a device to pageable memory, by a thread of their own.

The thread that runs a program goes on with the next steps meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from hetero_la.tiles.kernels.device import Array, Device, Event, Queue
from hetero_la.tiles.storage.staging import Staging

#: What ends with each piece of a column.
Pieces = list[Future[None]]


class DepartingColumns:
    """Copies of columns from a device, one after the other, each once it is final.

    Parameters
    ----------
    device : Device
        The device.  The thread uses the STORE queue of its companion.
    nbytes : int
        Bytes that are to be copied.
    before : callable
        What the thread waits for first: columns on their way to the device need the memory's time
        more, as the run waits for them.
    """

    def __init__(self, device: Device, nbytes: int, before: Callable[[], None]) -> None:
        self._device, self._companion, self._before = device, device.companion, before
        self._staging = Staging(self._companion, nbytes=nbytes)
        self._thread = ThreadPoolExecutor(1, "hetero-la-store")
        self._copies: list[Future[Pieces]] = []

    def store(self, target: Array, source: Array, ready: Callable[[], None]) -> Callable[[], None]:
        """Copy to the user's memory once the STORE queue has come here; complete after `flush`.

        The thread calls `ready` first.  Return a function that waits for this copy.
        """
        final = self._device.record(Queue.STORE)
        copied = self._thread.submit(self._copy, final, target, source, ready)
        self._copies.append(copied)
        return partial(_wait_for, copied)

    def _copy(
        self, final: Event, target: Array, source: Array, ready: Callable[[], None]
    ) -> Pieces:
        self._before()
        with self._companion.activate():
            final.synchronize()
            ready()
            return self._staging.download(target, source)

    def flush(self) -> None:
        """Wait until all columns are in the user's memory."""
        for copied in self._copies:
            copied.result()
        self._staging.flush()
        self._thread.shutdown()

    def abandon(self) -> None:
        """End the copies, after an error, and wait until nobody writes to the user's memory."""
        self._thread.shutdown(cancel_futures=True)
        self._staging.abandon()


def _wait_for(copied: Future[Pieces]) -> None:
    for piece in copied.result():
        piece.result()
