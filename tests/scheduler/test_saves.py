"""Checkpoints: what programs save is a state of the matrix from which the run can go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.planning import check_memory
from hetero_la.planning.decisions import Problem
from hetero_la.planning.options import Options
from hetero_la.planning.planner import make_plan, resume
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.program.checkpoint_cuts import CheckpointCuts
from hetero_la.scheduler.program.column_runs import BlockColumns, ColumnRun
from hetero_la.scheduler.program.instructions import LoadColumn, Program, SaveRegion
from hetero_la.scheduler.run.checkpoint_store import Checkpoints, write_files
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.support import assert_close, problem, random, run_by_messages, set_up

NB = 4
CASES = {
    "lu": [(27, 27, 0), (27, 14, 0), (14, 27, 0)],
    "solve": [(27, 27, 6)],
    "inverse": [(16, 16, 16)],
    "cholesky": [(27, 27, 0)],
    "solve_positive": [(27, 27, 6)],
    "inverse_positive": [(16, 16, 16)],
    "qr": [(27, 27, 0), (27, 14, 0), (14, 27, 0)],
    "explicit_q": [(27, 14, 27), (14, 27, 14)],
    "lstsq": [(27, 14, 6)],
    "minimum_norm": [(27, 14, 6)],
}


def first_steps(graph: TaskGraph, step: int) -> TaskGraph:
    first = TaskGraph(graph.layout)
    first.values = graph.values
    for task in graph.tasks:
        if task.step < step:
            first.add(
                task.kind, step=task.step, column=task.column,
                reads=task.reads, updates=task.updates, writes=task.writes,
            )  # fmt: skip
    return first


def given_problem(routine: str, m: int, n: int, nrhs: int) -> tuple[NDArray, NDArray | None, Any]:
    """A matrix, right-hand sides, and what the run has to leave."""
    layout = TileLayout(m, n, NB, nrhs)
    if routine != "inverse_positive":
        found = problem(routine, layout)
        return found.a, found.b, found.expected
    found = problem("solve_positive", TileLayout(m, n, NB))
    return found.a, None, np.hstack([found.expected, np.linalg.inv(found.a)])


@pytest.mark.parametrize("routine", CASES)
def test_every_checkpoint_is_a_state_to_go_on_from(routine: str) -> None:
    """Workers look ahead; each checkpoint is what the steps before it leave, in any order."""
    for m, n, nrhs in CASES[routine]:
        layout = TileLayout(m, n, NB, nrhs)
        a, b, expected = given_problem(routine, m, n, nrhs)
        last = max(task.step for task in ROUTINES[routine].tasks(layout).tasks)
        for depth, every in enumerate([3, 1, 2, 1]):
            steps = range(every, last + 1, every)
            made = set_up(layout, 3, depth=depth, routine=routine, checkpoints=steps)
            saved: dict[int, Any] = {}
            assert_close(run_by_messages(made, a, b, saved=saved)[0], expected)
            assert sorted(saved) == list(steps)
            checkpoints = Checkpoints(layout)
            for step in steps:
                checkpoints.complete(step, [saved[step]])
                rest = set_up(layout, 1 + step % 3, routine=routine, done=step)
                columns = load_all(checkpoints, ArrayStorage(a, a, b), rest.programs, layout)
                given = checkpoints.values({"A"})
                check_state(first_steps(made.graph, step), a, b, columns, given)
                beside = columns[:, n:] if nrhs else None
                found, more = run_by_messages(rest, columns[:, :n], beside, given=given)
                assert_close(found, expected)
                names = made.graph.results
                results = {name for name in [*given, *more] if name[0] in names}
                assert results == {(name, k) for name in names for k in range(layout.kt)}


def check_state(
    first: TaskGraph, a: NDArray, b: NDArray | None, columns: NDArray, given: Any
) -> None:
    """A checkpoint is what the first steps leave when they are done alone and in order."""
    layout = first.layout
    right = np.full((layout.m, layout.nrhs), np.nan) if b is None else b
    state = np.asfortranarray(np.hstack([a, right]))
    values = run_in_order(first, range(len(first)), state, CpuDevice(), KernelOptions())
    written = [region for task in first.tasks for region in task.updates + task.writes]
    for column in {region.index for region in written if region.name == "A"}:
        start, stop = layout.columns(column)
        assert_close(columns[:, start:stop], state[:, start:stop])
    for name, value in given.items():
        np.testing.assert_allclose(value, values[name], rtol=1e-7, atol=1e-9)


def load_all(
    checkpoints: Checkpoints, base: ArrayStorage, programs: Sequence[Program], layout: TileLayout
) -> NDArray:
    """The matrix, as the programs of a run that goes on from a checkpoint load it."""
    array = np.full((layout.m, layout.width), np.nan, order="F")
    array[:, : layout.n] = base.source  # with the rows that no task touches
    for load in (load for program in programs for load in program.select(LoadColumn)):
        (start, stop), (_, _, *rows) = layout.columns(load.region.index), load.region
        part = slice(*map(layout.row, rows))
        array[part, start:stop] = checkpoints.columns(base, start, stop, part)
    return array


def test_a_checkpoint_has_what_has_changed() -> None:
    layout = TileLayout(24, 24, NB)
    made = set_up(layout, 2, checkpoints=[2, 4])
    saved: dict[int, Any] = {}
    run_by_messages(made, random(24), saved=saved)
    columns = {step: {i for name, i in part if name == "A"} for step, part in saved.items()}
    assert columns == {2: set(range(6)), 4: {2, 3, 4, 5}}
    # What only its own step needs (W, net) is not part of it.
    assert {name for name, _ in saved[2]} == {"A", "ipiv", "info"}
    assert not any(program.select(SaveRegion) for program in set_up(layout, 2).programs)


def test_checkpoints_on_gpus_wait_for_the_device() -> None:
    """A copy is taken once everything that the device was given is done."""
    layout = TileLayout(24, 24, NB)
    a = random(24)
    made = set_up(layout, 2, checkpoints=[3])
    waits: list[int] = []

    class Device(VirtualGpu):
        def synchronize(self) -> None:
            waits.append(1)
            super().synchronize()

    saved: dict[int, Any] = {}
    run_by_messages(made, a, devices=[Device("gpu0"), Device("gpu1")], saved=saved)
    copies = [i for p in made.programs for i in p.select(SaveRegion)]
    assert len(waits) >= len(copies) > 0
    assert saved[3].keys() >= {("A", 5), ("ipiv", 0)}


def test_columns_that_are_not_worked_on_step_by_step_cannot_be_saved() -> None:
    graph = TaskGraph(TileLayout(8, 8, NB))
    A = graph.matrix("A")
    graph.add("gemm", step=3, column=0, updates=[A[0, 0]])
    graph.add("gemm", step=1, column=0, updates=[A[1, 0]])
    cuts = CheckpointCuts(graph, graph.tasks, [2])
    parts = [BlockColumns(b, range(b.start, b.stop)) for b in graph.blocks]
    with pytest.raises(ValueError, match="not in the order of their steps"):
        list(cuts.reached_by(ColumnRun((0, 0, 0, 0, 0), parts)))


# --- plans


def far(count: int) -> tuple[WorkerInfo, ...]:
    return tuple(
        WorkerInfo(f"cpu{i}", "cpu", f"tcp://10.0.0.{i}", pid=-1 - i) for i in range(count)
    )


def test_plans_with_checkpoints() -> None:
    options = Options(nb=NB, checkpoint=2)
    args = Problem("lu", 24, 24, 0, np.dtype(float)), options
    plan = make_plan(*args, far(3))
    assert plan.job().checkpoints == [2, 4, 6]
    assert "checkpoints: every 2 steps, in the client's memory" in plan.explain()
    assert make_plan(*args, (hetero_la.plan("lu", (4, 4)).workers[0],)).job().checkpoints == []


def test_what_is_left_is_planned_for_whoever_is_there() -> None:
    plan = make_plan(
        Problem("solve", 24, 24, 5, np.dtype(float)), Options(nb=NB, checkpoint=2), far(3)
    )
    for step, count in ((0, 2), (2, 2), (4, 5), (7, 1)):
        rest = resume(plan, far(count), step)
        assert rest.layout == plan.layout
        assert len(rest.programs) == count
        assert all(task.step >= step for task in rest.graph.tasks)
        assert rest.job().checkpoints == [s for s in plan.job().checkpoints if s > step]
        assert rest.predicted_seconds > 0  # nobody waits for ever
        if step:
            assert rest.predicted_seconds < resume(plan, far(count), 0).predicted_seconds


def test_no_worker_waits_for_another_for_ever() -> None:
    for routine, shapes in CASES.items():
        for m, n, nrhs in shapes:
            plan = hetero_la.plan(routine, (m, n), nrhs=nrhs, nb=NB)
            for step in range(max(task.step for task in plan.graph.tasks) + 1):
                rest = resume(plan, far(3), step)
                simulate(rest.programs, rest.traffic, rest.graph, rest.model, rest.dtype)


def test_the_client_needs_room_for_two_checkpoints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The latest one, and the next; a run that goes on has the first of them already."""
    monkeypatch.setattr(check_memory, "available_memory", lambda: 2 * 24 * 24 * 8 - 1)
    problem = Problem("lu", 24, 24, 0, np.dtype(float))
    room = {worker.name: 10**6 for worker in far(2)}
    plan = make_plan(problem, Options(nb=NB, checkpoint=2), far(2))
    with pytest.raises(InsufficientMemoryError, match=r"needs 9,216 bytes on the host, which has"):
        check_memory.check_memory(plan, room, -1, new_columns=0)
    check_memory.check_memory(plan, room, -1, new_columns=0, checkpoints=1)
    in_files = Options(nb=NB, checkpoint=2, checkpoint_folder=tmp_path)
    for options in (Options(nb=NB), in_files):
        check_memory.check_memory(make_plan(problem, options, far(2)), room, -1, new_columns=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"checkpoint": 0}, "checkpoint must be a positive number of steps or None, not 0"),
     ({"checkpoint": 2, "panel": "cpu"}, "not panel='cpu'"),
     ({"checkpoint_folder": "/"}, "checkpoint_folder='/' needs checkpoint"),
     ({"checkpoint": 1, "checkpoint_folder": 3}, "must be a path, not 3"),
     ({"checkpoint": 1, "checkpoint_folder": "/no/such"}, "that exists, not '/no/such'")],
)  # fmt: skip
def test_options_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hetero_la.lu_factor(random(4), **given)


# --- files


def test_checkpoints_in_files(tmp_path: Path) -> None:
    layout = TileLayout(8, 8, NB)
    checkpoints = Checkpoints(layout, str(tmp_path))
    folder = checkpoints.folder
    assert folder is not None
    first, second = random(8, 4, seed=1), random(8, 4, seed=2)
    checkpoints.complete(1, [write_files({("A", 1): first, ("T", 0): first}, folder, "1")])
    checkpoints.complete(2, [write_files({("A", 1): second}, folder, "2")])
    # Files that a later checkpoint has replaced are gone, and none is half-written.
    assert sorted(path.name for path in Path(folder).iterdir()) == ["1-T-0.npy", "2-A-1.npy"]
    assert np.array_equal(checkpoints.columns(ArrayStorage(random(8), random(8)), 4, 8), second)
    assert np.array_equal(checkpoints.values({"A"})["T", 0], first)
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []


def test_files_that_the_client_does_not_see(tmp_path: Path) -> None:
    checkpoints = Checkpoints(TileLayout(8, 8, NB), str(tmp_path))
    checkpoints.complete(1, [{("A", 0): random(8, 4)}])
    elsewhere = str(tmp_path / "elsewhere.npy")
    with pytest.raises(FileNotFoundError, match="must be shared by all hosts"):
        checkpoints.complete(2, [{("A", 0): elsewhere}])
    assert checkpoints.step == 1


def test_the_run_s_own_columns_where_a_checkpoint_has_none() -> None:
    layout = TileLayout(8, 8, NB)
    checkpoints, a, programs = Checkpoints(layout), random(8), set_up(layout, 2).programs
    base = ArrayStorage(a, np.empty_like(a, order="F"))
    assert np.array_equal(load_all(checkpoints, base, programs, layout), a)
    checkpoints.complete(1, [{("A", 0): np.zeros((8, 4))}])
    array = load_all(checkpoints, base, programs, layout)
    assert np.array_equal(array, np.hstack([np.zeros((8, 4)), a[:, 4:]]))
