"""Virtual GPUs that do what was enqueued as late as they may, in a random order of their queues.

What a program does not order by its queues and events is done in any order, as on a GPU: results
show what it forgot.
"""

from __future__ import annotations

import functools
import random
import threading
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
    index: int = -1  # from 0 on, copies to the host go through pinned buffers
    _queues: dict[Queue, deque[_Entry]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    enqueues = True

    def __post_init__(self) -> None:
        index = self.index
        super().__init__(self.name, pinned=False)
        self.index = index
        self._queues = {queue: deque() for queue in Queue}
        self._random = random.Random(self.seed)

    def __hash__(self) -> int:
        return id(self)

    @functools.cached_property
    def companion(self) -> LateGpu:
        return LateGpu(self.name, self.seed + 1, self.index, _lock=self._lock)

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
            if self._worked() or any(other._worked() for other in self._awaited()):
                continue
            if time.monotonic() > limit:
                raise TimeoutError("a queue waits for what never comes")
            time.sleep(1e-4)  # for another device

    def _worked(self) -> bool:
        """Do one thing that was enqueued here or on the companion; return whether there was one."""
        with self._lock:
            able = [queue for queue in self._all_queues() if queue and _is_ready(queue[0])]
            if able:
                _do(self._random.choice(able).popleft())
            return bool(able)

    def _awaited(self) -> list[LateGpu]:
        """Return the devices that a queue waits for."""
        with self._lock:
            heads = [queue[0] for queue in self._all_queues() if queue]
        return [head.awaited.device for head in heads if head.awaited is not None]

    def _all_queues(self) -> list[deque[_Entry]]:
        others = self.__dict__.get("companion")
        return [*self._queues.values(), *(others._queues.values() if others else ())]


def _is_ready(entry: _Entry) -> bool:
    return entry.awaited is None or entry.awaited.done


def _do(entry: _Entry) -> None:
    if entry.work is not None:
        entry.work()
    if entry.event is not None:
        entry.event.done = True
