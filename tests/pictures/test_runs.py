"""What pictures say of a run: bounds, tasks, memory and transfers are the simulation's."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hetero_la
from hetero_la.execution.timeline import predicted_run
from hetero_la.pictures.charts.gantt import draw_runs
from hetero_la.pictures.runs.animation import animation
from hetero_la.pictures.runs.recording import Recording
from hetero_la.pictures.runs.tile_states import DONE, EMPTY, TileStates
from hetero_la.pictures.runs.tracks import (
    bounds,
    link_use,
    memory,
    ready_tasks,
    running_tasks,
    step_spans,
)
from hetero_la.pictures.scene import Rect, Text
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds
from tests.pictures.drawn import CPU, GPUS
from tests.support import covering

ROUTINES = ("lu", "cholesky", "qr", "explicit_q", "solve", "lstsq")


def predicted(
    routine: str = "lu", n: int = 200, workers: int = 2, dtype: str = "float64"
) -> tuple[hetero_la.Plan, Recording]:
    nrhs = {"explicit_q": n, "solve": 15, "lstsq": 15}.get(routine, 0)
    team = GPUS[:workers] or (CPU,)
    plan = hetero_la.plan(routine, (n, n), dtype, nb=20, workers=team, nrhs=nrhs)
    return plan, plan.predicted_recording()


cases = pytest.mark.parametrize(
    ("routine", "n", "workers", "dtype"),
    covering(ROUTINES, [10, 60, 190], [0, 1, 2, 4], ["float32", "complex128"]),
)


@cases
def test_no_run_beats_its_bounds(routine: str, n: int, workers: int, dtype: str) -> None:
    plan, run = predicted(routine, n, workers, dtype)
    simulated = plan.simulate()
    work, path = bounds(run)
    assert run.seconds == simulated.makespan
    assert work == pytest.approx(simulated.computing.mean())
    assert 0 < path <= run.seconds * (1 + 1e-12)
    assert work <= run.seconds * (1 + 1e-12)
    # A task's share is at most its call, and all shares of a call add up to it.
    calls = sum(
        (spans[run.call_mask(w), 1] - spans[run.call_mask(w), 0]).sum()
        for w, spans in enumerate(run.spans)
    )
    assert run.task_seconds.sum() == pytest.approx(calls)


@cases
def test_ready_tasks_are_those_that_could_begin(
    routine: str, n: int, workers: int, dtype: str
) -> None:
    _, run = predicted(routine, n, workers, dtype)
    ready, running = ready_tasks(run), running_tasks(run)
    starts, stops = run.task_spans.T
    for time in np.linspace(0, run.seconds, 17)[:-1] + run.seconds / 1e3:
        waiting = [
            task.index for task in run.graph.tasks
            if starts[task.index] > time and all(stops[other] <= time for other in task.after)
        ]  # fmt: skip
        assert ready.values[np.searchsorted(ready.times, time, "right") - 1] == len(waiting)
        now = ((starts <= time) & (time < stops)).sum()
        assert running.values[np.searchsorted(running.times, time, "right") - 1] == now


@cases
def test_memory_stays_within_what_the_simulation_says(
    routine: str, n: int, workers: int, dtype: str
) -> None:
    plan, run = predicted(routine, n, workers, dtype)
    peak = plan.simulate().peak_bytes
    for worker, program in enumerate(plan.programs):
        used = memory(run, worker)
        assert used.values.max() <= peak[worker]
        assert used.values.min() == peak[worker] - plan.buffer_bytes(program)
        assert used.values.max() > used.values.min() or not plan.buffer_bytes(program)


@cases
def test_links_move_the_bytes_of_the_simulation(
    routine: str, n: int, workers: int, dtype: str
) -> None:
    plan, run = predicted(routine, n, workers, dtype)
    assert link_use(run).between.sum() == pytest.approx(plan.simulate().bytes_moved)


def test_bytes_are_where_their_transfer_is() -> None:
    plan, run = predicted()
    between = link_use(run).between
    edges = np.linspace(0, run.seconds, len(between) + 1)
    covered = np.zeros(len(between), bool)
    for program, spans in zip(plan.programs, run.spans, strict=True):
        for i, (start, stop) in zip(program.instructions, spans, strict=True):
            if i.op == "receive":
                covered |= (edges[1:] >= start) & (edges[:-1] <= stop)
    assert between.any()
    assert not between[~covered].any()


def test_steps_last_from_their_first_call_to_their_last() -> None:
    plan, run = predicted("qr")
    found = step_spans(run)
    for step, (begin, end) in enumerate(found):
        times = [
            span
            for program, spans in zip(plan.programs, run.spans, strict=True)
            for i, span in zip(program.instructions, spans, strict=True)
            if isinstance(i, CallKernel) and i.step == step
        ]
        assert (begin, end) == (min(t[0] for t in times), max(t[1] for t in times))


def test_the_parts_of_a_measured_run_are_within_its_bounds() -> None:
    with hetero_la.Cluster(virtual_gpus=2, cpus=0) as cluster, hetero_la.trace() as t:
        a = np.random.default_rng(0).standard_normal((300, 300))
        hetero_la.lu_factor(a, nb=64, client=cluster)
    (run,) = t.runs
    work, path = bounds(run.recording)
    computing = np.mean([parts["computing"] for parts in run.parts()])
    assert work == pytest.approx(computing, rel=1e-6)
    assert 0 < max(work, path) <= run.seconds


def test_a_chart_shows_bounds_and_tracks_within_itself() -> None:
    plan, run = predicted("qr")
    scene = draw_runs([predicted_run(plan, plan.simulate())])
    said = {shape.text for shape in scene.shapes if isinstance(shape, Text)}
    work, path = bounds(run)
    assert {"steps", "tasks", "memory", "links", "ready", "at work"} <= said
    assert f"work / workers {in_seconds(work)}" in said
    assert f"critical path {in_seconds(path)}" in said
    assert in_bytes(max(run.peak_bytes)) in said
    steps = [s for s in scene.shapes if isinstance(s, Rect) and s.tip.startswith("step ")]
    assert len(steps) == len(step_spans(run))
    scale = steps[0].width / np.diff(step_spans(run))[0, 0]
    for bar, (begin, end) in zip(steps, step_spans(run), strict=True):
        assert bar.x == pytest.approx(118 + begin * scale)
        assert bar.width == pytest.approx(max((end - begin) * scale, 0.5))
    for shape in scene.shapes:
        assert shape.corner[0] <= scene.width
        assert shape.corner[1] <= scene.height


@pytest.mark.parametrize("routine", ["lu", "cholesky", "solve"])
def test_tiles_are_at_work_while_their_task_runs(routine: str) -> None:
    _, run = predicted(routine, 100, 2)
    states = TileStates(run)
    for time in np.linspace(0, run.seconds, 20):
        found = states.at(float(time)).copy()
        expected = np.full(found.shape, -1)
        for task in np.argsort(run.task_spans[:, 0], kind="stable"):
            if run.task_spans[task, 0] <= time:
                for region in run.written(int(task)):
                    expected[region.start : region.stop, region.index] = task
        assert np.array_equal(found, expected)
    end = states.colours(2 * run.seconds, run.seconds / 100)
    assert (end[states.last >= 0] == DONE).all()
    assert (end[states.last < 0] == EMPTY).all()


@pytest.mark.parametrize(("routine", "n"), [("lu", 10), ("qr", 70), ("cholesky", 130)])
@pytest.mark.exhaustive
def test_an_animation_is_a_gif_of_the_run(routine: str, n: int, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    plan, _ = predicted(routine, n)
    plan.draw(tmp_path / "a.gif")
    with image.open(tmp_path / "a.gif") as moving:
        assert moving.n_frames > 1
        moving.seek(0)
        first = np.asarray(moving.convert("RGB")).astype(int)
        moving.seek(moving.n_frames - 1)
        last = np.asarray(moving.convert("RGB")).astype(int)
    # The lower left corner of the matrix is untouched, and then finished, up to the palette.
    assert abs(first[62 + 370, 16 + 5] - EMPTY).max() < 8
    assert abs(last[62 + 370, 16 + 5] - DONE).max() < 8


def test_long_names_of_workers_do_not_cover_the_matrix() -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    _, run = predicted(n=60)
    parts = []
    for workers in (run.workers, ["tcp://192.168.100.100:40001"] * 2):
        with image.open(io.BytesIO(animation(replace(run, workers=workers)))) as moving:
            parts.append(np.asarray(moving.convert("RGB"))[:442, :398])
    assert np.array_equal(*parts)


def test_what_has_no_run_has_no_animation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan, _ = predicted()
    path = tmp_path / "a.gif"
    with pytest.raises(ValueError, match="an animation shows the run of a plan"):
        plan.graph.draw(path)
    with pytest.raises(ValueError, match="tile by tile"):
        plan.draw(path, granularity="tile")
    with pytest.raises(ValueError, match="without tasks"):
        hetero_la.plan("lu", (0, 0)).draw(path)
    assert not path.exists()


def test_gif_without_pillow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ValueError, match=r"Pillow library .*hetero-la\[viz\]"):
        hetero_la.plan("lu", (40, 40), nb=10).draw(tmp_path / "a.gif")
