"""One thread at a time enqueues for all GPUs of a process."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import Any

import pytest

from hetero_la.scheduler.exchange.enqueuer import Enqueuer
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import assert_close, problem, random, run_in_threads, set_up

WORKERS = 3


class Recording(VirtualGpu):
    """Notes its calls, and the threads that make them, once all threads are there."""

    enqueues = True

    def __init__(self, name: str, calls: list[tuple[int, str, str, Queue]], all_open: Any) -> None:
        super().__init__(name)
        self._calls, self._all_open, self._context = calls, all_open, contextlib.nullcontext
        self.fails_at = -1

    def on_wait(self, context: Any) -> contextlib.AbstractContextManager[None]:
        self._context = context
        return contextlib.nullcontext()

    def call(self, kernel: str, queue: Queue, *rest: Any) -> None:
        if not self._all_open():
            with self._context():
                until = time.monotonic() + 10
                while not self._all_open() and time.monotonic() < until:
                    time.sleep(1e-3)
        self._calls.append((threading.get_ident(), self.name, kernel, queue))
        if sum(name == self.name for _, name, *_ in self._calls) == self.fails_at:
            raise ZeroDivisionError(self.name)
        super().call(kernel, queue, *rest)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """As many as there are workers, with one list of calls."""
    opened: list[int] = []
    run = Enqueuer.run

    def noted(self: Enqueuer, *args: Any) -> None:
        opened.append(threading.get_ident())
        run(self, *args)

    monkeypatch.setattr(Enqueuer, "run", noted)
    calls: list[tuple[int, str, str, Queue]] = []
    return [
        Recording(f"gpu{i}", calls, lambda: len(opened) == WORKERS) for i in range(WORKERS)
    ]  # fmt: skip


def test_few_changes_of_thread_and_urgent_work_first(devices: list[Recording]) -> None:
    given = problem("lu", TileLayout(48, 48, 6))
    made = set_up(given.layout, WORKERS)
    found, _ = run_in_threads(made, devices, given.a)
    assert_close(found, given.expected)
    calls = devices[0]._calls
    changes = sum(a[0] != b[0] for a, b in itertools.pairwise(calls))
    assert changes <= 2 * WORKERS < len(calls) / 4
    assert len({name for _, name, *_ in calls}) == WORKERS
    panels = [place for place, call in enumerate(calls) if call[2] == "getrf"]
    updates = [place for place, call in enumerate(calls) if call[2:] == ("gemm", Queue.UPDATE)]
    # The second panel is issued before the update of the first step, which two workers could do.
    assert panels[1] < updates[0]


@pytest.mark.parametrize("failing", range(WORKERS))
def test_an_error_is_that_of_its_worker_whoever_enqueued(
    devices: list[Recording], failing: int
) -> None:
    given = problem("lu", TileLayout(48, 48, 6))
    devices[failing].fails_at = 5
    with pytest.raises(ZeroDivisionError, match=f"gpu{failing}"):
        run_in_threads(set_up(given.layout, WORKERS), devices, given.a)


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
