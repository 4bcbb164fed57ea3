"""How far the queues of a GPU are, by the events that have come to pass."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence

from hetero_la.scheduler.program.instructions import CallKernel, Instruction
from hetero_la.tiles.kernels.device import Device, Event, Queue


class GpuQueues:
    """Queues of a device whose calls only enqueue, seen from another thread.

    Events of instructions for which others wait tell what has run.  What a queue does between two
    of them is not known: it counts as still to be done.

    Parameters
    ----------
    device : Device
        The device.
    instructions : sequence of Instruction
        The program.
    events : mapping
        Place of an instruction -> its event; the thread that enqueues adds to it.
    """

    def __init__(
        self, device: Device, instructions: Sequence[Instruction], events: Mapping[int, Event]
    ) -> None:
        self._device, self._instructions, self._events = device, instructions, events
        self._places: dict[Queue, list[int]] = {queue: [] for queue in Queue}
        for place, one in enumerate(instructions):
            self._places[one.queue].append(place)
        self._noted, self._reached = 0, dict.fromkeys(Queue, -1)
        self._waiting: dict[Queue, deque[int]] = {queue: deque() for queue in Queue}

    def next_places(self, issued: int) -> dict[Queue, int]:
        """Return the first instruction of each queue that may not have run yet, of the `issued`."""
        places = list(self._events)
        for place in places[self._noted :]:
            self._waiting[self._instructions[place].queue].append(place)
        self._noted, found = len(places), {}
        for queue, waiting in self._waiting.items():
            while waiting and self._device.reached(self._events[waiting[0]]):
                self._reached[queue] = waiting.popleft()
            at = bisect_right(self._places[queue], self._reached[queue])
            if at < len(self._places[queue]) and self._places[queue][at] < issued:
                found[queue] = self._places[queue][at]
        return found

    def running(self, places: Mapping[Queue, int]) -> list[int]:
        """Return those of these places whose instruction waits for nothing."""
        return [
            place
            for place in places.values()
            if isinstance(self._instructions[place], CallKernel)
            and all(self._over(before) for before in self._instructions[place].waits)
        ]

    def _over(self, place: int) -> bool:
        return place <= self._reached[self._instructions[place].queue]
