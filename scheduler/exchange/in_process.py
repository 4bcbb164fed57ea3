"""Messages by reference between workers that are threads of one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hetero_la.scheduler.exchange.enqueuer import Enqueuer
from hetero_la.scheduler.exchange.port import Issuer, Port
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.program.instructions import Instruction, ReceiveMessage
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.tiles.arrays.transfer import is_device_array
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue


class _Message(NamedTuple):
    """The worker that needs a message first, its arrays, and an event when they are ready."""

    first: int
    arrays: list[Array]
    ready: Event


class Offered(NamedTuple):
    """Arrays of a message, and the device that reads them."""

    arrays: list[Array]
    reader: Device

    def reference(self, place: int) -> Array | None:
        """Return an array that the reader can use where it is, else None."""
        array = self.arrays[place]
        return array if self.reader.by_reference and not is_device_array(array) else None

    def copy(self, place: int, target: Array) -> None:
        """Enqueue a copy of an array on the reader's COPY queue."""
        self.reader.copy(target, self.arrays[place], Queue.COPY)


class ThreadPort(Port):
    """Port of a worker whose run's other workers are threads of the same process.

    Parameters
    ----------
    table : WaitTable
        The run's messages.
    enqueuer : Enqueuer or None
        The run's threads that enqueue; None for a worker that is alone, which waits for no turn.
    worker : int
        Index of the worker.
    device : Device
        Its device.
    """

    def __init__(
        self, table: WaitTable, enqueuer: Enqueuer | None, worker: int, device: Device
    ) -> None:
        self._table, self._worker, self.device = table, worker, device
        self._enqueuer = enqueuer if device.enqueues else None
        if self._enqueuer is not None:
            self._enqueuer.workers.add(worker)
        self.busy = False  #: whether a thread waits in the middle of an instruction

    def issue(self, instructions: Sequence[Instruction], places: range, issuer: Issuer) -> None:
        """Issue instructions; those of GPUs by whichever thread has the turn."""
        if self._enqueuer is not None:
            self._enqueuer.run(self, instructions, places, issuer)
        else:
            super().issue(instructions, places, issuer)

    def check_in(self) -> None:
        """Raise RunAbortedError if the run was aborted; note that it goes on."""
        self.check()
        self._table.note_progress()

    def check(self) -> None:
        """Raise RunAbortedError if the run was aborted."""
        self._table.check()

    def there(self, instruction: Instruction) -> bool:
        """Return whether what an instruction waits for is there, or enqueued."""
        if any(pair not in self._table for pair in instruction.awaits):
            return False
        return not isinstance(instruction, ReceiveMessage) or instruction.message in self._table

    def waits_for_copy(self, instruction: Instruction) -> bool:
        """Return whether others should be served before a message that is there is copied.

        The first consumer of a message makes what everybody waits for next.
        """
        if not isinstance(instruction, ReceiveMessage) or self._enqueuer is None:
            return False
        first = self._table.get(instruction.message).first
        copied = (instruction.message, "copied") in self._table
        return first != self._worker and first in self._enqueuer.workers and not copied

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others enqueue while this worker may have to wait."""
        if self._enqueuer is None or self.busy:  # the turn is left already
            yield
            return
        self.busy = True
        try:
            with self._enqueuer.released():
                yield
        finally:
            self.busy = False  # only now that the turn is back

    def offer(self, message: Message, arrays: list[Array], queue: Queue) -> None:
        """Offer a message by reference."""
        ready = self.device.record(queue)
        self._table.put(message.key, _Message(message.first, arrays, ready))

    @contextlib.contextmanager
    def taking(self, message: Message, receive: ReceiveMessage) -> Iterator[Offered]:
        """Take a message in the block, once its first consumer has its copy."""
        found, copied = self._table.get(message.key), (message.key, "copied")
        self.device.wait(Queue.COPY, found.ready)
        first = message.first == self._worker
        if self._enqueuer and not first and copied in self._table:
            self.device.wait(Queue.COPY, self._table.get(copied))
        yield Offered(found.arrays, self.device)
        if self._enqueuer and first:
            self._table.put(copied, self.device.record(Queue.COPY))

    def note_taken(self, key: MessageKey, queue: Queue) -> None:
        """Tell the sender that a message is no longer read once `queue` has come here."""
        self._table.put((key, self._worker), self.device.record(queue))

    def taken(self, key: MessageKey, consumer: int) -> Event:
        """Return when `consumer` no longer reads a message."""
        return self._table.get((key, consumer))
