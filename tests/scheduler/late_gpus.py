"""Virtual GPUs that do what was enqueued as late as they may, in a random order of their queues.

What a program does not order by its queues and events is done in any order, as on a GPU: results
show what it forgot.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_la.tiles.kernels.cpu.device import VirtualGpu
from hetero_la.tiles.kernels.device import Array, Event, KernelOptions, Queue

#: Seconds after which nothing has come that a queue waits for.
_PATIENCE = 20.0


@dataclass
class LateEvent:
    """A point in a queue, and whether the queue has come there."""

    device: LateGpu
    done: bool = False

    def synchronize(self) -> None:
        self.device.work_until(lambda: self.done)


@dataclass
class _Entry:
    work: Callable[[], None] | None = None
    awaited: LateEvent | None = None
    event: LateEvent | None = None


@dataclass
class LateGpu(VirtualGpu):
    """A virtual GPU that works when somebody waits for it."""

    name: str
    seed: int = 0
    _queues: dict[Queue, deque[_Entry]] = field(default_factory=dict)

    enqueues = True

    def __post_init__(self) -> None:
        super().__init__(self.name)
        self._queues = {queue: deque() for queue in Queue}
        self._random = random.Random(self.seed)

    def __hash__(self) -> int:
        return id(self)

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        def work() -> None:
            VirtualGpu.call(self, kernel, queue, arrays, options)

        self._queues[queue].append(_Entry(work))

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        self._queues[queue].append(_Entry(lambda: VirtualGpu.copy(self, target, source, queue)))

    def record(self, queue: Queue) -> Event:
        event = LateEvent(self)
        self._queues[queue].append(_Entry(event=event))
        return event

    def reached(self, event: Any) -> bool:
        return event is None or bool(event.done)

    def wait(self, queue: Queue, event: Any) -> None:
        if event is not None:
            self._queues[queue].append(_Entry(awaited=event))

    def synchronize(self) -> None:
        self.work_until(lambda: not any(self._queues.values()))

    def work_until(self, reached: Callable[[], bool]) -> None:
        """Do what was enqueued, of any queue that need not wait, until something is reached."""
        limit = time.monotonic() + _PATIENCE
        while not reached():
            able = [queue for queue in self._queues.values() if queue and _is_ready(queue[0])]
            if able:
                _do(self._random.choice(able).popleft())
            elif time.monotonic() > limit:
                raise TimeoutError("a queue waits for what never comes")
            else:
                time.sleep(1e-4)  # for another device


def _is_ready(entry: _Entry) -> bool:
    return entry.awaited is None or entry.awaited.done


def _do(entry: _Entry) -> None:
    if entry.work is not None:
        entry.work()
    if entry.event is not None:
        entry.event.done = True
