"""Columns of a result on their way from a device to pageable memory, by a thread of their own.

The thread that runs a program goes on with the next steps meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hetero_la.tiles.kernels.device import Array, Device, Event, Queue
from hetero_la.tiles.storage.staging import Staging


@dataclass(frozen=True)
class Departure:
    """A column on its way.

    Attributes
    ----------
    issued : Future
        The event after which the device has read the column, and what ends with each piece of it.
    """

    issued: Future[tuple[Event, list[Future[None]]]]

    def let_overwrite(self, device: Device, queue: Queue) -> None:
        """Let a queue of the device wait until the column has been read."""
        device.wait(queue, self.issued.result()[0])

    def wait(self) -> None:
        """Wait until the column is in the user's memory."""
        for piece in self.issued.result()[1]:
            piece.result()


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
        self._departures: list[Departure] = []

    def store(self, target: Array, source: Array, ready: Callable[[], None]) -> Departure:
        """Copy to the user's memory once the STORE queue has come here; complete after `flush`.

        The thread calls `ready` first.
        """
        final = self._device.record(Queue.STORE)
        departure = Departure(self._thread.submit(self._copy, final, target, source, ready))
        self._departures.append(departure)
        return departure

    def _copy(
        self, final: Event, target: Array, source: Array, ready: Callable[[], None]
    ) -> tuple[Event, list[Future[None]]]:
        self._before()
        with self._companion.activate():
            final.synchronize()
            ready()
            pieces = self._staging.download(target, source)
            return self._companion.record(Queue.STORE), pieces

    def flush(self) -> None:
        """Wait until all columns are in the user's memory."""
        for departure in self._departures:
            departure.issued.result()
        self._staging.flush()
        self._thread.shutdown()

    def abandon(self) -> None:
        """End the copies, after an error, and wait until nobody writes to the user's memory."""
        self._thread.shutdown(cancel_futures=True)
        self._staging.abandon()
