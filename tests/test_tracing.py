"""Timelines: what is recorded, that the parts add up, and what is written."""

from __future__ import annotations

import itertools
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import hetero_la
from hetero_la.algorithms import routines as registry
from hetero_la.cli.main import main
from hetero_la.execution import execute
from hetero_la.execution.timeline import TracedRun
from hetero_la.pictures.charts.chrome import chrome_events
from hetero_la.pictures.charts.gantt import draw_runs
from hetero_la.pictures.palette import LOADING
from hetero_la.pictures.scene import Rect, Scene, Text
from hetero_la.pictures.svg import svg
from hetero_la.planning.planned_graph import PlannedGraph
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.program.instructions import CallKernel, Program, ReceiveMessage
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.scheduler.run.trace import PARTS, WorkerTrace, align_clocks, split_time
from hetero_la.tiles.kernels.cpu.device import VirtualGpu
from hetero_la.tiles.kernels.device import Interval
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.pictures.drawn import CPU, GPUS, ROUTINES, shapes
from tests.pictures.test_pictures import extent, overlap

A = np.random.default_rng(0).standard_normal((300, 300))


@pytest.fixture(scope="module")
def gpus() -> Iterator[Client]:
    with hetero_la.Cluster(virtual_gpus=2, cpus=0) as cluster, cluster.get_client() as client:
        yield client


@pytest.fixture(scope="module")
def run(gpus: Client) -> TracedRun:
    with hetero_la.trace() as t:
        hetero_la.lu_factor(A, nb=64, client=gpus)
    (only,) = t.runs
    return only


def check(run: TracedRun) -> None:
    """What holds for the trace of any run."""
    for trace, program, parts in zip(run.workers, run.plan.programs, run.parts(), strict=True):
        assert tuple(parts) == PARTS
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(run.seconds, abs=1e-9)
        assert len(trace.issued) == len(trace.spans) == len(program.instructions)
        assert (trace.issued <= trace.spans[:, 0]).all()
        assert (trace.spans[:, 0] <= trace.spans[:, 1]).all()
        inside = [trace.issued, trace.spans, trace.windows]
        assert all(run.began <= part.min() <= part.max() <= run.ended for part in inside)
        for issued in trace.issued:
            assert ((trace.windows[:, 0] <= issued) & (issued <= trace.windows[:, 1])).sum() == 1
        if program.select(CallKernel):
            assert parts["computing"] > 0


def test_a_run_in_the_calling_thread() -> None:
    with hetero_la.trace() as t:
        hetero_la.lu_factor(A, nb=64)
    (only,) = t.runs
    assert [worker.name for worker in only.plan.workers] == ["caller"]
    check(only)
    parts = only.parts()[0]
    assert parts["waiting for a panel"] == 0
    (trace,), (program,) = only.workers, only.plan.programs
    calls = [isinstance(instruction, CallKernel) for instruction in program.instructions]
    assert parts["computing"] == pytest.approx(np.diff(trace.spans[calls]).sum())


def test_a_run_on_workers_of_this_process(run: TracedRun) -> None:
    assert len(run.workers) == 2
    check(run)
    assert sum(parts["copying"] for parts in run.parts()) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("gpus", [1, None])
def test_a_run_on_gpus_is_measured_on_the_devices(gpus: int | None) -> None:
    with (
        hetero_la.Cluster(cpus=0, gpus=gpus) as cluster,  # None: all that there are
        cluster.get_client() as client,
        hetero_la.trace() as t,
    ):
        hetero_la.lu_factor(np.random.default_rng(0).random((4096, 4096)), client=client)
    (only,) = t.runs
    check(only)
    if gpus == 1:
        (worker,) = only.workers
        # The device works on long after the thread has gone to the next instruction.
        assert np.median(worker.spans[:-1, 1] - worker.issued[1:]) > 0


def test_a_run_on_other_processes() -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        hetero_la.trace() as t,
    ):
        hetero_la.cho_factor(A @ A.T, nb=100, client=client)
    (only,) = t.runs
    check(only)
    assert [len(trace.windows) for trace in only.workers] == [1, 1]


def test_further_runs_on_factors_that_were_kept_are_recorded(gpus: Client) -> None:
    with hetero_la.trace() as t:
        hetero_la.solve(A, A[:, :20], nb=64, client=gpus)
    assert t.runs[0].plan.routine == "solve"
    assert {run.plan.routine for run in t.runs[1:]} <= {"lu_solve", "lu_solve_adjoint"}
    assert len(t.runs) > 1
    for traced in t.runs:
        check(traced)


def test_nothing_is_measured_outside(gpus: Client) -> None:
    with hetero_la.trace() as t:
        pass
    hetero_la.lu_factor(A, client=gpus)
    assert t.runs == []
    assert str(t) == "no run was traced"
    with pytest.raises(ValueError, match="no run was traced"):
        t.write("a.json")


def test_nested_traces_hold_the_runs_inside_them() -> None:
    with hetero_la.trace() as outer:
        with hetero_la.trace() as inner:
            hetero_la.lu_factor(A)
        hetero_la.qr_factor(A)
    assert repr(outer) == "Trace(2 runs)"
    assert [run.plan.routine for run in inner.runs] == ["lu"]
    assert [run.plan.routine for run in outer.runs] == ["lu", "qr"]
    assert outer.runs[0] is inner.runs[0]


def test_a_run_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("broken")

    with hetero_la.trace() as t:
        with monkeypatch.context() as patch:
            patch.setattr(execute, "_inline", fail)
            with pytest.raises(RuntimeError, match="broken"):
                hetero_la.lu_factor(A)
        hetero_la.qr_factor(A)
    assert [run.plan.routine for run in t.runs] == ["qr"]


@pytest.mark.parametrize("routine", ROUTINES)
@pytest.mark.parametrize("panel", ["cpu", "gpu"])
def test_every_task_has_its_call(routine: str, panel: str) -> None:
    nrhs = 0 if registry.ROUTINES[routine].factors else 30
    plan = hetero_la.plan(
        routine, (200, 200), nb=20, nrhs=nrhs, workers=[*GPUS[:3], CPU], panel=panel
    )
    calls = TracedRun(plan, 0.0, 1.0, []).recording.calls
    done: dict[tuple[int, int], float] = {}
    for task, (worker, place) in zip(plan.graph.tasks, calls, strict=True):
        instruction = plan.programs[worker].instructions[place]
        assert isinstance(instruction, CallKernel)
        assert (instruction.kind, instruction.step) == (task.kind, task.step)
        assert instruction.first <= task.column <= instruction.last
        assert worker == plan.placement[task.index]
        done[worker, place] = done.get((worker, place), 0.0) + plan.graph.flops(task)
    told = {
        (program.worker, place): flops
        for program in plan.programs
        for place, flops in program.call_flops(plan.graph).items()
    }
    assert done == pytest.approx(told)


# --- where the time goes


def trace_of(issued: list[float], spans: list[list[float]], *windows: list[float]) -> WorkerTrace:
    return WorkerTrace(np.array(issued, float), np.array(spans, float), np.array(windows, float))


KEY = MessageKey(1, 0, True)
PANEL = Program(0, [0], [ReceiveMessage(0, KEY), CallKernel(0, 0, 0, "gemm", ())])


@pytest.mark.parametrize(
    ("trace", "sent", "expected"),
    [
        # The thread waits in its task: from 1, when it asks, to 4, when the copy begins.
        (trace_of([1, 5], [[4, 5], [5, 8]], [1, 8]), None, (3, 0, 1, 3, 2, 1, 0)),
        # A GPU: the thread has gone on long before the message comes.
        (trace_of([1, 1.1], [[4, 5], [5, 8]], [1, 1.2]), None, (3, 0, 1, 3, 2, 1, 0)),
        # Another process: the task begins with a message that was sent at 3.
        (trace_of([4, 5], [[4, 5], [5, 8]], [4, 8]), {KEY: 3}, (3, 0, 1, 3, 2, 1, 0)),
        # The same, sent before: Dask's own time.
        (trace_of([4, 5], [[4, 5], [5, 8]], [4, 8]), {KEY: 0}, (3, 0, 1, 0, 2, 4, 0)),
        # The thread is busy with something else between 5 and 7.
        (trace_of([1, 5], [[1, 5], [7, 8]], [1, 8]), None, (1, 0, 4, 0, 2, 1, 2)),
        # A copy beside a kernel is hidden by it.
        (trace_of([0, 0], [[2, 6], [1, 8]], [0, 8]), None, (7, 0, 0, 1, 2, 0, 0)),
        # The first call of a kernel loads it, beside the end of the copy.
        (
            trace_of([0, 1], [[0, 3], [6, 8]], [0, 8])._replace(loading=np.array([[1.0, 5.0]])),
            None,
            (2, 4, 1, 0, 2, 0, 1),
        ),
    ],
)
def test_time_is_split_by_what_comes_first(
    trace: WorkerTrace, sent: Any, expected: tuple[float, ...]
) -> None:
    parts = split_time(trace, PANEL, 0.0, 10.0, sent)
    # In this order: computing, loading kernels, copying, panel, nothing left, Dask, other.
    assert tuple(parts.values()) == pytest.approx(expected)


def test_nobody_waits_for_a_panel_before_any_task_has_begun() -> None:
    trace = trace_of([4, 5], [[4, 5], [5, 8]], [4, 8])
    parts = split_time(trace, PANEL, 0.0, 10.0, {KEY: 3}, first=2.0)
    assert parts["waiting for a panel"] == pytest.approx(1)
    assert parts["waiting for Dask"] == pytest.approx(3)


class FirstCalls(VirtualGpu):
    """A virtual GPU that loads a kernel at its first call, for a hundredth of a second."""

    def __init__(self) -> None:
        super().__init__("gpu0")
        self.loading: list[Interval] = []
        self.called: set[str] = set()

    def call(self, kernel: str, *arguments: Any) -> None:
        if kernel not in self.called:
            self.called.add(kernel)
            began = time.perf_counter()
            time.sleep(0.01)
            self.loading.append((began, time.perf_counter()))
        super().call(kernel, *arguments)


def test_loading_a_kernel_is_no_part_of_its_first_call() -> None:
    plan, target, device = hetero_la.plan("lu", A.shape, nb=100), np.empty_like(A), FirstCalls()
    job = replace(plan.job(), traced=True)
    for kinds in (len({c.kind for c in plan.programs[0].select(CallKernel)}), 0):
        storage = ArrayStorage(A, np.asfortranarray(target))
        trace = run_in_threads(job, storage, [device]).traces[0]()
        assert len(trace.loading) == kinds
        run = TracedRun(plan, trace.issued[0], trace.end, [trace])
        assert run.parts()[0]["loading kernels"] >= 0.009 * kinds
        for begin, end in trace.loading:
            assert not ((trace.spans[:, 0] < end) & (trace.spans[:, 1] > begin)).any()
        rects = [shape for shape in draw_runs([run]).shapes if isinstance(shape, Rect)]
        shown = [rect for rect in rects if rect.fill == LOADING]
        assert len(shown) >= (3 if kinds else 2)  # swatch, part, and boxes that may be merged
        names = [event["name"] for event in chrome_events([run])]
        assert names.count("loading kernels") == kinds


def test_parts_of_random_traces_add_up() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        edges = np.sort(rng.random(12)).reshape(-1, 2)
        spans = np.sort(rng.random((6, 2)), axis=1)
        program = Program(0, [0], [PANEL.instructions[place % 2] for place in range(6)])
        trace = WorkerTrace(spans[:, 0] - 0.1, spans, edges)
        parts = split_time(trace, program, 0.2, 0.9)
        assert sum(parts.values()) == pytest.approx(0.7)


def test_clocks_of_other_hosts_are_shifted_to_the_end_of_the_run() -> None:
    here = trace_of([1.0], [[1.0, 2.0]], [1.0, 3.0])
    far = trace_of([501.0], [[501.0, 502.0]], [500.0, 503.0])
    other = trace_of([500.0], [[500.0, 501.0]], [500.0, 501.0])
    shifted = align_clocks([here, far, other], ["here", "there", "there"], "here", 4.0)
    assert [trace.end for trace in shifted] == [3.0, 4.0, 2.0]


def test_clocks_of_this_host_are_left_alone(run: TracedRun) -> None:
    assert {worker.host for worker in run.plan.workers} == {platform.node()}


# --- files


@pytest.mark.parametrize("name", ["a.json", "a.svg", "a.html"])
def test_a_timeline_that_fails_midway_leaves_the_old_one(
    run: TracedRun, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Path, text: str, **_: object) -> None:
        self.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / name).write_bytes(b"old")
    monkeypatch.setattr(Path, "write_text", broken)
    with pytest.raises(OSError, match=f"cannot write .*{name}: No space left on device"):
        hetero_la.Trace([run]).write(tmp_path / name)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"old")]


def test_chrome_events(run: TracedRun, tmp_path: Path) -> None:
    hetero_la.Trace([run]).write(tmp_path / "a.json")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    calls = [(w, i) for w, p in enumerate(run.plan.programs) for i in p.instructions]
    windows = sum(len(trace.windows) for trace in run.workers)
    assert len(slices) == len(calls) + windows
    assert {(e["pid"], e["name"]) for e in slices} >= {(w, i.label) for w, i in calls}
    assert all(e["ts"] >= 0 and e["ts"] + e["dur"] <= 1e6 * run.seconds + 1 for e in slices)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "gpu0", 1: "gpu1"}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    receives = [i for _, i in calls if isinstance(i, ReceiveMessage)]
    assert len(starts) == len(ends) == len(receives) > 0
    for number, start in starts.items():
        assert start["pid"] != ends[number]["pid"]
        assert start["ts"] <= ends[number]["ts"]
        for event in (start, ends[number]):  # each is bound to the slice that it lies in
            assert any(
                (s["pid"], s["tid"]) == (event["pid"], event["tid"])
                and s["ts"] - 1e-3 <= event["ts"] <= s["ts"] + s["dur"] + 1e-3
                for s in slices
            )


def explains_arrows(scene: Scene) -> bool:
    return any("Arrows" in shape.text for shape in scene.shapes if isinstance(shape, Text))


def test_the_chart_shows_every_call_and_the_parts(run: TracedRun) -> None:
    scene = draw_runs([run])
    tips = {s.tip.split(":")[0] for s in scene.shapes if isinstance(s, Rect) and s.tip}
    assert set(PARTS) <= tips
    calls = {i.label for p in run.plan.programs for i in p.select(CallKernel)}
    assert len(calls & tips) > 0.5 * len(calls)  # some are too short, and drawn together
    extents = [extent(s) for s in scene.shapes if isinstance(s, Text)]
    assert not [pair for pair in itertools.combinations(extents, 2) if overlap(*pair)]
    assert shapes(svg(scene), "rect")
    assert explains_arrows(scene)


def test_parts_are_drawn_as_long_as_they_took(run: TracedRun) -> None:
    scene = draw_runs([run])
    drawn: dict[float, float] = {}
    for shape in scene.shapes:
        if isinstance(shape, Rect) and shape.tip.split(":")[0] in PARTS:
            drawn[shape.y] = drawn.get(shape.y, 0.0) + shape.width
    assert list(drawn.values()) == pytest.approx([1080.0, 1080.0])


def test_calls_too_short_to_be_seen_are_drawn_together(run: TracedRun) -> None:
    many = 20_000
    times = run.began + np.linspace(0, run.seconds, many + 1)
    graph = TaskGraph(run.plan.layout)
    A = graph.matrix("A")
    graph.add("gemm", step=0, column=1, reads=[A[1, 0], A[0, 1]], updates=[A[1, 1]])
    program = replace(run.plan.programs[0], instructions=[
        CallKernel(0, 1, 1, "gemm", graph.tasks[0].accesses) for _ in range(many)
    ])  # fmt: skip
    planned = PlannedGraph(graph, run.plan, run.plan.distribution)
    plan = replace(run.plan, programs=[program], workers=run.plan.workers[:1], graph=planned)
    spans = np.column_stack([times[:-1], times[1:]])
    trace = WorkerTrace(times[:-1], spans, np.array([[run.began, run.ended]]))
    scene = draw_runs([TracedRun(plan, run.began, run.ended, [trace])])
    assert sum(isinstance(shape, Rect) for shape in scene.shapes) < 3000
    assert not explains_arrows(scene)  # one worker sends nothing


@pytest.mark.parametrize("suffix", ["json", "svg", "html"])
def test_the_command_line_writes_a_timeline(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    assert main(["lu", "--random", "200", "--nb", "50", "--trace", str(path)]) == 0
    assert "getrf" in path.read_text()
    assert main(["sweep", "qr", "--n", "60,80", "--trace", str(path)]) == 0
    assert "geqrf" in path.read_text()


def test_the_command_line_writes_an_animation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.gif"
    assert main(["lu", "--random", "200", "--nb", "50", "--trace", str(path)]) == 0
    assert path.read_bytes().startswith(b"GIF89a")


def test_a_timeline_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["lu", "--random", "100", "--trace", str(tmp_path / "a.txt")]) == 2
    assert main(["lu", "--random", "100", "--trace", str(tmp_path / "no" / "a.svg")]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "must end in one of .json, .svg, .png, .html" in err
    assert "there is no folder" in err
