"""Lazy runs that lose a worker process: the right answer, or an error that says why not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import hetero_la
from hetero_la.dask_arrays import lazy_run
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.cluster.placement_plugin import RunTask
from hetero_la.scheduler.on_dask import run_graph
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.arrays.errors import RunAbortedError
from tests.dask_support import assert_same, chunked, nothing_left
from tests.scheduler.recovery import (
    Hosts,
    break_kernel,
    die_at,
    kill_later,
    local_cluster,
    mend,
    pause_for,
    slow_blocks,
    slow_down,
    soon,
    wait_for_workers,
)
from tests.support import positive, random

N, NB, WORKERS = 240, 8, 3


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    with local_cluster(WORKERS) as client:
        yield client


@pytest.fixture
def processes(shared: Client) -> Iterator[Client]:
    """Three workers, all of them there; what a test leaves behind is looked at."""
    wait_for_workers(shared, WORKERS)
    yield shared
    wait_for_workers(shared, WORKERS)
    assert nothing_left(shared)


def lazy_lu(client: Client, a: Any, **options: Any) -> tuple[da.Array, da.Array]:
    x = a if isinstance(a, da.Array) else chunked(a, 70)
    return hetero_la.lu_factor(x, nb=NB, client=client, **options)


def check_lu(client: Client, n: int = N) -> None:
    a = random(n)
    futures = client.compute(lazy_lu(client, a))
    assert_same(tuple(f.result(60) for f in futures), tuple(hetero_la.lu_factor(a, nb=NB)))


def address(client: Client, number: int) -> str:
    return worker_infos(client)[number].address


# --- any moment


@pytest.mark.parametrize(("kernel", "count"), [("getrf", 1), ("getrf", 5), ("laswp", 1)])
@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_worker_that_dies(processes: Client, kernel: str, count: int, victim: int) -> None:
    info = worker_infos(processes)[victim]
    processes.run(die_at, kernel, count, workers=[info.address])
    check_lu(processes)
    assert has_died(processes, info)


def has_died(client: Client, info: WorkerInfo) -> bool:
    wait_for_workers(client, WORKERS)
    return info.pid not in {left.pid for left in worker_infos(client, refresh=True)}


@pytest.mark.slow
def test_worker_after_worker(processes: Client) -> None:
    infos = worker_infos(processes)[:2]
    for info, count in zip(infos, (2, 4), strict=True):
        processes.run(die_at, "getrf", count, workers=[info.address])
    check_lu(processes)
    assert all(has_died(processes, info) for info in infos)


def test_two_runs_of_which_one_needs_the_other(processes: Client) -> None:
    a, b = random(N), random(N, 3, seed=1)
    factors = lazy_lu(processes, a)
    x = hetero_la.lu_solve(factors, chunked(b, 50))
    info = worker_infos(processes)[1]
    processes.run(die_at, "getrf", 5, workers=[info.address])
    with processes.as_current():
        found = processes.compute((x, hetero_la.slogdet(chunked(a, 70), client=processes)))
        assert np.allclose(a @ found[0].result(60), b)
        del found
    assert has_died(processes, info)


def kill_at_a_random_moment(client: Client, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(100, 400))
    a, p, b = random(n), positive(n), random(n, 3, seed=1)
    x = [chunked(m, int(rng.integers(30, n))) for m in (a, p, b)]
    options: dict[str, Any] = {"nb": NB, "client": client, "lookahead": int(rng.integers(3))}
    made = [
        lambda: hetero_la.solve(x[0], x[2], **options),
        lambda: hetero_la.cholesky(x[1], **options),
        lambda: hetero_la.lu(x[0], permute_l=True, **options),
        lambda: hetero_la.qr(x[0], **options),
    ][int(rng.integers(4))]()
    killer = kill_later(client, int(rng.integers(8)), rng.uniform(0, 1.0))
    try:
        found = [f.result(60) for f in client.compute(made if isinstance(made, tuple) else (made,))]
    finally:
        killer.join()
    product = found[0] @ found[1] if len(found) == 2 else None
    expected: Any = a if product is not None else None
    if product is None and found[0].shape == b.shape:
        product, expected = a @ found[0], b
    elif product is None:
        product, expected = found[0].T @ found[0], p
    assert np.allclose(product, expected)


@pytest.mark.parametrize("seed", range(2))
def test_any_worker_at_any_moment(processes: Client, seed: int) -> None:
    kill_at_a_random_moment(processes, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_any_worker_at_thirty_moments(processes: Client, seed: int) -> None:
    kill_at_a_random_moment(processes, seed)


# --- after the run, and before it


def test_persisted_factors_are_made_again(processes: Client) -> None:
    a, b = random(N), random(N, 3, seed=1)
    with processes.as_current():
        factors = dask.persist(*lazy_lu(processes, a), scheduler=processes)
        wait(factors)
        processes.run(die_at, "getrf", 3, workers=[address(processes, 2)])
        os.kill(worker_infos(processes)[1].pid, signal.SIGKILL)
        x = hetero_la.lu_solve(factors, chunked(b, 50))
        assert np.allclose(a @ x.compute(scheduler=processes), b)
        assert_same(
            dask.compute(factors, scheduler=processes)[0], tuple(hetero_la.lu_factor(a, nb=NB))
        )
        del factors, x


@pytest.mark.slow
def test_a_graph_made_before_a_worker_was_replaced(processes: Client) -> None:
    a = random(N)
    made = lazy_lu(processes, a)
    planned = homes(made[0])
    processes.run(die_at, "getrf", 1, workers=[address(processes, 0)])
    check_lu(processes, n=100)
    wait_for_workers(processes, WORKERS)
    assert not planned <= {info.address for info in worker_infos(processes)}
    found = tuple(future.result(60) for future in processes.compute(made))
    assert_same(found, tuple(hetero_la.lu_factor(a, nb=NB)))


# --- who goes on


@pytest.mark.slow
def test_nobody_restarts_a_worker() -> None:
    with (
        Hosts(["127.0.0.1", "127.0.0.2", "127.0.0.2"]) as hosts,
        Client(hosts.address, set_as_default=False) as client,
    ):
        client.wait_for_workers(3, timeout=60)
        client.run(die_at, "getrf", 5, workers=[address(client, 0)])
        check_lu(client)
        client.run(slow_down, 0.002)
        client.run(die_at, "getrf", 5, workers=[address(client, 0)])
        check_lu(client)
        assert len(client.scheduler_info()["workers"]) == 1


@pytest.mark.slow
def test_the_only_worker_dies_and_is_restarted() -> None:
    with local_cluster(1) as client:
        client.run(die_at, "getrf", 3)
        check_lu(client)


# --- input that cannot be had again


@pytest.mark.parametrize("released", [False, True])
def test_the_only_copy_of_the_input_is_lost(processes: Client, released: bool) -> None:
    a = random(N)
    held = processes.scatter(a, workers=[address(processes, 0)], hash=False)
    x = da.from_delayed(dask.delayed(held), a.shape, a.dtype)
    processes.run(die_at, "getrf", 3, workers=[address(processes, 0)])
    began = time.perf_counter()
    future = processes.compute(lazy_lu(processes, x))[0]
    if released:
        del held, x
    with pytest.raises(RunAbortedError, match="was lost: its only copy was on a worker"):
        future.result(60)
    assert time.perf_counter() - began < 30


# --- workers that pause, join late, or fail


def test_a_worker_that_pauses(processes: Client) -> None:
    processes.run(slow_down, 0.002)
    try:
        processes.run(pause_for, 1.0, workers=[address(processes, 1)])
        time.sleep(0.3)  # the scheduler hears of it
        packed, _ = lazy_lu(processes, random(N))
        assert len(homes(packed)) == WORKERS - 1  # it gets no part
        check_lu(processes)
        wait_for_workers(processes, WORKERS)
        later = threading.Timer(0.2, processes.run, (pause_for, 0.7))
        later.start()  # all of them, in the middle
        check_lu(processes)
        later.join()
    finally:
        processes.run(mend)


def homes(array: da.Array) -> set[str]:
    tasks = array.dask.to_dict().values()
    return {home for task in tasks if isinstance(task, RunTask) for home in task.homes}


@pytest.mark.slow
def test_a_worker_that_joins_late() -> None:
    """It takes part in what is planned from then on."""
    with local_cluster(2) as client:
        client.run(slow_down, 0.005)
        a = random(N)
        packed, _ = lazy_lu(client, a)
        future = client.compute(packed)
        client.cluster.scale(3)
        assert_same(future.result(60), hetero_la.lu_factor(a, nb=NB).lu)
        wait_for_workers(client, 3)
        assert len(homes(packed)) == 2
        assert len(homes(lazy_lu(client, a)[0])) == 3
        check_lu(client)
        del future
        assert nothing_left(client)


def test_an_error_in_a_kernel(processes: Client) -> None:
    processes.run(break_kernel, "gemm", workers=[address(processes, 2)])
    try:
        packed, _ = lazy_lu(processes, random(N))
        future = processes.compute(packed)
        assert "out of order" in str(future.exception(60))
        del future  # Dask keeps the error as long as somebody may ask for it
    finally:
        processes.run(mend)
    assert nothing_left(processes)
    check_lu(processes)


# --- graphs that nobody has planned workers for


@pytest.mark.parametrize("dies", [False, True])
def test_input_in_portions_on_any_worker(
    processes: Client, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_graph, "_LEAST_PORTION", 1)
    a = random(N)
    packed, piv = hetero_la.lu_factor(chunked(a, 30), nb=NB)
    assert not homes(packed)
    assert sum("-load-" in str(key) for key in packed.dask.to_dict()) > 10
    before = {info.pid for info in worker_infos(processes)}
    if dies:
        processes.run(die_at, "getrf", 9)  # wherever it is
    futures = processes.compute((packed, piv))
    expected = hetero_la.lu_factor(a, nb=NB)
    assert_same(tuple(future.result(60) for future in futures), tuple(expected))
    wait_for_workers(processes, WORKERS)
    assert ({info.pid for info in worker_infos(processes, refresh=True)} == before) != dies
    processes.restart()  # the others were to die later


def test_a_part_that_has_gone_is_wanted_while_others_are_there(processes: Client) -> None:
    """The workers go through their programs together: one alone would wait for ever."""
    a = random(N)
    packed, _ = lazy_lu(processes, a)
    processes.run(slow_blocks, 1.0)
    try:
        first = processes.compute(packed[:, :NB])
        until = time.monotonic() + 10
        while not any("-result-" in key for key in executing(processes)):
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.2)  # what nobody wants goes
        second = processes.compute(packed[:, NB:])
        expected = hetero_la.lu_factor(a, nb=NB).lu
        assert_same(second.result(60), expected[:, NB:])
        assert_same(first.result(60), expected[:, :NB])
    finally:
        processes.run(slow_blocks, 0)


def test_a_run_begins_again_that_reads_one_of_which_a_part_has_gone(
    processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is read has lost nothing by the worker that dies."""
    a = random(N)
    infos = worker_infos(processes)
    with monkeypatch.context() as patch:
        patch.setattr(lazy_run, "worker_infos", lambda client: worker_infos(client)[:2])
        packed, _ = lazy_lu(processes, a)
    again, _ = lazy_lu(processes, packed[:, NB:])
    assert (len(homes(packed)), len(homes(again))) == (2, WORKERS)
    processes.run(slow_blocks, 60.0, first=0)
    processes.run(die_at, "getrf", 5, workers=[infos[2].address])
    try:
        slow, wanted = processes.compute([packed[:, :NB], again[:, NB:]])
        assert soon(lambda: infos[2].address not in workers(processes), 30)
        assert not slow.done()
        expected = hetero_la.lu_factor(a, nb=NB).lu
        found = wanted.result(30)
        assert_same(found, hetero_la.lu_factor(expected[:, NB:], nb=NB).lu[:, NB:])
        processes.run(slow_blocks, 0)
        assert_same(slow.result(30), expected[:, :NB])
    finally:
        wait_for_workers(processes, WORKERS)
        processes.run(slow_blocks, 0)


def workers(client: Client) -> list[str]:
    return client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.workers])


def executing(client: Client) -> list[str]:
    return [str(key) for keys in client.processing().values() for key in keys]
