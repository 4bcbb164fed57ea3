"""Every executor gives the same factors and solutions, and ends when something fails."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import hetero_la
from hetero_la.execution.execute import execute
from hetero_la.planning import decisions
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.on_dask import threads as dask_execution
from hetero_la.scheduler.on_dask.processes import run_in_processes
from hetero_la.scheduler.on_dask.threads import run_local
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.scheduler.run.runner import Runner
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.tiles.arrays.errors import RunAbortedError, StaleShardError
from hetero_la.tiles.kernels import registry
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.storage import shard
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.dask_support import nothing_left
from tests.support import DTYPES, Problem, assert_close, covering, problem, random, spread

ROOT = str(Path(__file__).parents[2])
NB = 8
SIZES = [(0, 0), (1, 1), (5, 5), (8, 8), (61, 61), (61, 23), (23, 61)]


SLOW = pytest.mark.slow
FEW_CORES = pytest.mark.skipif(CPU_COUNT < 3, reason="too few cores")


@pytest.fixture(
    scope="module",
    params=[pytest.param((1, 1), marks=SLOW), (2, 1), (4, 1), (0, 1), (0, 2),
            pytest.param((0, 3), marks=[SLOW, FEW_CORES])],
    ids=lambda size: f"{size[0]}gpus-{size[1]}cpus",
)  # fmt: skip
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    gpus, cpus = request.param
    with Cluster(cpus=cpus, gpus=0, virtual_gpus=gpus, blas_threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def hybrid() -> Iterator[Cluster]:
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
        ) as running,
        Client(running, set_as_default=False) as client,
    ):
        yield client


def panels_on(cluster: Cluster) -> list[str]:
    return ["auto", "cpu", "gpu"] if cluster.size.virtual_gpus else ["auto", "cpu"]


def check_lu(a: NDArray, **options: Any) -> hetero_la.LUFactors:
    factors = hetero_la.lu_factor(a, nb=NB, **options)
    assert factors.info == 0
    if a.size:
        lu, piv = scipy.linalg.lu_factor(a)
        assert np.array_equal(factors.piv, piv)
        assert_close(factors.lu, lu)
    assert factors.lu.shape == a.shape
    return factors


def check_solve(a: NDArray, nrhs: int, **options: Any) -> None:
    b = random(len(a), nrhs, a.dtype, seed=5)
    x = hetero_la.solve(a, b, nb=NB, **options)
    expected = np.linalg.solve(a, b)
    assert_close(x, expected, limit=1e-8 if a.dtype.itemsize > 4 and a.dtype != "c8" else 0.1)


#: Rows, columns and right-hand sides of the routines beside LU and solve.
ROUTINES = {
    "inverse": [(1, 1, 1), (45, 45, 45)],
    "cholesky": [(0, 0, 0), (1, 1, 0), (8, 8, 0), (61, 61, 0)],
    "solve_positive": [(1, 1, 1), (45, 45, 19)],
    "qr": [(0, 3, 0), (1, 1, 0), (61, 61, 0), (61, 23, 0), (23, 61, 0)],
    "explicit_q": [(3, 0, 3), (45, 45, 45), (61, 23, 61), (61, 23, 23), (23, 61, 23)],
    "lstsq": [(1, 1, 1), (61, 23, 9), (45, 44, 1)],
    "minimum_norm": [(1, 1, 1), (61, 23, 9), (45, 44, 1)],
}


def check_routine(given: Problem, **options: Any) -> Any:
    """Run a routine; the array and the per-step results are SciPy's."""
    columns = given.layout.nrhs if given.b is None else 0
    result = execute(given.routine, given.a, given.b, columns=columns, nb=NB, **options)
    assert_close(result.array, given.expected, limit=1e-9 if given.a.dtype == "f8" else 1e-2)
    if ("tau", 0) in result.values and given.a.size:
        tau = scipy.linalg.qr(given.a, mode="raw")[0][1]
        assert_close(result.vector("tau"), tau, limit=1e-2)
    elif given.a.size:
        assert result.info == 0
    return result.report.plan


# --- the same result everywhere


@pytest.mark.parametrize(("m", "n", "dtype"), spread(covering(SIZES, DTYPES)))
def test_lu_inline_is_scipy_s(m: int, n: int, dtype: str) -> None:
    for lookahead in (0, 1, 2):
        factors = check_lu(random(m, n, dtype), lookahead=lookahead)
        assert [worker.name for worker in factors.plan.workers] == ["caller"]


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_lu_on_threads_is_scipy_s(cluster: Cluster, m: int, n: int, lookahead: int) -> None:
    for panel in panels_on(cluster)[lookahead > 0 :]:
        a = random(m, n, DTYPES[lookahead + 1])
        factors = check_lu(a, client=cluster, lookahead=lookahead, panel=panel)
        plan = factors.plan
        assert plan.lookahead == lookahead
        owners = cluster.size.virtual_gpus or cluster.size.cpus
        assert len(plan.workers) == owners + (plan.panel_worker is not None)
        if panel != "auto" and cluster.size.virtual_gpus:
            assert plan.panel == panel
        assert [row.name for row in factors.timing.workers] == [w.name for w in plan.workers]
        assert sum(row.calls for row in factors.timing.workers) == sum(
            len(program.select(CallKernel)) for program in plan.programs
        )


@pytest.mark.parametrize("number", range(3))
def test_solve_on_threads_is_numpy_s(cluster: Cluster, number: int) -> None:
    """A Latin square: any two of right-hand sides, panel and look-ahead meet once."""
    nrhs = [1, NB - 1, 3 * NB + 1][number]
    for place, panel in enumerate(panels_on(cluster)):
        lookahead = (number + place) % 3
        a = random(45, dtype=DTYPES[lookahead])
        check_solve(a, nrhs, client=cluster, lookahead=lookahead, panel=panel)


@pytest.mark.parametrize("routine", ROUTINES)
def test_routines_on_threads_give_scipy_s_result(cluster: Cluster, routine: str) -> None:
    for number, shape in enumerate(ROUTINES[routine]):
        lookaheads = (0, 1, 2) if shape is ROUTINES[routine][-1] else (number % 3,)
        for lookahead in lookaheads:
            layout = TileLayout(*shape[:2], NB, shape[2])
            given = problem(routine, layout, DTYPES[1 + lookahead])
            for panel in panels_on(cluster)[1:]:
                plan = check_routine(given, client=cluster, lookahead=lookahead, panel=panel)
                assert (plan.routine, plan.lookahead) == (routine, lookahead)
                assert plan.panel == (panel if cluster.size.virtual_gpus else "cpu")


@pytest.mark.parametrize(("routine", "dtype"), covering(ROUTINES, DTYPES))
def test_routines_inline_give_scipy_s_result(routine: str, dtype: str) -> None:
    for shape in ROUTINES[routine]:
        for lookahead in (0, 1, 2):
            given = problem(routine, TileLayout(*shape[:2], NB, shape[2]), dtype)
            plan = check_routine(given, lookahead=lookahead)
            assert [worker.name for worker in plan.workers] == ["caller"]


@pytest.mark.parametrize("routine", ROUTINES)
def test_routines_in_windows_give_scipy_s_result(cluster: Cluster, routine: str) -> None:
    client, shape = cluster.private_client(), ROUTINES[routine][-1]
    given = problem(routine, TileLayout(*shape[:2], NB, shape[2]))
    for window, panel in enumerate(panels_on(cluster), 1):
        plan = make_plan(
            decisions.Problem(routine, *shape, given.a.dtype), Options(nb=NB, panel=panel),
            tuple(worker_infos(client)), Given(True),
        )  # fmt: skip
        target = np.empty_like(given.expected, order="F")
        storage = ArrayStorage(given.a, target, given.b)
        run_local(client, replace(plan.job(), window=window), storage)
        assert_close(target, given.expected, limit=1e-9)


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_windows_of_any_length_cut_programs_into_all_their_parts(
    cluster: Cluster, window: int
) -> None:
    client = cluster.private_client()
    for panel in panels_on(cluster):
        a = random(60, seed=window)
        plan = make_plan(
            decisions.Problem("lu", 60, 60, 0, a.dtype),
            Options(nb=NB, panel=panel),
            tuple(worker_infos(client)),
        )
        target = np.empty_like(a)
        outcome = run_local(client, replace(plan.job(), window=window), ArrayStorage(a, target))
        assert_close(target, scipy.linalg.lu_factor(a)[0])
        assert sorted(outcome.logs) == list(range(len(plan.workers)))
        for w, program in enumerate(plan.programs):
            assert [e.place for e in outcome.logs[w]] == list(range(len(program.instructions)))
            cut = list(program.windows(window))
            assert [start for start, _ in cut] == [0, *(stop for _, stop in cut[:-1])]
            assert cut[-1][1] == len(program.instructions)
            assert len(cut) == 1 if window == 100 else len(cut) > 1 or not program.columns
            assert len(list(program.windows(plan.layout.kt))) == 1  # with what closes the run


def test_lu_in_threads_without_dask_is_scipy_s(hybrid: Cluster) -> None:
    a = random(60)
    infos = tuple(worker_infos(hybrid.private_client()))
    plan = make_plan(
        decisions.Problem("lu", 60, 60, 0, a.dtype), Options(nb=NB, panel="cpu"), infos
    )
    target = np.empty_like(a)
    run_in_threads(plan.job(), ArrayStorage(a, target), [VirtualGpu(), VirtualGpu(), CpuDevice()])
    assert_close(target, scipy.linalg.lu_factor(a)[0])


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_lu_on_processes_is_scipy_s(processes: Client, m: int, n: int) -> None:
    for lookahead in (0, 2):
        factors = check_lu(random(m, n), client=processes, lookahead=lookahead)
        assert len({worker.pid for worker in factors.plan.workers} | {os.getpid()}) == 3


@pytest.mark.parametrize("nrhs", [1, 3 * NB + 1])
def test_solve_on_processes_is_numpy_s(processes: Client, nrhs: int) -> None:
    check_solve(random(45, dtype="complex128"), nrhs, client=processes)


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
def test_programs_with_a_panel_worker_on_any_cluster(hybrid: Cluster, panel: str) -> None:
    client = hybrid.private_client()
    a, b = random(45), random(45, 11, seed=1)
    plan = make_plan(
        decisions.Problem("solve", 45, 45, 11, a.dtype),
        Options(nb=NB, panel=panel),
        tuple(worker_infos(client)),
    )
    target = np.empty((45, 56), order="F")
    run_in_processes(client, plan.job(), ArrayStorage(a, target, b))
    assert_close(target[:, 45:], np.linalg.solve(a, b), limit=1e-8)
    assert nothing_left(client)


@pytest.mark.parametrize("routine", ROUTINES)
def test_routines_on_processes_give_scipy_s_result(processes: Client, routine: str) -> None:
    for shape in ROUTINES[routine]:
        given = problem(routine, TileLayout(*shape[:2], NB, shape[2]), DTYPES[1 + shape[0] % 3])
        plan = check_routine(given, client=processes, lookahead=shape[0] % 3)
        assert len({worker.pid for worker in plan.workers} | {os.getpid()}) == 3


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_routines_with_a_panel_worker_on_any_cluster(
    hybrid: Cluster, routine: str, panel: str
) -> None:
    client, shape = hybrid.private_client(), ROUTINES[routine][-1]
    given = problem(routine, TileLayout(*shape[:2], NB, shape[2]))
    for on_host in (False, True):
        plan = make_plan(
            decisions.Problem(routine, *shape, given.a.dtype), Options(nb=NB, panel=panel),
            tuple(worker_infos(client)), Given(on_host),
        )  # fmt: skip
        target = np.empty_like(given.expected, order="F")
        run_in_processes(client, plan.job(), ArrayStorage(given.a, target, given.b))
        assert_close(target, given.expected, limit=1e-9)
    assert nothing_left(client)


def test_threads_of_any_dask_cluster_give_scipy_s_result() -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None
        ) as running,
        Client(running, set_as_default=False) as client,
    ):
        factors = check_lu(random(61), client=client)
        assert {worker.pid for worker in factors.plan.workers} == {os.getpid()}
        check_solve(random(45), 9, client=client)


def test_the_current_client_is_used(monkeypatch: pytest.MonkeyPatch, hybrid: Cluster) -> None:
    monkeypatch.setattr(
        "hetero_la.execution.executor_choice.INLINE_LIMIT", {"cpu": 0.0, "gpu": 0.0}
    )
    with Client(hybrid):
        factors = check_lu(random(40))
    assert {worker.name for worker in factors.plan.workers} <= {"gpu0", "gpu1", "cpu0"}


def test_columns_of_shared_memory_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[tuple[int, ...]] = []
    copy = CpuDevice.copy

    def counted(self: CpuDevice, target: Array, source: Array, queue: Any) -> None:
        copies.append(target.shape)
        copy(self, target, source, queue)

    monkeypatch.setattr(CpuDevice, "copy", counted)
    with Cluster(cpus=2, gpus=0, blas_threads=1) as cluster:
        a = random(40)
        check_lu(a, client=cluster)
        assert copies == [(40, NB)] * 5  # in, once; panels go by reference
        copies.clear()
        factors = hetero_la.lu_factor(a, overwrite_a=True, nb=NB, client=cluster)
        assert (copies, factors.lu is a) == ([], True)


# --- failures


class BrokenError(Exception):
    """What a test's kernel raises."""


def break_kernel(
    monkeypatch: pytest.MonkeyPatch, kernel: str, calls: int, error: BaseException
) -> None:
    """Let the call number `calls` of a kernel raise."""
    lock, real, count = threading.Lock(), registry.implementation(kernel, "cpu"), [0]

    def broken(*arrays: Array, options: KernelOptions) -> None:
        with lock:
            count[0] += 1
            if count[0] == calls:
                raise error
        real(*arrays, options=options)

    monkeypatch.setitem(registry._IMPLEMENTATIONS, ("cpu", kernel), broken)


@pytest.mark.parametrize("where", [("getrf", 1), ("getrf", 5), ("gemm", 4), ("laswp", 2)])
def test_an_error_in_a_kernel_is_the_run_s(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, where: tuple[str, int]
) -> None:
    for panel in panels_on(cluster):
        error = BrokenError(f"{where} is out of order")
        with monkeypatch.context() as broken:
            break_kernel(broken, *where, error)
            began = time.perf_counter()
            with pytest.raises(BrokenError, match="is out of order") as caught:
                hetero_la.lu_factor(random(60), nb=NB, client=cluster, panel=panel)
            assert caught.value is error
            assert not isinstance(error.__context__, ValueError)  # that this is no Dask task
            assert time.perf_counter() - began < 5
        assert not dask_execution._runs
        check_lu(random(60), client=cluster, panel=panel)


def test_a_run_that_fails_leaves_nothing_running_and_no_memory(
    hybrid: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GPU, which works on when a window has ended; and as long as the error is kept."""
    running: dict[str, int] = {}
    arrays: list[weakref.ref[Array]] = []

    def call(device: VirtualGpu, kernel: str, *args: Any) -> None:
        running[device.name] = running.get(device.name, 0) + 1
        if kernel == "getrf" and sum(running.values()) > 60:
            raise BrokenError("out of order")

    def empty(device: VirtualGpu, shape: tuple[int, ...], dtype: Any) -> Array:
        arrays.append(weakref.ref(array := np.empty(shape, dtype, order="F")))
        return array

    monkeypatch.setattr(VirtualGpu, "call", call)
    monkeypatch.setattr(VirtualGpu, "empty", empty)
    monkeypatch.setattr(VirtualGpu, "synchronize", lambda device: running.pop(device.name, None))
    gc.disable()
    try:
        with pytest.raises(BrokenError) as caught:
            hetero_la.lu_factor(random(400), nb=NB, client=hybrid, panel="gpu")
        assert not running
        assert arrays
        assert not [array() for array in arrays if array() is not None]
    finally:
        gc.enable()
    assert "out of order" in str(caught.value)


@pytest.mark.parametrize(
    ("routine", "kernel"),
    [("cholesky", "potrf"), ("cholesky", "herk"), ("solve_positive", "trsm_lc"), ("qr", "geqrf"),
     ("explicit_q", "larfb_n"), ("lstsq", "trsm"), ("minimum_norm", "gemm_cn"), ("qr", "lacpy")],
)  # fmt: skip
def test_an_error_in_a_kernel_of_any_routine(
    hybrid: Cluster, monkeypatch: pytest.MonkeyPatch, routine: str, kernel: str
) -> None:
    shape = ROUTINES[routine][-1]
    if routine == "minimum_norm":
        shape = (61, 23, 9)
    given = problem(routine, TileLayout(*shape[:2], NB, shape[2]))
    for panel in ("cpu", "gpu"):
        error = BrokenError(f"{kernel} is out of order")
        with monkeypatch.context() as broken:
            break_kernel(broken, kernel, 2, error)
            with pytest.raises(BrokenError) as caught:
                check_routine(given, client=hybrid, panel=panel)
            assert caught.value is error
        assert not dask_execution._runs
        check_routine(given, client=hybrid, panel=panel)


def test_an_error_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    error = BrokenError("no")
    break_kernel(monkeypatch, "trmm", 3, error)
    with pytest.raises(BrokenError) as caught:
        hetero_la.lu_factor(random(60), nb=NB)
    assert caught.value is error


def break_in_worker(kernel: str) -> None:
    """Replace a kernel in the worker's process, and keep the real one beside it."""
    from hetero_la.tiles.kernels import registry

    def broken(*arrays: Any, options: Any) -> None:
        raise ArithmeticError("kernel out of order")

    kept = registry._IMPLEMENTATIONS
    kept["cpu", "kept"], kept["cpu", kernel] = kept["cpu", kernel], broken


def mend_in_worker(kernel: str) -> None:
    from hetero_la.tiles.kernels import registry

    registry._IMPLEMENTATIONS["cpu", kernel] = registry._IMPLEMENTATIONS.pop(("cpu", "kept"))


@pytest.mark.parametrize("kernel", ["getrf", "gemm", "laswp"])
def test_an_error_in_another_process(processes: Client, kernel: str) -> None:
    second = worker_infos(processes)[1].address
    processes.run(break_in_worker, kernel, workers=[second])
    try:
        began = time.perf_counter()
        with pytest.raises(ArithmeticError, match=r"^kernel out of order$"):
            hetero_la.lu_factor(random(60), nb=NB, client=processes)
        assert time.perf_counter() - began < 10
    finally:
        processes.run(mend_in_worker, kernel, workers=[second])
    assert nothing_left(processes)
    check_lu(random(60), client=processes)


def test_a_shard_is_never_updated_twice() -> None:
    plan = hetero_la.plan("lu", (20, 20), nb=NB)
    a = random(20)
    runner = Runner(plan.job(), 0, CpuDevice(), ArrayStorage(a, np.empty_like(a)))
    runner.run(0, 4)
    with pytest.raises(StaleShardError, match="worker 0 is at instruction 4, not at 0"):
        runner.run(0, 4)
    with pytest.raises(StaleShardError, match="is at instruction 4, not at 5"):
        runner.run(5, 6)
    runner.run(4, len(plan.programs[0].instructions))
    assert_close(runner.shard.view(0, 3, 0, 2), scipy.linalg.lu_factor(a)[0])


def test_a_shard_that_failed_half_way_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hetero_la.plan("lu", (20, 20), nb=NB)
    a = random(20)
    runner = Runner(plan.job(), 0, CpuDevice(), ArrayStorage(a, np.empty_like(a)))
    break_kernel(monkeypatch, "trmm", 1, BrokenError("no"))
    stop = len(plan.programs[0].instructions)
    with pytest.raises(BrokenError):
        runner.run(0, stop)
    for start in range(stop):
        with pytest.raises(StaleShardError):
            runner.run(start, stop)


def test_tasks_of_an_ended_run_are_refused() -> None:
    with pytest.raises(RunAbortedError, match="run lu-77 has ended"):
        dask_execution.run_window("lu-77", 0, 0, 1, None)


def test_runs_at_once_take_turns_and_mix_nothing_up(hybrid: Cluster) -> None:
    """From several threads, on one cluster: they take turns, and mix nothing up."""
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for panel in ("cpu", "gpu"):
                check_lu(random(70, seed=seed), client=hybrid, panel=panel)
                check_solve(random(45, seed=seed), 3, client=hybrid, panel=panel)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    assert not dask_execution._runs


def test_copies_on_the_host_have_ended_when_a_run_on_processes_has(
    processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(target: Array, source: Array) -> list[Future[None]]:
        def copy() -> None:
            time.sleep(0.3)
            target[...] = source

        return [pool.submit(copy)]

    a = random(60)
    with ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(shard, "copies_on_host", late)
        lower = hetero_la.cholesky(a @ a.T + 60 * np.eye(60), lower=True, client=processes, nb=NB)
    assert not np.triu(lower, 1).any()


def test_two_runs_at_once_on_processes(processes: Client) -> None:
    found: list[Any] = []

    def work(seed: int) -> None:
        found.append(check_lu(random(60, seed=seed), client=processes))

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2


def test_one_run_fails_and_the_other_does_not(
    hybrid: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_kernel(monkeypatch, "getrf", 3, BrokenError("no"))
    outcomes: list[str] = []

    def work() -> None:
        try:
            check_lu(random(60), client=hybrid, panel="gpu")
            outcomes.append("good")
        except BrokenError:
            outcomes.append("broken")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["broken", "good"]


def test_a_closed_cluster_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1)
    real = registry.implementation("gemm", "cpu")

    def slow(*arrays: Array, options: KernelOptions) -> None:
        time.sleep(0.1)
        real(*arrays, options=options)

    monkeypatch.setitem(registry._IMPLEMENTATIONS, ("cpu", "gemm"), slow)
    closer = threading.Timer(0.5, cluster.close)
    closer.start()
    began = time.perf_counter()
    with pytest.raises(RunAbortedError):
        hetero_la.lu_factor(random(400), nb=NB, client=cluster)
    assert time.perf_counter() - began < 10
    closer.join()
    assert not dask_execution._runs


@pytest.mark.parametrize("processes", [False, True])
def test_a_client_that_closes_before_all_is_submitted(
    processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processes:
        workers: Any = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
    else:
        workers = Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1)
    with workers, Client(workers, set_as_default=False) as client:
        real = Client.submit

        def submit(self: Client, *args: Any, **kwargs: Any) -> Any:
            if "-run-" in kwargs["key"]:
                client.close()
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Client, "submit", submit)
        with pytest.raises(RunAbortedError, match="client of the Dask cluster is clos"):
            hetero_la.lu_factor(random(100), nb=NB, client=client)


SLOW_RUN = """
    import sys, threading, time
    import numpy as np
    import hetero_la
    from hetero_la.tiles.kernels import registry

    real = registry.implementation("gemm", "cpu")
    def slow(*arrays, options):
        if first.acquire(blocking=False):
            print("running", flush=True)
        time.sleep(0.02)
        real(*arrays, options=options)
    first = threading.Lock()
    registry._IMPLEMENTATIONS["cpu", "gemm"] = slow
    a = np.random.default_rng(0).standard_normal((1000, 1000))
    try:
        hetero_la.lu_factor(a, nb=8, {options})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "options",
    ["client=hetero_la.Cluster(cpus=1, gpus=0, virtual_gpus=2)",
     pytest.param(
         "client=hetero_la.Cluster(cpus=1, gpus=0, virtual_gpus=2), panel='cpu'",
         marks=pytest.mark.slow,
     ),
     "client=hetero_la.Cluster(cpus=1, gpus=0)"],
)  # fmt: skip
def test_ctrl_c_ends_a_run(options: str) -> None:
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW_RUN).format(options=options)],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        began = time.perf_counter()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert time.perf_counter() - began < 8
        assert out == "interrupted\n", err
        assert process.returncode == 0, err
    finally:
        process.kill()
