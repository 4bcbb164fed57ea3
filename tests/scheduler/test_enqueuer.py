"""One thread at a time enqueues for all GPUs of a process."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hetero_la.scheduler.exchange.enqueuer import Enqueuer
from hetero_la.scheduler.exchange.in_process import ThreadPort
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import CallKernel, Program, ReceiveMessage
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.scheduler.run import threads
from hetero_la.scheduler.run.job import Job
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Device, KernelOptions, Queue
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.scheduler.test_streaming import CASES, matrices, programs_of
from tests.support import Setup, in_threads, job_of, problem, random, run_in_threads, set_up

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


class Resident(ArrayStorage):
    """Columns that are with their workers beforehand, and stay there."""

    def home(self, device: Device, width: int) -> tuple[Any, bool]:
        return random(self.target.shape[0], width), True


def job_with(made: Setup, a: NDArray, window: int = 1) -> Job:
    return replace(job_of(made, a), window=window)


def test_few_changes_of_thread_and_urgent_work_first(devices: list[Recording]) -> None:
    a = random(48)
    threads.run_in_threads(job_with(set_up(TileLayout(48, 48, 6), WORKERS), a),
                           Resident(a, a), devices)  # fmt: skip
    calls = devices[0]._calls
    changes = sum(a[0] != b[0] for a, b in itertools.pairwise(calls))
    assert changes <= 2 * WORKERS < len(calls) / 4
    assert len({name for _, name, *_ in calls}) == WORKERS
    panels = [place for place, call in enumerate(calls) if call[2] == "getrf"]
    updates = [place for place, call in enumerate(calls) if call[2:] == ("gemm", Queue.UPDATE)]
    # The second panel is issued before the update of the first step, which two workers could do.
    assert panels[1] < updates[0]


class Enqueuing(VirtualGpu):
    enqueues = True


def run_in_windows(job: Job, storage: ArrayStorage, seed: int) -> None:
    """Run each worker's windows one after the other, as Dask does, with a while in between."""
    run = threads.ThreadedRun(job, storage)

    def work(program: Program) -> None:
        rng, device = np.random.default_rng([seed, program.worker]), Enqueuing("gpu")
        with contextlib.suppress(RunAbortedError):
            for start, stop in program.windows(job.window):
                time.sleep(rng.uniform(0, 5e-3))
                run.window(program.worker, device, start, stop)

    in_threads(work, job.programs)
    assert run.table.error is None
    assert all(r.position == len(r.program.instructions) for r in run.runners.values())


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("resident", [False, True])
def test_a_window_ends_when_its_last_instruction_is_issued(
    window: int, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may have what the others wait for."""
    waits, wait = [0.0], WaitTable._wait

    def timed(self: WaitTable, *args: Any) -> None:
        began = time.monotonic()
        wait(self, *args)
        waits.append(time.monotonic() - began)

    monkeypatch.setattr(WaitTable, "_wait", timed)
    given = problem("lu", TileLayout(90, 90, 6))
    for seed in range(8):
        made, target = set_up(given.layout, WORKERS), np.zeros_like(given.a, order="F")
        storage = (Resident if resident else ArrayStorage)(given.a, target)
        run_in_windows(job_with(made, given.a, window), storage, seed)
        assert resident or np.allclose(target, given.expected)
    assert max(waits) < 0.9  # a wait that nobody ends takes a second


class Slow(ArrayStorage):
    """Of copies that take a while."""

    def load(self, *args: Any) -> None:
        time.sleep(random_delay())
        super().load(*args)

    def store(self, *args: Any) -> None:
        time.sleep(random_delay())
        super().store(*args)


def random_delay() -> float:
    return float(np.random.default_rng().uniform(0, 3e-3))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[5]], ids=str)
def test_no_window_waits_for_a_column_that_another_one_has_to_store(case: Any, seed: int) -> None:
    """With some columns in memory at a time, workers read back what others have stored."""
    a, b = matrices(case)
    programs, traffic = programs_of(case, 2 + seed % 2, 20 + 10 * (seed // 2))
    job = Job(
        case.routine, programs, traffic.messages, (), case.layout, a.dtype, KernelOptions(),
        1 + seed,
    )  # fmt: skip
    target = np.full((case.m, case.n + case.nrhs), np.nan, order="F")
    run_in_windows(job, Slow(a, target, b), seed)
    assert not np.isnan(target).any()


def test_a_message_waits_for_the_first_copy_only_of_a_device_that_enqueues() -> None:
    table = WaitTable()
    enqueuer = Enqueuer(table)
    port = ThreadPort(table, enqueuer, 0, Enqueuing("gpu0"))
    key = MessageKey(2, 0)
    receive = ReceiveMessage(0, key, queue=Queue.COPY)
    assert not port.there(receive)
    ThreadPort(table, enqueuer, 2, Enqueuing("gpu2")).offer(
        Message(key, [], frozenset({0, 1}), first=1), [], Queue.PANEL
    )
    assert port.there(receive)
    assert not port.waits_for_copy(receive)  # worker 1 computes on the host
    ThreadPort(table, enqueuer, 1, Enqueuing("gpu1"))
    assert port.waits_for_copy(receive)
    table.put((key, "copied"), None)
    assert not port.waits_for_copy(receive)


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
