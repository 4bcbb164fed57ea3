"""Threads that enqueue take turns, the most urgent first."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hetero_la.scheduler.exchange.priority_lock import PriorityLock
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import random, run_in_threads, set_up


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waiting(lock: PriorityLock, count: int) -> None:
    """Return once `count` threads wait."""
    until = time.monotonic() + 10
    while len(lock._waiting) < count:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_the_most_urgent_goes_first() -> None:
    lock, order = PriorityLock(), []

    def work(urgency: int) -> None:
        with lock.held(urgency):
            order.append(urgency)

    threads = []
    with lock.held(0):
        for n, urgency in enumerate([5, 1, 3, 1, 4]):
            threads.append(started(lambda urgency=urgency: work(urgency)))  # type: ignore[misc]
            waiting(lock, n + 1)
    for thread in threads:
        thread.join(10)
    assert order == [1, 1, 3, 4, 5]


@pytest.mark.parametrize(("next_", "expected"), [(2, ["other", "mine"]), (1, ["mine", "other"])])
def test_the_lock_is_yielded_to_what_is_more_urgent(next_: int, expected: list[str]) -> None:
    lock, order = PriorityLock(), []

    def other() -> None:
        with lock.held(1):
            order.append("other")

    with lock.held(0):
        thread = started(other)
        waiting(lock, 1)
        lock.yield_to(next_)
        order.append("mine")
    thread.join(10)
    assert order == expected


def test_a_lock_that_is_released_for_a_wait_is_acquired_again_whatever_happens() -> None:
    lock, others = PriorityLock(), []

    def other() -> None:
        with lock.held(9):
            others.append(lock._held)

    def waits_in_vain() -> None:
        thread = started(other)
        thread.join(10)
        assert not thread.is_alive()
        raise TimeoutError

    with lock.held(0):
        with pytest.raises(TimeoutError), lock.released(0):
            waits_in_vain()
        assert lock._held
    assert others == [True]
    assert not lock._held


def test_one_thread_at_a_time_has_the_turn() -> None:
    lock, inside, most = PriorityLock(), [0], [0]

    def work(seed: int) -> None:
        with lock.held(seed):
            for n in range(200):
                lock.yield_to((seed * 7 + n * 13) % 11)
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                if n % 10 == 0:
                    time.sleep(0)
                inside[0] -= 1

    threads = [started(lambda seed=seed: work(seed)) for seed in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert most == [1]


class Waiting(CpuDevice):
    """Its host waits in the first call until that of another device has begun."""

    enqueues = True

    def __init__(self, name: str, begun: dict[str, threading.Event]) -> None:
        super().__init__(name)
        self._begun, self._context = begun, contextlib.nullcontext
        self.met: bool | None = None

    def on_wait(self, context: Any) -> contextlib.AbstractContextManager[None]:
        self._context = context
        return contextlib.nullcontext()

    def call(self, kernel: str, *rest: Any) -> None:
        if self.met is None:
            self._begun[self.name].set()
            with self._context():
                self.met = all(event.wait(5) for event in self._begun.values())
        super().call(kernel, *rest)


def test_a_wait_within_a_call_lets_others_enqueue() -> None:
    begun = {name: threading.Event() for name in ("one", "two")}
    devices = [Waiting(name, begun) for name in begun]
    made = set_up(TileLayout(4, 8, 4), 2)
    for program, column in zip(made.programs, range(2), strict=True):
        whole = (Region("A", column, 0, 1),)
        program.instructions = [CallKernel(0, column, column, "laset_0", whole)]
    array, _ = run_in_threads(made, devices, random(4, 8))
    assert [device.met for device in devices] == [True, True]
    assert not array.any()
