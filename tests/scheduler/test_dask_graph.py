"""Lazy runs on clusters: where their tasks run, and what becomes of their shards."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import key_split
from distributed import Client, Future, LocalCluster, get_worker, wait
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la.algorithms.routines import ROUTINES, title_of
from hetero_la.dask_arrays import lazy_run
from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.cluster.placement_plugin import (
    BEGIN,
    HOLD,
    PRIORITY,
    RUN,
    RunTask,
    task_name,
)
from hetero_la.scheduler.on_dask import held_shard, run_tasks
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.program.instructions import SaveRegion
from hetero_la.tiles.arrays.errors import InsufficientMemoryError, StaleShardError
from tests.dask_support import (
    any_shape_cases,
    assert_same,
    chunked,
    memory,
    nothing_left,
    reset_peak,
    square_cases,
)
from tests.scheduler.recovery import soon
from tests.support import random

NB = 16


def start(kind: str, workers: int = 3) -> Any:
    if kind == "virtual GPUs":
        return Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1)
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=kind == "processes",
        dashboard_address=None, silence_logs=50,
    )  # fmt: skip


@pytest.fixture(
    scope="module",
    params=["virtual GPUs", pytest.param("threads", marks=pytest.mark.slow), "processes"],
)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with start(request.param) as cluster, cluster.get_client() as connected:
        yield connected


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    with start("processes") as cluster, cluster.get_client() as connected:
        yield connected


# --- values


@pytest.mark.parametrize("dtype", ["complex64", pytest.param("float64", marks=pytest.mark.slow)])
def test_all_functions_of_dask_arrays_give_the_result_of_arrays(client: Client, dtype: str) -> None:
    cases = [*any_shape_cases(50, 33, dtype), *any_shape_cases(33, 50, dtype)]
    cases += square_cases(40, dtype)
    options: dict[str, Any] = {"nb": NB, "client": client}
    made = [case.call(lambda a: chunked(a, 20), **options) for case in cases]
    for case, found in zip(cases, dask.compute(*made), strict=True):
        expected = case.call(nb=NB)
        assert_same(found, tuple(expected) if isinstance(expected, tuple) else expected)
    assert nothing_left(client)


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("lookahead", [0, 2])
def test_any_panel_and_look_ahead_give_the_same_factors(panel: str, lookahead: int) -> None:
    a = random(100)
    options: dict[str, Any] = {"nb": NB, "panel": panel, "lookahead": lookahead}
    with start("virtual GPUs") as cluster, cluster.get_client() as client:
        found = dask.compute(hetero_la.lu_factor(chunked(a, 30), client=client, **options))[0]
    assert_same(found, tuple(hetero_la.lu_factor(a, nb=NB)))


def test_the_current_client_s_workers_are_planned_for(
    processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lazy_run.INLINE_LIMIT, "cpu", 0.0)
    addresses = set(processes.scheduler_info()["workers"])
    packed, _ = hetero_la.lu_factor(chunked(random(100), 30), nb=NB)
    tasks = packed.dask.to_dict().values()
    homes = {home for task in tasks if isinstance(task, RunTask) for home in task.homes}
    assert homes == addresses
    monkeypatch.undo()
    packed, _ = hetero_la.lu_factor(chunked(random(100), 30), nb=NB)
    tasks = packed.dask.to_dict().values()
    assert {task.homes for task in tasks if isinstance(task, RunTask)} == {()}
    assert np.isfinite(packed.compute()).all()  # one worker's graph, on any of three


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 3), (3, 0)])
def test_empty_arrays_on_processes(processes: Client, m: int, n: int) -> None:
    a = chunked(np.zeros((m, n)), 2)
    p, lower, upper = dask.compute(hetero_la.lu(a, client=processes))[0]
    assert (p.shape, lower.shape, upper.shape) == ((m, m), (m, 0), (0, n))
    assert np.array_equal(p, np.eye(m))
    if m == n:
        assert hetero_la.cholesky(a, client=processes).compute().shape == (0, 0)


@pytest.mark.parametrize("n", [60, NB + 1])  # one worker has nothing to do
@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_a_graph_for_workers_also_runs_without_them(
    processes: Client, n: int, scheduler: str
) -> None:
    a = random(n)
    factors = hetero_la.lu_factor(chunked(a, 13), nb=NB, client=processes)
    with dask.config.set(scheduler=scheduler):
        (found,) = dask.compute(factors)
    assert_same(found, tuple(hetero_la.lu_factor(a, nb=NB)))


# --- placement


def ran_at(client: Client, computed: Any) -> tuple[Any, dict[Any, str]]:
    """The result, and where each pinned task has run."""

    def look(dask_scheduler: Any) -> None:
        from distributed.diagnostics.plugin import SchedulerPlugin

        class Seen(SchedulerPlugin):
            name = "seen"

            def __init__(self) -> None:
                self.where: dict[Any, str] = {}

            def transition(
                self, key: Any, start: str, finish: str, *args: Any, worker: str = "", **more: Any
            ) -> None:
                if start == "processing" and finish == "memory":
                    self.where[key] = worker

        dask_scheduler.add_plugin(Seen())

    client.run_on_scheduler(look)
    result = dask.compute(computed)[0]
    where = client.run_on_scheduler(
        lambda dask_scheduler: dict(dask_scheduler.plugins["seen"].where)
    )
    client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.remove_plugin("seen"))
    return result, where


@pytest.mark.parametrize("change", ["nothing", "optimize", "no fusion", "larger", "persisted"])
def test_every_task_runs_where_the_plan_says(client: Client, change: str) -> None:
    a, b = random(100), random(100, 2, seed=1)
    x, y = chunked(a, (31, 23)), chunked(b, 13)
    found = hetero_la.solve(x, y, nb=NB, client=client)
    homes = {
        key: task.homes
        for key, task in found.dask.to_dict().items()
        if isinstance(task, RunTask) and task.homes
    }
    gpus = sum(worker.kind == "gpu" for worker in worker_infos(client))  # each has its columns
    used = set(itertools.chain(*homes.values()))
    assert len(used) == (gpus or len(set(client.run(os.getpid).values())))
    if change == "optimize":
        (found,) = dask.optimize(found)
    if change == "larger":
        found = abs(x @ found - y).mean()
    if change == "persisted":
        found = found.persist()
    with dask.config.set({"optimization.fuse.active": False if change == "no fusion" else None}):
        value, where = ran_at(client, found)
    assert np.allclose(value, 0 if change == "larger" else np.linalg.solve(a, b))
    if change != "persisted":
        assert all(where[key] in homes[key] for key in homes)


@pytest.mark.parametrize("again", [False, True])
def test_delayed_functions_take_results(client: Client, again: bool) -> None:
    """Dask then gives all tasks of the run new names, and may fuse these in an array."""
    a, b = random(100), random(100, 2, seed=1)
    x = hetero_la.solve(chunked(a, 30), chunked(b, 30), nb=NB, client=client)
    y = dask.delayed(np.negative)(x)
    if again:
        y = da.from_delayed(y, x.shape, x.dtype) + 0
    value, where = ran_at(client, y)
    assert np.allclose(value, -np.linalg.solve(a, b))
    homes = {
        task.homes[0]
        for key, task in x.dask.to_dict().items()
        if isinstance(task, RunTask) and "-run-" in str(key)
    }
    assert {at for key, at in where.items() if "-run-" in str(key)} == homes


def test_dask_is_told_of_workers_and_priorities(processes: Client) -> None:
    packed, _ = hetero_la.lu_factor(chunked(random(100), 30), nb=NB, client=processes)
    layers = [layer for layer in packed.dask.layers.values() if layer.annotations]
    assert len(layers) == 2  # the run, and the blocks of its result
    for layer in layers:
        for key, task in layer.items():
            assert layer.annotations["workers"](key) == [*task.homes]
            assert layer.annotations["priority"](key) == PRIORITY


def test_without_placement_there_is_an_error_and_no_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_run, "install", lambda client, plugin: None)
    with start("processes") as cluster, cluster.get_client() as client:
        packed, _ = hetero_la.lu_factor(chunked(random(200), 30), nb=NB, client=client)
        with pytest.raises(StaleShardError, match="does not hold its shard"):
            packed.compute()


def test_a_slice_that_runs_elsewhere_is_an_error() -> None:
    held = held_shard._read("written in another process")
    with pytest.raises(StaleShardError, match="does not hold its shard, no worker of a cluster"):
        run_tasks.run_slice(held, 0, 1, (), None)


def test_programs_are_cut_behind_checkpoints() -> None:
    plan = hetero_la.plan("lu", (200, 200), nb=NB, workers=_two_workers(), checkpoint=3)
    for program in plan.programs:
        saves = [i.step for i in program.select(SaveRegion)]
        found = list(program.slices())
        assert [step for *_, step in found] == [*dict.fromkeys(saves), None]
        assert found[0][0] == 0
        assert found[-1][1] == len(program.instructions)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
        for _, stop, step in found[:-1]:
            last = program.instructions[stop - 1]
            assert isinstance(last, SaveRegion)
            assert last.step == step


@pytest.mark.parametrize("lookahead", [None, 2, 3])
@pytest.mark.parametrize("checkpoint", [1, 3])
def test_gpus_that_send_results_early_can_be_cut(checkpoint: int, lookahead: int | None) -> None:
    gpus = tuple(
        WorkerInfo(f"gpu{i}", "gpu", device=i, pid=i + 1, address=f"tcp://host:{i}", host="host")
        for i in range(2)
    )
    problem = Problem("lu", 249, 175, 0, np.dtype("float32"))
    options = Options(nb=10, checkpoint=checkpoint, lookahead=lookahead)
    plan = make_plan(problem, options, gpus, Given(on_host=True))
    for program in plan.programs:
        *steps, last = [step for *_, step in program.slices()]
        assert len(steps) > 2
        assert steps == [checkpoint * (place + 1) for place in range(len(steps))]
        assert last is None


def test_checkpoints_that_are_complete_in_another_order_cannot_be_cut() -> None:
    plan = hetero_la.plan("lu", (200, 200), nb=NB, workers=_two_workers(), checkpoint=3)
    program = plan.programs[0]
    first, *_, last = program.select(SaveRegion)
    assert first.step < last.step
    for more in ([first], [last, first]):
        wrong = replace(program, instructions=[*program.instructions, *more])
        with pytest.raises(AssertionError, match="complete before"):
            list(wrong.slices())


def _two_workers() -> list[WorkerInfo]:
    return [replace(calling_thread(), name=name, pid=1) for name in ("one", "two")]


def test_persisted_factors_solve_where_they_are(
    processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many solves with one factorization; only right-hand sides and messages travel."""
    monkeypatch.setitem(lazy_run.INLINE_LIMIT, "cpu", 0.0)
    a, b = random(200), random(200, 3, seed=1)
    factors = hetero_la.lu_factor(chunked(a, 70), nb=NB).persist()
    wait(list(factors))
    homes = _where(processes, factors[0])
    assert len(set(homes.values())) == 3
    for trans, matrix in enumerate((a, a.T, a.T)):
        x = factors.solve(chunked(b, 90), trans)
        assert np.allclose(matrix @ x.compute(), b)
    fills = [task for key, task in x.dask.to_dict().items() if "-load-" in str(key)]
    loads = [(task.homes[0], key) for task in fills for key in task.dependencies if key[2:]]
    (factor,) = {key[0] for _, key in loads if key[2] > 0 and "cut" not in key[0]}
    columns = {key[2]: address for address, key in loads if key[0] == factor}
    assert columns == {key[2]: address for key, address in homes.items()}


def _where(client: Client, array: da.Array) -> dict[Any, str]:
    found = client.who_has(array).items()
    return {key: workers[0] for key, workers in found}


# --- what becomes of shards


def test_computed_twice_persisted_and_several_at_once(client: Client) -> None:
    a = random(150)
    x = chunked(a, 40)
    packed, piv = hetero_la.lu_factor(x, nb=NB, client=client)
    logdet = hetero_la.slogdet(x, nb=NB, client=client).logabsdet
    expected = hetero_la.lu_factor(a, nb=NB)
    for _ in range(2):
        assert_same(dask.compute(packed, piv), tuple(expected))
    futures = [client.compute(array) for array in (piv, packed, logdet)]
    assert_same(futures[0].result(), expected.piv)
    assert np.allclose(futures[2].result(), hetero_la.slogdet(a).logabsdet)
    kept = packed.persist()
    wait(kept)
    assert_same(kept.compute(), expected.lu)
    del futures, kept
    assert nothing_left(client)


def test_two_clients_compute_the_same_at_the_same_time(processes: Client) -> None:
    a = random(300)
    packed, _ = hetero_la.lu_factor(chunked(a, 70), nb=NB, client=processes)
    found: list[Any] = []
    with Client(processes.scheduler.address, set_as_default=False) as other:
        threads = [
            threading.Thread(target=lambda c=c: found.append(c.compute(packed).result()))
            for c in (processes, other)
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join(60)
    assert len(found) == 2
    for one in found:
        assert_same(one, hetero_la.lu_factor(a, nb=NB).lu)
    assert nothing_left(processes)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3])
def test_cancelled_futures_leave_nothing(client: Client, seconds: float) -> None:
    a = random(400)
    packed, _ = hetero_la.lu_factor(chunked(a, 100), nb=NB, client=client)
    future: Future = client.compute(packed)
    time.sleep(seconds)
    future.cancel()
    del future
    assert nothing_left(client)
    assert_same(packed.compute(), hetero_la.lu_factor(a, nb=NB).lu)


@pytest.mark.slow
def test_cancelled_and_computed_at_once(client: Client) -> None:
    """Never wrong; the run may meet what is left of the one before, and say so."""
    a = random(400)
    packed, _ = hetero_la.lu_factor(chunked(a, 80), nb=2 * NB, client=client)
    expected = hetero_la.lu_factor(a, nb=NB).lu
    for seconds in (0.0, 0.02, 0.05, 0.1):
        future = client.compute(packed)
        time.sleep(seconds)
        future.cancel()
        future = client.compute(packed)
        error = future.exception(timeout=60)
        if error is None:
            assert_same(future.result(), expected)
        else:
            assert isinstance(error, StaleShardError)
    del future
    assert nothing_left(client)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.2])
def test_more_is_asked_for_while_a_part_is_computed(client: Client, seconds: float) -> None:
    a = random(400)
    x = chunked(a, 100)
    packed, piv = hetero_la.lu_factor(x, nb=NB, client=client)
    first = client.compute(piv)
    time.sleep(seconds)
    second = client.compute(packed)
    determinant = client.compute(hetero_la.slogdet(x, nb=NB, client=client).sign)
    expected = hetero_la.lu_factor(a, nb=NB)
    assert_same((first.result(), second.result()), (expected.piv, expected.lu))
    assert determinant.result() == hetero_la.slogdet(a).sign
    del first, second, determinant
    assert nothing_left(client)


def test_a_client_that_closes_leaves_nothing(processes: Client) -> None:
    packed, _ = hetero_la.lu_factor(chunked(random(400), 100), nb=NB, client=processes)
    with Client(processes.scheduler.address, set_as_default=False) as other:
        other.compute(packed)
        time.sleep(0.1)
    assert nothing_left(processes)


def test_a_cluster_that_closes_begins_nothing_again(caplog: pytest.LogCaptureFixture) -> None:
    with start("virtual GPUs") as cluster:
        client = cluster.get_client()
        factors = hetero_la.lu_factor(chunked(random(100), 30), nb=NB, client=client).persist()
        wait(factors.lu)
    client.close()
    assert not [record for record in caplog.records if record.name.startswith("hetero_la")]


def test_a_portion_that_is_missing_is_an_error() -> None:
    plan = hetero_la.plan("lu", (9, 9))
    held = run_tasks.open_shard("run", "attempt", plan.packed_job, 0)
    with pytest.raises(StaleShardError, match=r"portions \[\] of the input .* \[0\]"):
        run_tasks.begin_shard(held, [0])


def test_a_warning_reaches_the_client(processes: Client) -> None:
    x = da.zeros((40, 40), chunks=13)
    packed, _ = hetero_la.lu_factor(x, nb=NB, client=processes)

    def compute() -> None:
        packed.compute()
        time.sleep(0.5)  # it comes in its own time

    with pytest.warns(LinAlgWarning, match="Diagonal number 1 is exactly zero"):
        compute()


def test_failures_leave_nothing(client: Client) -> None:
    indefinite = da.diag(da.from_array(np.r_[np.ones(90), -np.ones(10)], chunks=30))
    with pytest.raises(np.linalg.LinAlgError, match="91-th leading minor"):
        hetero_la.cholesky(indefinite, nb=NB, client=client).compute()
    with pytest.raises(ValueError, match="NaN"):
        hetero_la.inv(indefinite + np.nan, nb=NB, client=client).compute()
    assert nothing_left(client)


@pytest.mark.parametrize("processes", [False, True])
def test_what_nannies_let_workers_have_is_looked_at(processes: bool) -> None:
    names = ("target", "spill", "pause", "terminate")
    with (
        dask.config.set({f"distributed.worker.memory.{name}": False for name in names}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=processes, memory_limit="1MB",
            dashboard_address=None, silence_logs=50,
        ) as cluster,
        cluster.get_client() as client,
    ):  # fmt: skip
        packed, _ = hetero_la.lu_factor(chunked(random(600), 100), nb=100, client=client)
        if processes:
            with pytest.raises(InsufficientMemoryError, match="which has 1,000,000"):
                packed.compute()
        else:  # nobody ends a worker without one
            assert packed.compute().shape == (600, 600)


@pytest.mark.slow
def test_a_run_ends_well_on_workers_that_write_results_to_disk() -> None:
    a = random(1000)
    memory = {"target": 0.05, "spill": 0.1, "pause": False, "monitor-interval": "10ms"}
    settings = {f"distributed.worker.memory.{key}": value for key, value in memory.items()}
    with (
        dask.config.set(settings),
        start("processes", 2) as cluster,
        cluster.get_client() as client,
    ):
        client.run(_limit_memory, 400_000_000)
        packed, _ = hetero_la.lu_factor(chunked(a, 100), nb=2 * NB, client=client)
        assert_same(packed.compute(), hetero_la.lu_factor(a, nb=NB).lu)
        assert all(client.run(_has_written).values())
        assert not any(client.run(lambda: len(held_shard._written)).values())


def _limit_memory(nbytes: int, dask_worker: Any) -> None:
    dask_worker.memory_manager.memory_limit = nbytes


def _has_written(dask_worker: Any) -> bool:
    return any("disk-write" in str(key) for key in dask_worker.digests_total)


def test_a_shard_written_to_disk_comes_back_where_it_was() -> None:
    def there_and_back(n: int) -> Any:
        plan = hetero_la.plan("lu", (n, n), nb=8)
        held = run_tasks.open_shard("run", "attempt", plan.packed_job, 0)
        get_worker().data["held"] = held
        held._key = "held"
        written = pickle.dumps(held)
        same = pickle.loads(written) is held
        pickle.dumps(held)
        waiting = len(held_shard._written)
        del get_worker().data["held"], held
        held_shard.forget_unwanted()
        # For a moment, another thread's frame may still refer to the shard.
        gone = soon(lambda: not [shard for shard in held_shard._alive if not shard.empty])
        return same, waiting, len(held_shard._written), gone

    with start("processes", 2) as cluster, cluster.get_client() as client:
        assert client.submit(there_and_back, 20).result(timeout=60) == (True, 1, 0, True)
        first, second = client.scheduler_info()["workers"]
        held = client.submit(
            lambda: run_tasks.open_shard(
                "run", "attempt", hetero_la.plan("lu", (9, 9)).packed_job, 0
            ),
            workers=[first],
        )
        moved = client.submit(lambda held: held.empty, held, workers=[second])
        assert moved.result(timeout=60)


# --- memory


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
@pytest.mark.exhaustive
def test_a_worker_holds_its_share_of_the_input_its_shard_and_a_few_panels() -> None:
    n, nb, workers = 3000, 50, 3
    share, panel = n * n * 8 / workers, n * nb * 8
    with start("processes", workers) as cluster, cluster.get_client() as client:
        for size in (200, n):  # once to load libraries and take what is taken once
            x = da.random.default_rng(0).standard_normal((size, size), chunks=(250, 350))
            packed, piv = hetero_la.lu_factor(x, nb=nb, client=client)
            client.wait_for_workers(workers)
            before = client.run(reset_peak)
            here = reset_peak()
            dask.compute(packed[::50, ::50], piv)
            most = max(peak - before[at] for at, peak in client.run(memory, "VmHWM").items())
        assert most < 2 * share + 12 * panel < n * n * 8
        assert memory("VmHWM") - here < share / 2  # the client holds no matrix


@pytest.mark.parametrize("routine", ROUTINES)
def test_the_scheduler_sees_what_a_task_does(routine: str) -> None:
    """It reads that from the part of the name that Dask shows."""
    prefixes = {what: key_split(task_name(title_of(routine), what, "7-a"))
                for what in (BEGIN, HOLD, RUN)}  # fmt: skip
    for what, prefix in prefixes.items():
        assert prefix.endswith(f"-{what}")
        assert prefix.startswith(title_of(routine)[:2])
