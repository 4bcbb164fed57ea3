"""When devices are asked what they did when, and by what clock."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hetero_la
from hetero_la.execution import execute
from hetero_la.execution.timeline import _MOST_UNREAD
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    Instruction,
    LoadColumn,
    ReceiveMessage,
)
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.run.trace import Recorder
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.gpu import stopwatch as gpu_stopwatch
from hetero_la.tiles.kernels.gpu.stopwatch import GpuStopwatch

A = np.random.default_rng(0).standard_normal((60, 60))


class Mark(int):
    def synchronize(self) -> None:
        """As of an event: what it stands for has ended."""


class Watched(CpuDevice):
    """A device that is its own stopwatch: a mark is its number, a second each since 1e9."""

    def __init__(self, name: str = "caller", *, broken: bool = False) -> None:
        super().__init__(name)
        self.numbers, self.broken = itertools.count(), broken
        self.active = False
        self.compared = self.read = 0

    def stopwatch(self) -> Watched:  # type: ignore[override]
        return self

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        before, self.active = self.active, True
        yield
        self.active = before

    def mark(self, queue: Queue) -> Mark:
        assert self.active  # an event belongs to the device that is current
        return Mark(next(self.numbers))

    def compare_clocks(self) -> None:
        assert self.active
        self.compared += 1

    def seconds(self, mark: Mark) -> float:
        if self.broken:
            raise OSError("the device is gone")
        self.read += 1
        return 1e9 + mark


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    """Makes the calling thread's device a `Watched` one."""

    def make(**arguments: Any) -> Watched:
        device = Watched(**arguments)
        monkeypatch.setattr(execute, "CpuDevice", lambda name: device)
        return device

    return make


def test_a_device_with_a_stopwatch_is_asked_when_the_run_is_over() -> None:
    copy, update, column = Queue.COPY, Queue.UPDATE, Region("A", 0, 0, 1)
    program: list[Instruction] = [
        LoadColumn(0, column, queue=copy),
        ReceiveMessage(0, MessageKey(1, 0), queue=copy),  # marked when the message is there
        CallKernel(0, 0, 0, "getrf", (column,), queue=update, waits=(0,)),
        CallKernel(0, 0, 0, "getrf", (column,), queue=copy),
    ]
    device = Watched()
    with device.activate():
        recorder, marks = Recorder(device, program), []
        for instruction in program:
            recorder.issue()
            if isinstance(instruction, ReceiveMessage):
                recorder.begin(copy)
                recorder.begin(copy)  # only now
            marks.append(recorder.end(instruction.queue))
        recorder.window(0.0)
    trace = recorder.trace()
    assert marks == [0, 3, 4, 5]  # which serve as events
    first, *others = (trace.spans - 1e9).tolist()
    assert first == [trace.issued[0] - 1e9, 0.0]
    assert others == [[2.0, 3.0], [0.0, 4.0], [3.0, 5.0]]
    assert trace.issued[1] > trace.issued[0]
    assert len(trace.windows) == device.compared == 1


def test_no_run_waits_until_it_is_read(watched: Callable[..., Watched]) -> None:
    device = watched()
    with hetero_la.trace() as t:
        hetero_la.lu_factor(A, nb=20)
    assert device.compared == 1
    assert device.read == 0
    (run,) = t.runs
    assert device.read >= len(run.plan.programs[0].instructions)
    assert t.runs[0] is run


def test_few_runs_are_unread_at_a_time(watched: Callable[..., Watched]) -> None:
    device = watched()
    with hetero_la.trace() as t:
        for _ in range(_MOST_UNREAD):
            hetero_la.lu_factor(A, nb=20)
        assert device.read == 0
        hetero_la.lu_factor(A, nb=20)
    assert device.read > 0  # the events of the first one need not be held any longer
    assert len(t.runs) == _MOST_UNREAD + 1


def test_a_run_that_cannot_be_read_is_not_lost(watched: Callable[..., Watched]) -> None:
    device, runs = watched(broken=True), _MOST_UNREAD + 2  # nor does it spoil those after it
    with hetero_la.trace() as t:
        for _ in range(runs):
            hetero_la.lu_factor(A, nb=20)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            _ = t.runs
    device.broken = False
    assert len(t.runs) == runs


# --- the stopwatch of a GPU


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], GpuStopwatch]:
    """Makes a stopwatch whose comparisons take so long; a GPU's clock, in ms, begins at 5000."""

    def make(taken: list[float]) -> GpuStopwatch:
        now, left = [100.0], iter(taken)

        class Event:
            def record(self, stream: Any) -> None:
                self.took = 0.0 if stream == "queue" else next(left)
                self.at = now[0] + self.took / 2  # in the middle of the comparison

            def synchronize(self) -> None:
                now[0] += self.took

        def elapsed(one: Event, other: Event) -> float:
            return 1e3 * (other.at - one.at)

        fake = SimpleNamespace(cuda=SimpleNamespace(Event=Event, get_elapsed_time=elapsed))
        monkeypatch.setitem(sys.modules, "cupy", fake)
        monkeypatch.setattr(gpu_stopwatch.time, "perf_counter", lambda: now[0])
        return GpuStopwatch(["queue"], "idle")

    return make


def test_a_good_comparison_of_clocks_is_not_repeated(clocks: Any) -> None:
    watch = clocks([1e-5])
    watch.compare_clocks()
    mark = watch.mark(0)
    assert watch.seconds(mark) == pytest.approx(100 + 1e-5, abs=1e-9)
    assert watch.between(mark, mark) == 0


def test_the_quickest_comparison_of_clocks_counts(clocks: Any) -> None:
    watch = clocks([1.0, 0.5, 0.25, 0.75, 2.0])
    before = watch.mark(0)  # at 101, before the comparison that counts
    watch.compare_clocks()
    assert watch._took == 0.25
    assert watch.seconds(before) == pytest.approx(101)
    after = watch.mark(0)
    assert watch.seconds(after) == pytest.approx(104.5)
    assert watch.between(before, after) == pytest.approx(3.5)
