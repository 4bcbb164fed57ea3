"""Runs that are watched: what the page of runs says, who is asked, and names of Dask's tasks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution import progress
from hetero_la.scheduler.cluster import run_page, sizing
from hetero_la.scheduler.cluster.clients import runs_link
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.program.instructions import CallKernel, Program
from hetero_la.scheduler.run import watched
from hetero_la.scheduler.run.call_sums import WORK, CallSums
from hetero_la.scheduler.run.gpu_queues import GpuQueues
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.scheduler.run.job import this_process
from hetero_la.scheduler.run.trace import LogEntry
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions, Queue
from hetero_la.tiles.storage.layout import TileLayout
from tests.pictures.browser import CHROMIUM, browser
from tests.slow_gpus import SlowGpu

A = np.random.default_rng(3).standard_normal((400, 400))
NB = 25
Link = str


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[hetero_la.Cluster]:
    """Three virtual GPUs whose kernels take 60 times as long, and a CPU worker."""
    monkeypatch.setattr(run_page, "_FRESH", 0.0)
    monkeypatch.setattr(sizing, "VirtualGpu", lambda name: SlowGpu(name, 60.0))
    with hetero_la.Cluster(cpus=1, virtual_gpus=3, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


def slow_kernels() -> None:
    """Let kernels of this process take 5 ms longer."""
    call = CpuDevice.call

    def slowly(self: CpuDevice, *args: Any) -> None:
        time.sleep(0.005)
        call(self, *args)

    CpuDevice.call = slowly  # type: ignore[method-assign]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(run_page, "_FRESH", 0.0)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(slow_kernels)
        yield client


def eventually(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs_at(link: Link) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{link}/runs.json", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["runs"]
    return found


@contextlib.contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Do some work in a thread beside the block; raise its error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert errors == []


def first_running(link: Link, workers: int) -> dict[str, Any]:
    """The first run of which something is done, and something not, once all workers have begun."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = [
            run
            for run in runs_at(link)
            if run["state"] == "running" and 0 < run["share"] < 1 and len(run["parts"]) == workers
        ]
        return bool(found)

    eventually(there)
    return found[0]


def check_over(run: dict[str, Any]) -> None:
    assert (run["state"], run["share"], run["left"], run["travelling"]) == ("done", 1.0, 0.0, 0)
    assert run["steps_done"] == run["steps"] == 16
    assert run["flops"] == run["run_flops"] == pytest.approx(2 / 3 * 400**3, rel=0.01)
    assert run["rate"] == pytest.approx(run["flops"] / run["seconds"])
    assert all(part["flops_done"] == part["flops"] for part in run["parts"])
    assert sum(part["busy"]["update"] for part in run["parts"]) > 0


def check_running(run: dict[str, Any]) -> None:
    assert run["title"] == "lu of a 400 x 400 float64 matrix"
    assert run["owner"] == this_process()
    assert 0 <= run["steps_done"] <= run["steps"] == 16
    assert run["left"] > 0
    assert run["travelling"] >= 0
    for part in run["parts"]:
        assert part["busy"].keys() == set(WORK)
        assert sum(part["busy"].values()) <= part["watched"] * 1.001
        assert bool(part["doing"]) is (part["state"] == "running")


def test_a_run_of_threads_is_seen_while_and_after_it_runs(slow: hetero_la.Cluster) -> None:
    with beside(lambda: hetero_la.lu_factor(A, client=slow, nb=NB, panel="cpu")):
        run = first_running(slow.runs_link, workers=4)
        check_running(run)
        later = first_running(slow.runs_link, workers=4)
        assert later["run"] == run["run"]
        assert later["share"] >= run["share"]
    (run,) = runs_at(slow.runs_link)
    check_over(run)
    panels = {part["name"]: part["busy"]["panel"] for part in run["parts"]}
    assert panels.pop("cpu0") > 0
    assert set(panels.values()) == {0.0}
    hetero_la.lu_factor(A, client=slow, nb=NB)
    assert [one["state"] for one in runs_at(slow.runs_link)] == ["done", "done"]


def test_a_run_of_processes_is_seen_and_so_is_a_loss(processes: Client) -> None:
    link = runs_link(processes)
    with beside(lambda: hetero_la.lu_factor(A, client=processes, nb=NB)):
        check_running(first_running(link, workers=2))
    check_over(runs_at(link)[0])
    (victim, *_) = processes.run(os.getpid).values()
    with beside(lambda: hetero_la.lu_factor(A, client=processes, nb=NB)):
        lost = first_running(link, workers=2)["run"]
        os.kill(victim, signal.SIGKILL)
    runs = {run["run"]: run for run in runs_at(link)}
    assert runs[lost]["state"] == "failed"
    assert runs[lost]["why"] != ""
    assert sum(run["state"] == "done" for run in runs.values()) >= 2


def test_work_that_ends_during_a_look_is_for_the_next_one() -> None:
    job = hetero_la.plan("lu", (400, 400), nb=NB).job()
    log: list[LogEntry] = []
    part = watched.Part("a run", job, 0, CpuDevice(), log, {}, {})
    part.begin()
    until = time.perf_counter()
    log.append(LogEntry(0, part._began, until + 1))  # ends when the look has begun
    seen = part._look(until)
    assert sum(seen["busy"].values()) <= seen["watched"]
    seen = part._look(log[0].stop)
    assert sum(seen["busy"].values()) == pytest.approx(seen["watched"])
    part.end()


def test_two_clients_see_each_other_s_runs(slow: hetero_la.Cluster) -> None:
    b = da.from_array(A, chunks=200)
    with Client(slow, set_as_default=False) as other:
        packed, _ = hetero_la.lu_factor(b, client=other, nb=NB)
        # Runs in windows, and those that are one task of Dask, use other locks.
        with (
            beside(lambda: hetero_la.lu_factor(A, client=slow, nb=NB)),
            beside(lambda: other.compute(packed).result(timeout=60)),
        ):
            eventually(lambda: len(runs_at(slow.runs_link)) == 2)
    assert [run["state"] for run in runs_at(slow.runs_link)] == ["done", "done"]


def test_nobody_is_asked_unless_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_around() -> list[watched.Seen]:
        asked.append(time.monotonic())
        return watched.look_around()

    monkeypatch.setattr(run_page, "look_around", look_around)
    with hetero_la.Cluster(cpus=2, gpus=0, dashboard_address="127.0.0.1:0") as cluster:
        hetero_la.lu_factor(A, client=cluster, nb=NB)
        assert asked == []
        assert runs_at(cluster.runs_link)[0]["state"] == "done"
        assert len(asked) == 1  # both workers are in one process
        for _ in range(3):
            runs_at(cluster.runs_link)
        assert len(asked) < 4  # those who look at once get the same


def test_a_failed_run_says_why_and_only_the_latest_stay(slow: hetero_la.Cluster) -> None:
    def fail(*_: Any) -> None:
        raise ArithmeticError("no such luck")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "call", fail)
        with pytest.raises(ArithmeticError, match="no such luck"):
            hetero_la.lu_factor(A, client=slow, nb=NB)
    (run,) = runs_at(slow.runs_link)
    assert run["state"] == "failed"
    assert "ArithmeticError: no such luck" in {part["why"] for part in run["parts"]}
    for _ in range(watched.MOST_OVER + 2):
        hetero_la.lu_factor(A[:60, :60], client=slow, nb=NB)
    runs = runs_at(slow.runs_link)
    assert sum(run["title"].startswith("lu of a 60") for run in runs) == watched.MOST_OVER


def test_an_estimate_is_corrected_by_progress() -> None:
    part: Any = {
        "run": "r", "title": "", "owner": "", "worker": 0, "workers": 2, "state": "running",
        "why": "", "seconds": 4.0, "ago": 0.0, "steps": 10, "steps_done": 1, "flops": 10.0,
        "flops_done": 0.0, "run_flops": 18.0, "estimate": 8.0, "sent": 3, "received": 1,
    }  # fmt: skip
    run = watched.together([part])  # the other one has not begun
    assert (run["left"], run["steps_done"], run["travelling"]) == (8.0, 0, 2)
    other = part | {"worker": 1, "flops_done": 10.0, "steps_done": 10, "received": 5}
    run = watched.together([other, part])
    assert (run["share"], run["flops"], run["steps_done"]) == (0.5, 9.0, 1)
    assert (run["left"], run["travelling"]) == (4.0, 0)  # half took 4 s
    assert watched.together([part | {"flops_done": 1.0}, part])["left"] == pytest.approx(
        0.95 * (0.75 * 8.0 + 0.25 * 80.0)
    )
    assert watched.together([other | {"state": "done"}] * 2)["state"] == "done"
    assert watched.together([other | {"state": "failed"}, part])["state"] == "failed"


@pytest.mark.parametrize("routine", ROUTINES)
def test_operations_are_those_of_the_graph(routine: str) -> None:
    workers = [WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", virtual=True) for i in range(2)]
    made = hetero_la.plan(routine, (120, 120), nrhs=3, nb=20, workers=workers)
    job = made.job()
    totals = np.zeros(2)
    for worker, program in enumerate(made.programs):
        sums = CallSums.of(job.only(worker), worker, {})
        totals += sums.sent[-1], sums.received[-1]
        work = program.call_flops(made.graph)
        assert np.diff(sums.flops) == pytest.approx(
            [work.get(place, 0.0) for place in range(len(program.instructions))]
        )
        assert (np.diff(sums.steps) >= 0).all()
    assert totals[0] == totals[1]  # each message that is sent is received


def test_runs_without_a_cluster_are_seen_too() -> None:
    layout = TileLayout(40, 40, 20)
    graph, a = ROUTINES["lu"].tasks(layout), np.asfortranarray(A[:40, :40])
    run_in_order(graph, range(len(graph)), a, CpuDevice(), KernelOptions())
    hetero_la.lu_factor(A[:50, :50].astype(complex), nb=10)
    seen = watched.runs_of(watched.look_around())
    assert [(run["state"], run["title"]) for run in seen[:2]] == [
        ("done", "lu of a 50 x 50 complex128 matrix"), ("done", ""),
    ]  # fmt: skip
    assert seen[0]["run_flops"] == pytest.approx(4 * 2 / 3 * 50**3, rel=0.05)


def test_a_run_that_is_over_keeps_no_device() -> None:
    """It may have been made for this run, and has memory."""
    layout, device = TileLayout(40, 40, 20), CpuDevice()
    graph, a = ROUTINES["lu"].tasks(layout), np.asfortranarray(A[:40, :40])
    run_in_order(graph, range(len(graph)), a, device, KernelOptions())
    gone = weakref.ref(device)
    del device
    assert gone() is None


class _Recorded:
    """A device whose events come to pass when a test says so."""

    def __init__(self) -> None:
        self.over = set[int]()

    def reached(self, event: int) -> bool:
        return event in self.over


def test_queues_of_a_gpu_are_followed_by_their_events() -> None:
    program = Program(0, [0, 1], [
        CallKernel(0, 0, 0, "getrf", (), queue=Queue.PANEL, signals=True),
        CallKernel(0, 1, 1, "gemm", (), waits=(0,)),
        CallKernel(0, 2, 2, "gemm", (), signals=True),
        CallKernel(1, 1, 1, "getrf", (), queue=Queue.PANEL, waits=(2,), signals=True),
    ])  # fmt: skip
    device: Any = _Recorded()
    events: dict[int, int] = {}
    queues = GpuQueues(device, program.instructions, events)
    assert queues.next_places(0) == {}
    events |= {0: 0, 2: 2}
    found = queues.next_places(3)
    assert found == {Queue.PANEL: 0, Queue.UPDATE: 1}
    assert queues.running(found) == [0]  # the update waits for the panel
    device.over.add(0)
    found = queues.next_places(3)
    assert (found, queues.running(found)) == ({Queue.UPDATE: 1}, [1])
    events[3] = 3
    found = queues.next_places(4)
    assert (found, queues.running(found)) == ({Queue.UPDATE: 1, Queue.PANEL: 3}, [1])
    device.over |= {2, 3}
    assert queues.next_places(4) == {}


class _Passed:
    """An event that has come to pass when it is made."""

    done = True

    def synchronize(self) -> None:
        pass


class _Enqueuing(SlowGpu):
    """A virtual GPU that is looked at as a GPU is, by its events."""

    enqueues = True

    def record(self, queue: Queue) -> Any:
        return _Passed()


def test_a_gpu_is_looked_at_while_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "_FRESH", 0.0)
    monkeypatch.setattr(watched, "_SAMPLED", 0.5)
    monkeypatch.setattr(sizing, "VirtualGpu", lambda name: _Enqueuing(name, 100.0))
    with hetero_la.Cluster(cpus=0, virtual_gpus=2, dashboard_address="127.0.0.1:0") as cluster:
        with beside(lambda: hetero_la.lu_factor(A, client=cluster, nb=NB)):
            first_running(cluster.runs_link, workers=2)
            assert "hetero-la samples" in {thread.name for thread in threading.enumerate()}
            time.sleep(0.2)
            check_running(first_running(cluster.runs_link, workers=2))
        (run,) = runs_at(cluster.runs_link)
        check_over(run)
        for part in run["parts"]:
            assert 0 < part["watched"] <= part["seconds"]
        eventually(
            lambda: "hetero-la samples" not in {thread.name for thread in threading.enumerate()}
        )


@pytest.mark.gpu
def test_a_run_on_gpus_is_seen() -> None:
    a, over = np.random.default_rng(1).standard_normal((8192, 8192)), threading.Event()
    with hetero_la.Cluster(cpus=1, gpus=1, dashboard_address="127.0.0.1:0") as cluster:

        def again_and_again() -> None:
            while not over.is_set():
                hetero_la.lu_factor(a, client=cluster)

        with beside(again_and_again):
            try:
                run = first_running(cluster.runs_link, workers=1)
            finally:
                over.set()
        assert 0 < run["share"] < 1
        eventually(lambda: runs_at(cluster.runs_link)[0]["state"] == "done")
        run = runs_at(cluster.runs_link)[0]
        assert (run["share"], run["travelling"]) == (1.0, 0)


# --- names of tasks


def prefixes(cluster: Any) -> set[str]:
    return {str(name) for name in cluster.scheduler.task_prefixes}


def test_tasks_are_named_by_routine_and_work(processes: Client) -> None:
    with hetero_la.Cluster(cpus=2, gpus=0) as cluster:
        hetero_la.lu_factor(A, client=cluster, nb=NB)
        hetero_la.cho_factor(A @ A.T, client=cluster, nb=NB)
        assert prefixes(cluster) == {"lu-run", "cholesky-run"}
    hetero_la.lu_factor(A, client=processes, nb=100)
    x = da.from_array(A, chunks=200)
    q, _ = hetero_la.lu_factor(x, client=processes, nb=100)
    processes.compute(q).result(timeout=60)
    known = prefixes(processes.cluster)
    works = ("open", "meet", "run", "result", "begin", "load", "check")
    assert {f"lu-{what}" for what in works} <= known
    assert not {name for name in known if not name.startswith(("lu-", "array", "finalize"))}


# --- the bar, and the page


def test_a_bar_shows_runs_of_other_processes(
    processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[float] = []

    class Place(progress._Terminal):
        def draw(self, bar: Any) -> None:
            shown.append(bar.tasks[0].percentage)

        def clear(self, bar: Any) -> None:
            shown.append(-1.0)

    monkeypatch.setattr(progress, "_Terminal", Place)
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with hetero_la.progress(processes):
        hetero_la.lu_factor(A, client=processes, nb=NB)
    assert shown[-1] == -1.0
    assert any(0 < percentage < 100 for percentage in shown)
    assert shown[:-1] == sorted(shown[:-1])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_stays_open_while_runs_come_and_go(slow: hetero_la.Cluster) -> None:
    with browser() as page:
        page.call("Page.navigate", url=slow.runs_link)

        def says(*texts: str) -> bool:
            shown = page.value("document.body?.innerText") or ""
            return all(text in shown for text in texts)

        seen = threading.Event()

        def again_and_again() -> None:
            while not seen.is_set():
                hetero_la.lu_factor(A, client=slow, nb=NB)

        eventually(lambda: says("No run yet"))
        with beside(again_and_again):
            try:
                eventually(lambda: says("running", "gpu2", "expected end"))
            finally:
                seen.set()
        eventually(lambda: says("done", "16 of 16") and not says("running"))
        count = page.value("document.querySelectorAll('article').length")
        hetero_la.lu_factor(A, client=slow, nb=NB)
        eventually(lambda: page.value("document.querySelectorAll('article').length") == count + 1)
        for width in (1400, 360):
            page.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=800,
                deviceScaleFactor=1, mobile=False,
            )  # fmt: skip
            assert page.value("document.documentElement.scrollWidth <= innerWidth")
        assert page.errors == []
