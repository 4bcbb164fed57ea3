"""Data received from other workers, and its memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hetero_la.scheduler.exchange.port import Incoming
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import ReadBack, ReceiveMessage
from hetero_la.scheduler.program.messages import MessagePart, buffer_elements
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.step_memory import Name, StepMemory
from hetero_la.tiles.kernels.device import Array, Device


class Received:
    """Parts of messages that a worker has received for the updates of its own columns.

    Parameters
    ----------
    job : Job
        The run.
    worker : int
        The worker's index.
    device : Device
        Device that reads them.
    """

    def __init__(self, job: Job, worker: int, device: Device) -> None:
        self._layout, self._device, self._dtype = job.layout, device, job.dtype
        receives = job.programs[worker].select(ReceiveMessage)
        messages = [job.messages[receive.message].parts for receive in receives]
        #: Parts that have memory of their own: vectors, or what later visits need.
        own = {
            part.region[:2]: (part.shape, part.dtype)
            for parts in messages
            for part in parts
            if len(part.shape) == 1 or (part.row is None and job.programs[worker].streamed)
        }
        self._vectors = StepMemory(own, device, job.dtype)
        self._elements = buffer_elements(messages)
        self._largest = job.programs[worker].largest_read_back(job.layout)
        self._memory: dict[int, Array] = {}
        #: Buffer -> the first element row of what it was filled with last, and the array.
        self._read: dict[int, tuple[int, Array]] = {}
        self._buffers: dict[tuple[int, str, int], Array] = {}
        self._held: dict[Name, list[tuple[MessagePart, Array]]] = {}  # the latest first

    def take(
        self, parts: Sequence[MessagePart], places: Iterable[int], incoming: Incoming,
        receive: ReceiveMessage,
    ) -> None:  # fmt: skip
        """Receive some parts of one message; copy them where that is necessary."""
        names: list[str] = []
        for place in places:
            part = parts[place]
            name, index, *_ = part.region
            array = None if receive.private else incoming.reference(place)
            if array is None:
                array = self._buffer(part, receive.slot, names.count(name))
                names.append(name)
                incoming.copy(place, array)
            # A column may come in parts; parts that a later one covers are out of date.
            held = self._held.get((name, index), ())
            valid = [entry for entry in held if not part.region.covers(entry[0].region)]
            self._held[name, index] = [(part, array), *valid]

    def read_back(self, read: ReadBack) -> Array:
        """Return the buffer that part of a column is read back to."""
        _, column, start, stop = read.region
        top = self._layout.row(start)
        shape = (self._layout.row(stop) - top, self._layout.column_width(column))
        if read.slot not in self._memory:
            self._memory[read.slot] = self._device.empty((self._largest,), self._dtype)
        _, array = self._read.get(read.slot, (0, None))
        if array is None or array.shape != shape:  # in Cholesky most steps have the same view
            array = self._memory[read.slot][: math.prod(shape)].reshape(shape, order="F")
        self._read[read.slot] = top, array
        return array

    def in_buffer(self, slot: int, region: Region) -> Array:
        """Return the view of a region in the buffer that it was read back to."""
        top, array = self._read[slot]
        first, last = (self._layout.row(tile) - top for tile in (region.start, region.stop))
        return array if last - first == len(array) else array[first:last]

    def find(self, region: Region) -> Array | None:
        """Return the latest received array that has a region; None if there is none."""
        for part, array in self._held.get(region[:2], ()):
            if part.row is None:
                return array
            if part.region.covers(region):
                row = self._layout.row
                return array[row(region.start) - part.row : row(region.stop) - part.row]
        return None

    def _buffer(self, part: MessagePart, slot: int, place: int) -> Array:
        """Return memory for a part: vectors are kept, tiles rotate through the slots.

        `place` counts the parts of the same name in one message.
        """
        if part.region[:2] in self._vectors:
            return self._vectors[part.region[:2]]
        name = part.region.name
        if (slot, name, place) not in self._buffers:
            elements = self._elements[name, place]
            self._buffers[slot, name, place] = self._device.empty(
                (elements,), part.dtype or self._dtype
            )
        memory = self._buffers[slot, name, place]
        return memory[: math.prod(part.shape)].reshape(part.shape, order="F")
