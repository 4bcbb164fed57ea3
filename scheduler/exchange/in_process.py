"""Messages by reference between workers that are threads of one process."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from hetero_la.scheduler.exchange.port import Port
from hetero_la.scheduler.exchange.priority_lock import PriorityLock
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.program.instructions import Instruction, ReceiveMessage
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.tiles.arrays.transfer import is_device_array
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue

#: Seconds that the host leaves to the first consumer of a message to come to its copy.
_COPY_SECONDS = 1e-3


class Offered(NamedTuple):
    """Arrays of a message, an event when they are ready, and the device that reads them."""

    arrays: list[Array]
    ready: Event
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
    lock : PriorityLock
        For which threads that enqueue for GPUs take turns.
    worker : int
        Index of the worker.
    device : Device
        Its device.
    """

    def __init__(self, table: WaitTable, lock: PriorityLock, worker: int, device: Device) -> None:
        self._table, self._worker, self._device = table, worker, device
        self._takes_turns = device.enqueues
        self._lock = lock if self._takes_turns else PriorityLock()

    def check_in(self, instruction: Instruction) -> None:
        """Let threads with more urgent work enqueue first, before an instruction."""
        self._table.check()
        self._table.note_progress()
        self._lock.yield_to(instruction.urgency)

    def check(self) -> None:
        """Raise RunAbortedError if the run was aborted."""
        self._table.check()

    def enqueuing(
        self, instructions: Sequence[Instruction]
    ) -> contextlib.AbstractContextManager[None]:
        """Enqueue instructions as the only thread of the process."""
        if not instructions:
            return contextlib.nullcontext()
        return self._lock.held(instructions[0].urgency)

    def waiting(self, instruction: Instruction) -> contextlib.AbstractContextManager[None]:
        """Let others enqueue while this worker may have to wait."""
        return self._lock.released(instruction.urgency)

    def offer(self, message: Message, arrays: list[Array], queue: Queue) -> None:
        """Offer a message by reference."""
        self._table.put(message.key, (arrays, self._device.record(queue)))

    @contextlib.contextmanager
    def taking(self, message: Message, receive: ReceiveMessage) -> Iterator[Offered]:
        """Take a message in the block, once its first consumer has its copy."""
        arrays, ready = self._get(message.key, receive)
        offered = Offered(arrays, ready, self._device)
        self._device.wait(Queue.COPY, offered.ready)
        first = message.first == self._worker
        if self._takes_turns and not first:
            self._device.wait(Queue.COPY, self._first_copy(message.key, receive))
        yield offered
        if self._takes_turns and first:
            self._table.put((message.key, "copied"), self._device.record(Queue.COPY))

    def note_taken(self, key: MessageKey, queue: Queue) -> None:
        """Tell the sender that a message is no longer read once `queue` has come here."""
        self._table.put((key, self._worker), self._device.record(queue))

    def taken(self, key: MessageKey, consumer: int, instruction: Instruction) -> Event:
        """Return when `consumer` no longer reads a message."""
        return self._get((key, consumer), instruction)

    def _get(self, key: Hashable, instruction: Instruction) -> Any:
        """Return the value that another worker puts under `key`, once it is there."""
        if key not in self._table:
            with self.waiting(instruction):
                self._table.wait(key)
        return self._table.get(key)

    def _first_copy(self, key: MessageKey, instruction: Instruction) -> Event:
        """Return when the first consumer of a message has its copy; None if that is not known.

        It makes what everybody waits for next.  But it may come to its copy much later than
        expected: that is not worth waiting for.
        """
        with self.waiting(instruction):
            there = self._table.wait((key, "copied"), at_most=_COPY_SECONDS)
        return self._table.get((key, "copied")) if there else None
