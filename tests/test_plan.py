"""Plans: what is decided, and what they say of it."""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest

import hetero_la
from hetero_la import Options
from hetero_la.algorithms.routines import ROUTINES, title_of
from hetero_la.execution import executor_choice
from hetero_la.execution.resident_factors import Residency
from hetero_la.planning import planner
from hetero_la.planning.decisions import Problem, default_nb
from hetero_la.planning.given import Given
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.machine.model import NOMINAL_DASK, window_steps
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.predict.simulate import Simulation
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.arrays.errors import DeviceUnavailableError
from hetero_la.tiles.storage.layout import TileLayout

GPUS = tuple(WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", device=i) for i in range(4))
CPUS = tuple(WorkerInfo(f"cpu{i}", "cpu", f"inproc://c{i}", blas_threads=2) for i in range(2))


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr", "solve"])
@pytest.mark.parametrize("n", [10**8, 2**33, 2**80])
def test_what_would_have_too_many_tasks(routine: str, n: int) -> None:
    began = time.perf_counter()
    with pytest.raises(ValueError, match=r"choose a larger nb"):
        hetero_la.plan(routine, (n, n))
    assert time.perf_counter() - began < 5


def test_a_lazy_array_that_would_have_too_many_tasks() -> None:
    with pytest.raises(ValueError, match=r"choose a larger nb"):
        hetero_la.lu_factor(da.zeros((2**33, 2**33), chunks=2**33))


def test_the_calling_thread_has_the_cores_that_its_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1, 5, 6})
    assert calling_thread().blas_threads == 3


def test_a_plan_for_the_calling_thread() -> None:
    plan = hetero_la.plan("lu", (1000, 600), "complex64", nb=100, lookahead=2)
    assert (plan.routine, plan.nb, plan.lookahead, plan.panel) == ("lu", 100, 2, "cpu")
    assert (plan.layout.mt, plan.layout.nt, plan.layout.kt) == (10, 6, 6)
    assert [worker.name for worker in plan.workers] == ["caller"]
    assert plan.panel_worker is None
    assert len(plan.programs) == 1
    assert not plan.traffic.messages


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("m", "n", "nrhs", "flops"),
    [(600, 600, 0, 2 / 3 * 600**3), (600, 600, 5, 2 / 3 * 600**3 + 2 * 600**2 * 5),
     (900, 300, 0, 900 * 300**2 - 300**3 / 3), (300, 900, 0, 900 * 300**2 - 300**3 / 3),
     (0, 0, 0, 0)],
)  # fmt: skip
def test_flops_are_lapack_s(m: int, n: int, nrhs: int, flops: float, dtype: str) -> None:
    plan = hetero_la.plan("solve" if nrhs else "lu", (m, n), dtype, nrhs=nrhs, nb=64)
    assert plan.flops == pytest.approx(flops * (4 if dtype.startswith("c") else 1))


@pytest.mark.parametrize(
    ("workers", "panel", "owners", "at"),
    [(GPUS, "gpu", 4, None), (GPUS + CPUS, "gpu", 4, None), (GPUS + CPUS, "cpu", 4, 4),
     (GPUS[:1], "auto", 1, None), (CPUS, "auto", 2, None), (CPUS, "cpu", 2, None)],
)  # fmt: skip
def test_every_worker_has_the_role_that_the_panel_option_gives_it(
    workers: tuple[WorkerInfo, ...], panel: str, owners: int, at: int | None
) -> None:
    plan = hetero_la.plan("lu", (1000, 1000), nb=50, workers=workers, panel=panel)
    assert plan.panel_worker == at
    assert len(plan.workers) == owners + (at is not None)
    assert set(plan.distribution.owners) == set(range(owners))
    assert plan.panel == ("cpu" if at is not None or workers is CPUS else "gpu")
    panels = {
        w
        for w, p in enumerate(plan.programs)
        if any(i.kind == "getrf" for i in p.select(CallKernel))
    }
    assert panels == ({at} if at is not None else set(range(owners)))


def test_roles_that_nobody_can_take() -> None:
    with pytest.raises(DeviceUnavailableError, match="needs a CPU worker besides"):
        hetero_la.plan("lu", (10, 10), workers=GPUS, panel="cpu")
    with pytest.raises(ValueError, match=r"^a run needs workers"):
        hetero_la.plan("lu", (10, 10), workers=[])
    with pytest.raises(DeviceUnavailableError, match="needs a GPU worker"):
        hetero_la.plan("lu", (10, 10), workers=CPUS, panel="gpu")


@pytest.mark.parametrize(("m", "n", "nrhs"), [(0, 0, 0), (1, 1, 1), (700, 700, 3), (64, 500, 0)])
@pytest.mark.parametrize("workers", [None, GPUS, GPUS[:2] + CPUS, CPUS])
def test_explanations_say_what_the_plan_holds(
    m: int, n: int, nrhs: int, workers: tuple[WorkerInfo, ...] | None
) -> None:
    panel = "cpu" if workers and len(workers) == 4 and workers[-1].kind == "cpu" else "auto"
    plan = hetero_la.plan(
        "solve" if nrhs else "lu", (m, n), nrhs=nrhs, nb=64, workers=workers, panel=panel
    )
    text = plan.explain()
    lines = text.splitlines()
    assert lines[0].startswith(f"{title_of(plan.routine)} of a {m} x {n} float64 matrix")
    assert f"nb = {min(64, max(m, n, 1))}, {plan.layout.mt} x {plan.layout.nt} tiles" in text
    assert f"graph: {len(plan.graph)} task" in text
    assert "look-ahead: 1 panel;" in text
    assert [line.split()[0] for line in lines[-len(plan.workers) :]] == [
        worker.name for worker in plan.workers
    ]
    assert ("windows: none" in text) == (workers is None)
    assert "nan" not in text


def on(host: str, pid: int, worker: WorkerInfo = GPUS[0]) -> WorkerInfo:
    """A worker of another process, whose GPU is no other one's."""
    return replace(worker, host=host, pid=pid, gpu=f"{host}{pid}")


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ((on("a", 1), on("a", 2)), ["NCCL between 2 processes, 356 GB/s, 10 µs"]),
        (
            (on("a", 1), on("a", 2), on("b", 1)),
            [
                "NCCL between 2 processes, 356 GB/s, 10 µs",
                "NCCL over the network between 3 processes, 50 GB/s, 15 µs",
            ],
        ),
        (
            (on("a", 1, CPUS[0]), on("a", 2, CPUS[0])),
            ["shared memory between 2 processes, 4 GB/s, 100 µs"],
        ),
        (
            (on("a", 1, CPUS[0]), on("b", 1, CPUS[0])),
            ["Dask's messages between 2 processes, 1 GB/s, 2 ms"],
        ),
        (GPUS, []),
    ],
    ids=["one host", "two hosts", "shared memory", "Dask", "one process"],
)
def test_explanations_say_how_panels_travel_between_processes(
    workers: tuple[WorkerInfo, ...], said: list[str]
) -> None:
    text = hetero_la.plan("lu", (400, 400), nb=50, workers=workers).explain()
    lines = [line for line in text.splitlines() if line.startswith("panels")]
    assert lines == [f"panels by {one} (nominal)" for one in said]


def test_dask_takes_no_time_for_messages_that_do_not_go_through_it() -> None:
    plan = hetero_la.plan("lu", (400, 400), nb=10, workers=(on("a", 1), on("a", 2)))
    alone, dask = plan._simulated(()).makespan, plan.model.dask
    assert len(plan.traffic.messages) >= 40
    # Only for a worker's tasks, whatever they send: open, meet the others, run.
    assert plan.predicted_seconds == pytest.approx(alone + dask.start + 2 * dask.hop)


def test_blocks_of_dask_arrays_take_dask_s_tasks_and_go_to_their_owners() -> None:
    problem, workers = Problem("lu", 4000, 4000, 0, np.dtype("d")), (on("a", 1), on("a", 2))
    plain, few, many = (
        make_plan(problem, Options(nb=500), workers, Given(blocks=blocks)) for blocks in (0, 2, 32)
    )
    hop, sent = plain.model.dask.hop, plain.model.transfer_seconds(4000**2 * 8 / 4, 1, 0)
    # Eight columns are eight blocks of the result, four of each worker.
    assert few.predicted_seconds - plain.predicted_seconds == pytest.approx(
        (4 + 0.2 * (1 + 4)) * hop + sent
    )
    assert many.predicted_seconds - few.predicted_seconds == pytest.approx(0.2 * 15 * hop)
    inside = [replace(gpu, pid=os.getpid()) for gpu in GPUS[:2]]
    one = make_plan(problem, Options(nb=500), tuple(inside), Given(blocks=9))
    assert one.model.dask == NOMINAL_DASK  # one process does it in one task


def test_what_there_is_one_of_is_in_the_singular() -> None:
    options = {"nb": 8, "lookahead": 1, "ib": 1, "checkpoint": 1}
    worker = replace(CPUS[0], pid=CPUS[0].pid + 1)
    text = hetero_la.plan("solve", (8, 8), nrhs=1, workers=(worker,), **options).explain()
    for one in ("1 right-hand side\n", "1 step\n", "1 panel;", "every 1 step,"):
        assert one in text
    assert "by one kernel" not in text  # which CPUs have not
    text = hetero_la.plan("lu", (8, 8), workers=GPUS[:1], ib=1).explain()
    assert ", 1 column by one kernel" in text
    text = hetero_la.plan("cholesky", (1, 1)).explain()
    for one in ("graph: 1 task,", "critical path: 1 task,", ": 1 tile column,"):
        assert one in text
    made = hetero_la.plan("explicit_q", (8, 8), nrhs=1).explain()
    assert made.startswith("qr with Q of an 8 x 8 float64 matrix with 1 column made\n")


#: What each routine takes: rows, columns, right-hand sides; and its operations at this size.
SIZES = {
    "lu": (900, 300, 0, 900 * 300**2 - 300**3 / 3),
    "solve": (600, 600, 50, 2 / 3 * 600**3 + 2 * 600**2 * 50),
    "inverse": (600, 600, 600, 2 * 600**3),
    "cholesky": (600, 600, 0, 600**3 / 3),
    "solve_positive": (600, 600, 50, 600**3 / 3 + 2 * 600**2 * 50),
    "qr": (900, 300, 0, 2 * 300**2 * (900 - 300 / 3)),
    "explicit_q": (900, 300, 300, 2 * (2 * 300**2 * (900 - 300 / 3))),
    "lstsq": (900, 300, 50, 2 * 300**2 * (900 - 300 / 3) + (4 * 900 * 300 - 300**2) * 50),
    "minimum_norm": (900, 300, 50, 2 * 300**2 * (900 - 300 / 3) + (4 * 900 * 300 - 300**2) * 50),
}


@pytest.mark.parametrize("workers", [None, CPUS, GPUS[:1], GPUS[:2] + CPUS, GPUS])
@pytest.mark.parametrize("routine", SIZES)
def test_plans_of_every_routine(routine: str, workers: tuple[WorkerInfo, ...] | None) -> None:
    m, n, nrhs, flops = SIZES[routine]
    for panel in ("auto", "cpu") if workers == GPUS[:2] + CPUS else ("auto",):
        plan = hetero_la.plan(routine, (m, n), nrhs=nrhs, nb=64, workers=workers, panel=panel)
        assert plan.flops == pytest.approx(flops)
        lines = plan.explain().splitlines()
        size = f"{n} x {m}" if ROUTINES[routine].of_adjoint else f"{m} x {n}"
        assert lines[0].startswith(f"{title_of(routine)} of a {size} float64 matrix")
        beside = "columns made" if routine in ("explicit_q", "inverse") else "right-hand sides"
        assert (beside in lines[0]) == (nrhs > 0)
        assert f"{len(plan.graph)} tasks" in lines[2]
        assert "nan" not in plan.explain()
        run = plan.simulate()
        assert run.makespan == plan.predicted_seconds > 0
        shard = m * (n + nrhs) * 8 / len(plan.distribution.columns(0)) / plan.layout.nt
        assert all(needed > shard / 4 for needed in plan.bytes_needed())
        assert pickle.loads(pickle.dumps(plan)).explain() == plan.explain()
        if panel == "cpu":
            assert plan.panel_worker == 2
            assert "panels on the cpu" in plan.explain()


@pytest.mark.parametrize("routine", SIZES)
def test_predictions_of_every_routine_grow(routine: str) -> None:
    def seconds(n: int, workers: tuple[WorkerInfo, ...]) -> float:
        nrhs = n if routine in ("inverse", "explicit_q") else 0
        plan = hetero_la.plan(routine, (n, n), nrhs=nrhs, nb=1024, workers=workers, panel="gpu")
        return plan._simulated(()).makespan  # without Dask's tasks

    assert seconds(16384, GPUS[:1]) > 2.5 * seconds(8192, GPUS[:1])
    assert seconds(16384, GPUS[:1]) > 1.3 * seconds(16384, GPUS)


def test_predictions_grow_with_the_work() -> None:
    def seconds(n: int, workers: tuple[WorkerInfo, ...]) -> float:
        plan = hetero_la.plan("lu", (n, n), nb=1024, workers=workers, panel="gpu")
        return plan._simulated(()).makespan  # without Dask's tasks

    assert seconds(16384, GPUS[:1]) > 2.5 * seconds(8192, GPUS[:1])
    assert seconds(16384, GPUS[:1]) > 1.3 * seconds(16384, GPUS)
    run = hetero_la.plan("lu", (2048, 2048), workers=GPUS).simulate()
    assert isinstance(run, Simulation)
    assert run.bytes_moved > 0


def test_memory_is_that_of_the_shards_and_what_goes_with_them() -> None:
    n, nb = 16384, 256
    for workers, panel in [(GPUS, "gpu"), (GPUS + CPUS, "cpu")]:
        plan = hetero_la.plan("lu", (n, n), nb=nb, workers=workers, panel=panel)
        needed = plan.bytes_needed()
        assert len(needed) == len(plan.workers)
        for required in needed[:4]:
            assert n * n * 8 / 4 < required < n * n * 8 / 2
    alone = hetero_la.plan("lu", (n, n), nb=nb)
    assert n * n * 8 <= alone.bytes_needed()[0] < 1.1 * n * n * 8


def test_a_large_plan_needs_no_32_bit_indices() -> None:
    plan = hetero_la.plan("lu", (100_000, 100_000), nb=5000)
    assert plan.bytes_needed()[0] > 80_000_000_000
    assert plan.flops == pytest.approx(2 / 3 * 1e15, rel=1e-3)


def test_equal_problems_share_their_plan() -> None:
    problem = Problem("lu", 500, 500, 0, np.dtype("float64"))
    first, second = (make_plan(problem, Options(nb=50), GPUS[:2]) for _ in range(2))
    assert first.graph is second.graph
    assert first.programs is second.programs
    assert make_plan(problem, Options(nb=51), GPUS[:2]).graph is not first.graph


def test_plans_can_be_sent_elsewhere() -> None:
    plan = hetero_la.plan("solve", (300, 300), nrhs=2, nb=50, workers=GPUS[:2])
    again = pickle.loads(pickle.dumps(plan))
    assert again.explain() == plan.explain()
    assert [program.columns for program in again.programs] == [p.columns for p in plan.programs]


@pytest.mark.parametrize("routine", SIZES)
@pytest.mark.parametrize("workers", [(hetero_la.plan("lu", (1, 1)).workers[0],), GPUS[:1], CPUS])
def test_default_tile_sizes(workers: tuple[WorkerInfo, ...], routine: str) -> None:
    sizes = [default_nb(routine, n, n, workers) for n in (0, 1, 100, 384, 2000, 10_000, 60_000)]
    first = [nb if isinstance(nb, int) else nb[0] for nb in sizes]
    assert all(1 <= nb <= 1024 for nb in first)
    assert first[-3:] == sorted(first[-3:])


def test_a_small_matrix_does_not_cut_what_is_wide_beside_it() -> None:
    assert hetero_la.plan("solve", (3, 3), nrhs=50_000).layout.rt == 131
    for routine in ("lu", "qr"):
        assert hetero_la.plan(routine, (3, 50_000)).layout.nt == 131
        assert hetero_la.plan(routine, (5000, 20)).layout.column_widths == [20]
    assert hetero_la.plan("lu", (5, 5)).nb == 5


@pytest.mark.parametrize(("nb", "tail"), [(512, 4), ("4x512+256", 1), ("4x512", 4), ("512+256", 1)])
def test_sequences_of_tiles_have_no_larger_last_one(nb: int | str, tail: int) -> None:
    for n in (300, 2048, 2049, 4000):  # also where what is left of them is one size
        layout = hetero_la.plan("cholesky", (n, n), nb=nb, workers=GPUS[:1]).layout
        assert layout.tail == tail


def test_default_tiles_of_one_gpu_get_smaller_near_the_end() -> None:
    for routine in ("qr", "explicit_q", "lstsq", "minimum_norm"):
        assert default_nb(routine, 40000, 32768, GPUS[:1]) == (1024,) * 16 + (512,)
    assert default_nb("lu", 32768, 40000, GPUS[:1]) == (1024,) * 16 + (512,)
    assert default_nb("lu", 24576, 24576, GPUS[:1]) == (1024,) * 8 + (512,)
    assert [default_nb("lu", n, n, GPUS[:1]) for n in (24575, 4096, 4095)] == [512, 512, 256]
    # Those of the host's matrices do not.
    assert [default_nb("lu", n, n, GPUS[:1], travels=True) for n in (32768, 24576, 9999)] == [
        1024, 768, 512
    ]  # fmt: skip
    assert default_nb("qr", 40000, 32768, GPUS[:1], travels=True) == 512
    for gpus in (2, 4):
        assert [default_nb("lu", n, n, GPUS[:gpus]) for n in (65536, 65535)] == [1536, 1024]
        assert default_nb("lu", 65536, 65536, GPUS[:gpus], travels=True) == 1024
    plan = hetero_la.plan("lu", (32768, 32768), workers=GPUS[:1])
    assert (plan.layout.kt, plan.lookahead) == (48, 2)
    assert "16x1024+512" in plan.explain()


def test_a_run_s_plan_says_how_its_matrix_lay() -> None:
    a = np.random.default_rng(0).standard_normal((60, 60))
    column_major = np.asfortranarray(a)
    assert hetero_la.lu_factor(a).plan.source == "row-major"
    assert hetero_la.lu_factor(column_major).plan.source == "column-major"
    assert hetero_la.lu_factor(column_major, overwrite_a=True).plan.source == "in place"
    assert hetero_la.lu_factor(a, overwrite_a=True).plan.source == "row-major"
    # U is found as the transpose of the transpose's L.
    s = a @ a.T + 60 * np.eye(60)
    assert hetero_la.cho_factor(s).plan.source == "column-major"
    assert hetero_la.cho_factor(s, lower=True).plan.source == "row-major"
    assert hetero_la.plan("cholesky", (60, 60)).source == "column-major"
    assert hetero_la.plan("qr", (60, 60)).source == "row-major"


def test_a_simulated_plan_has_memory_and_idle_times() -> None:
    plan = hetero_la.plan("lu", (1000, 1000), nb=100, workers=CPUS)
    run = plan.simulate()
    assert run.peak_bytes.tolist() == plan.bytes_needed()
    assert run.idle + run.computing == pytest.approx([run.makespan] * 2)
    line = plan.explain().splitlines()[-2]
    assert (
        f"computes for {in_seconds(run.computing[0])}, idle for {in_seconds(run.idle[0])}" in line
    )


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize(("n", "workers"), [(8192, 4), (16384, 2)])
def test_windows_need_no_simulation(
    routine: str, n: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tuple(replace(worker, pid=os.getpid()) for worker in GPUS[:workers])
    planner._cached_plan.cache_clear()
    plan = hetero_la.plan(routine, (n, n), workers=here)
    with monkeypatch.context() as patched:
        patched.setattr(Plan, "_simulated", None)
        window = plan.window
    seconds = plan.simulate().makespan
    steps = max(program.last_step for program in plan.programs)
    near = [
        window_steps(seconds * part, steps, workers, task_seconds=plan.model.dask.hop)
        for part in (0.7, 1.3)
    ]
    assert near[0] >= window >= near[1]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("routine", ["lu", "solve", "inverse", "cholesky", "solve_positive", "qr"])
def test_windows_are_of_about_so_many_steps(routine: str, workers: int) -> None:
    nrhs = {"inverse": 400, "solve": 90, "solve_positive": 90}.get(routine, 0)
    plan = hetero_la.plan(routine, (400, 400), nb=20, nrhs=nrhs, workers=GPUS[:workers])
    for program in plan.programs:
        cuts = list(program.windows(4))
        for start, stop in cuts:
            calls = [i for i in program.instructions[start:stop] if isinstance(i, CallKernel)]
            # One more by look-ahead, and the last one.
            assert 1 <= len({i.step for i in calls}) <= 4 + 2
        assert len(cuts) >= program.last_step // 6
        # What closes the run does not wait for a task of Dask's own.
        assert len(list(program.windows(program.last_step))) == 1
    if workers == 1:
        assert len(list(plan.programs[0].windows(plan.window))) == 1


@pytest.mark.parametrize("home", [0, 2])
@pytest.mark.parametrize(
    ("routine", "n", "count"),
    [("lu", 4096, 1), ("lu", 8192, 1), ("lu", 16384, 2), ("lu", 32768, 4), ("cholesky", 8192, 1),
     ("cholesky", 32768, 4), ("qr", 4096, 1), ("qr", 32768, 4)],
)  # fmt: skip
def test_a_matrix_on_a_gpu_takes_as_many_as_pay(
    routine: str, n: int, count: int, home: int
) -> None:
    gpus = tuple(replace(gpu, pid=os.getpid()) for gpu in GPUS)
    asked = Problem(routine, n, n, 0, np.dtype("float64"))
    plan = make_plan(asked, Options(), gpus, Given(False, "in place", home))
    assert len(plan.workers) == count
    assert home in {worker.device for worker in plan.workers}
    for team, there in ((gpus, None), (gpus, 7), (GPUS, home)):  # the last: of another process
        everywhere = make_plan(asked, Options(), team, Given(False, "in place", there))
        assert len(everywhere.workers) == len(gpus)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("n", "count"), [(8192, 1), (16384, 2)])
def test_a_running_cluster_takes_part_in_short_runs_where_that_pays(
    n: int, count: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [replace(gpu, pid=os.getpid(), memory=80 * 2**30) for gpu in GPUS]
    cluster, matrix = object(), SimpleNamespace(shape=(n, n), dtype=np.dtype("float64"))
    destination: Any = SimpleNamespace(
        matrix=matrix, gpu=1, nrhs=0, mapped=False, source="in place",
        residency=Residency.CALLER, least_columns=lambda workers: 0,
        planned=lambda plan, client: SimpleNamespace(new_columns=0),
    )  # fmt: skip
    monkeypatch.setattr(executor_choice, "running_client", lambda: None if own else cluster)
    monkeypatch.setattr(executor_choice, "started_client", lambda: cluster if own else None)
    monkeypatch.setattr(executor_choice, "_caller", lambda gpu: gpus[gpu])

    def chosen(there: list[WorkerInfo], **options: Any) -> int:
        monkeypatch.setattr(executor_choice, "worker_infos", lambda *_, **__: there)
        plan, client, _ = executor_choice.choose("lu", destination, None, options)
        assert client is (cluster if len(plan.workers) > 1 else None)
        return len(plan.workers)

    assert chosen(gpus) == chosen([*CPUS, *gpus]) == count
    assert chosen(gpus, order="left") == 1
    assert chosen([gpus[0], gpus[2]]) == 1  # without the GPU that has the matrix
    assert chosen([replace(gpu, pid=1) for gpu in gpus]) == 1  # of another process
    assert chosen([]) == 1
    monkeypatch.setattr(executor_choice, "running_client", lambda: None)
    monkeypatch.setattr(executor_choice, "started_client", lambda: None)
    assert chosen(gpus) == 1


@pytest.mark.parametrize("routine", ROUTINES)
def test_columns_that_a_routine_makes_are_those_that_its_graph_makes(routine: str) -> None:
    graph = ROUTINES[routine].tasks(TileLayout(40, 40, 20, nrhs=40))
    beside = set(range(2, 4))
    assert ROUTINES[routine].makes == (beside <= graph.made_columns())
