"""Runs on the workers of a `dask_cuda.LocalCUDACluster`, which are given its client and no more."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.linalg
from distributed import Client, wait
from numpy.typing import NDArray

import hetero_la
from hetero_la.cli.main import main
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.tiles.arrays.transfer import gpu_count
from tests.dask_support import (
    Case,
    any_shape_cases,
    assert_same,
    chunked,
    nothing_left,
    square_cases,
)
from tests.scheduler.recovery import (
    at_rest,
    calls_of_kernels,
    communicators,
    count_kernels,
    die_at,
    gpu_arrays,
    kill_later,
    soon,
    wait_for_workers,
)
from tests.support import DTYPES, assert_close, host, positive, random

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
dask_cuda = pytest.importorskip("dask_cuda", exc_type=ImportError)

NB = 32


@contextlib.contextmanager
def gpu_processes(**settings: Any) -> Iterator[Client]:
    """One process a GPU, as dask-cuda starts them; one that ends is started anew."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h", **settings}),
        dask_cuda.LocalCUDACluster(
            dashboard_address=None, silence_logs=logging.CRITICAL
        ) as running,
        Client(running, set_as_default=False) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gpu_processes() as connected:
        yield connected


@pytest.fixture
def used(client: Client) -> Iterator[Callable[[], None]]:
    """What asserts that every GPU, and no host, has computed since the last such question."""
    client.run(count_kernels)

    def check() -> None:
        for counts in client.run(calls_of_kernels).values():
            assert counts["gpu"] > 0
            assert counts["cpu"] == 0

    yield check
    client.run(calls_of_kernels)


def test_the_cluster_is_described(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    """Workers with the PCI addresses of their GPUs, and a link between each two of them."""
    assert main(["info", "--json", "--scheduler", client.scheduler.address]) == 0
    found = json.loads(capfd.readouterr().out)
    gpus = [worker["gpu"] for worker in found["workers"]]
    assert all(
        re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0", gpu) for gpu in gpus
    )
    assert len(set(gpus)) == len(gpus) == gpu_count()
    assert {worker["kind"] for worker in found["workers"]} == {"gpu"}
    count = len(gpus)
    assert sum(pair["pairs"] for pair in found["pairs"]) == count * (count - 1) // 2
    assert {pair["transport"] for pair in found["pairs"]} == ({"NCCL"} if count > 1 else set())
    assert all(pair["bandwidth"] > 20e9 for pair in found["pairs"])


def on_gpus(a: NDArray, chunks: int = 100) -> da.Array:
    """A Dask array whose blocks become CuPy arrays on the workers."""
    cupy = pytest.importorskip("cupy")
    meta = cupy.empty((0,) * a.ndim, a.dtype)
    return chunked(a, chunks).map_blocks(cupy.asarray, dtype=a.dtype, meta=meta)


def on_hosts(a: NDArray) -> da.Array:
    return chunked(a, 100)


def test_workers_say_that_each_has_a_gpu(client: Client) -> None:
    infos = worker_infos(client)
    assert [info.kind for info in infos] == ["gpu"] * gpu_count()
    assert not any(info.virtual for info in infos)
    pids = {info.pid for info in infos}
    assert len(pids) == len({info.gpu for info in infos}) == gpu_count()
    assert os.getpid() not in pids


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays(client: Client, used: Callable[[], None], dtype: str) -> None:
    a, p, b = random(300, dtype=dtype), positive(300, dtype), random(300, 3, dtype, seed=1)
    options: dict[str, Any] = {"client": client, "nb": NB}
    factors = hetero_la.lu_factor(a, **options)
    lu, piv = scipy.linalg.lu_factor(a)
    assert_close(factors.lu, lu)
    assert np.array_equal(factors.piv, piv)
    assert len(factors.plan.workers) == gpu_count()
    used()
    assert_close(hetero_la.solve(a, b, **options), np.linalg.solve(a, b))
    used()
    assert_close(hetero_la.cholesky(p, **options), scipy.linalg.cholesky(p))
    used()
    for m, n in ((300, 300), (500, 200), (200, 300)):
        c = random(m, n, dtype)
        assert_same(hetero_la.qr(c, mode="economic", **options),
                    hetero_la.qr(c, mode="economic", nb=NB))  # fmt: skip
        used()
    assert at_rest(client)


def test_cupy_arrays(client: Client, used: Callable[[], None]) -> None:
    cupy = pytest.importorskip("cupy")
    a = random(300)
    factors = hetero_la.lu_factor(cupy.asarray(a), client=client, nb=NB)
    assert type(factors.lu) is cupy.ndarray
    assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])
    used()
    assert at_rest(client)


@pytest.mark.parametrize("where", [on_hosts, on_gpus])
@pytest.mark.parametrize("name", ["lu_factor", "solve", "cholesky", "qr"])
def test_dask_arrays(
    client: Client, used: Callable[[], None], name: str, where: Callable[[NDArray], da.Array]
) -> None:
    a = positive(300) if name == "cholesky" else random(300)
    case = Case(name, (a, random(300, 3, seed=1)) if name == "solve" else (a,), {})
    lazy = case.call(where, client=client, nb=NB)
    found = [part.result(60) for part in client.compute(_parts(lazy))]
    expected = case.call(nb=NB)
    assert_same(tuple(map(host, found)), tuple(_parts(expected)))
    used()
    if where is on_gpus:
        assert {type(part).__module__.split(".")[0] for part in found} == {"cupy"}
    del found
    assert nothing_left(client)


def _parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.slow
@pytest.mark.parametrize("where", [on_hosts, on_gpus])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_functions_of_dask_arrays(
    client: Client, dtype: str, where: Callable[[NDArray], da.Array]
) -> None:
    cases = [*any_shape_cases(130, 90, dtype), *any_shape_cases(90, 130, dtype)]
    for case in [*cases, *square_cases(100, dtype)]:
        (found,) = dask.compute(case.call(where, client=client, nb=NB), scheduler=client)
        expected = case.call(nb=NB)
        several = isinstance(expected, tuple)
        assert_same(_on_host(found), tuple(expected) if several else expected, dtype)
    assert nothing_left(client)


def _on_host(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(map(_on_host, found))
    return found.get() if hasattr(found, "get") else found


def test_persisted_factors_solve_where_they_are(client: Client, used: Callable[[], None]) -> None:
    a, b = random(300), random(300, 3, seed=1)
    with client.as_current():
        factors = hetero_la.lu_factor(on_gpus(a), client=client, nb=NB).persist()
        wait(list(factors))
        used()
        for trans, matrix in enumerate((a, a.T)):
            assert np.allclose(matrix @ host(factors.solve(on_gpus(b), trans).compute()), b)
    del factors
    assert nothing_left(client)


def test_a_lost_worker_is_replaced(client: Client) -> None:
    """Its nanny starts another on the same GPU, and the run ends with the right answer."""
    a = random(300)
    victim = worker_infos(client)[0]
    client.run(die_at, "gemm", 3, workers=[victim.address])
    factors = hetero_la.lu_factor(a, client=client, nb=NB, checkpoint=2)
    assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])
    assert [loss.reason for loss in factors.timing.losses]
    client.wait_for_workers(gpu_count(), timeout=60)
    infos = worker_infos(client, refresh=True)
    assert [info.kind for info in infos] == ["gpu"] * gpu_count()
    assert victim.pid not in {info.pid for info in infos}
    assert at_rest(client)


#: Order of matrices whose runs take some tenths of a second.
LONG = 3000
RUNS: dict[str, Callable[[Client], Any]] = {
    "lu": lambda client: hetero_la.lu_factor(random(LONG), client=client).lu,
    "cholesky": lambda client: hetero_la.cholesky(positive(LONG), client=client),
    "qr": lambda client: abs(hetero_la.qr_factor(random(LONG), client=client).r),
    "dask array": lambda client: client.compute(
        hetero_la.lu_factor(on_gpus(random(LONG), 500), client=client)[0]
    ).result(60),
}


def expected(what: str) -> NDArray:
    if what == "cholesky":
        return scipy.linalg.cholesky(positive(LONG))
    if what == "qr":
        return abs(scipy.linalg.qr(random(LONG), mode="r")[0])
    return scipy.linalg.lu_factor(random(LONG))[0]


def check(what: str, client: Client) -> float:
    """Run, and return the seconds; nothing is left on the workers."""
    began = time.perf_counter()
    found = RUNS[what](client)
    seconds = time.perf_counter() - began
    assert_close(found, expected(what), limit=1e-9)
    del found
    assert at_rest(client)
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize("what", RUNS)
def test_a_process_that_is_killed_at_any_of_ten_moments(what: str) -> None:
    with gpu_processes() as client:
        check(what, client)
        for moment in range(10):
            kill_at_a_random_moment(what, client, moment)


def kill_at_a_random_moment(what: str, client: Client, seed: int) -> None:
    """The answer is right; memory is given back, and so are communicators to the lost one."""
    seconds = check(what, client)
    used, links = client.run(gpu_arrays), client.run(communicators)
    delay = np.random.default_rng(seed).uniform(0, seconds)
    killer = kill_later(client, seed, delay)
    assert check(what, client) < 60
    killer.join()
    wait_for_workers(client, gpu_count())
    assert check(what, client) < 60
    left = [address for address in client.run(os.getpid) if address in used]
    assert len(left) == gpu_count() - 1

    def more() -> list[tuple[int, list[str]]]:
        now = client.run(gpu_arrays, workers=left)
        return [now[at][place] for at in left for place in now[at].keys() - used[at].keys()]

    assert soon(lambda: sum(nbytes for nbytes, _ in more()) <= 2**20), more()
    for address, names in client.run(communicators, workers=left).items():
        assert len(names) == len(links[address])
        assert not set(names) & set(links[address])


@pytest.mark.slow
def test_a_process_that_stops_inside_a_run_is_lost() -> None:
    with gpu_processes(**{"distributed.scheduler.worker-ttl": "5s"}) as client:
        a = random(LONG)
        hetero_la.lu_factor(a, client=client)
        victim = worker_infos(client)[1]
        client.run(die_at, "getrf", 2, signal.SIGSTOP, workers=[victim.address])
        began = time.perf_counter()
        factors = hetero_la.lu_factor(a, client=client)
        assert time.perf_counter() - began < 60
        assert len(factors.timing.losses) == 1
        assert_close(factors.lu, expected("lu"), limit=1e-9)
        wait_for_workers(client, gpu_count())
        check("lu", client)


@pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")
def test_gpus_without_peer_access_and_shared_memory(capfd: pytest.CaptureFixture[str]) -> None:
    """As on two hosts: NCCL sends by sockets."""
    apart = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    with gpu_processes(**{"distributed.nanny.environ": apart}) as client:
        for what in RUNS:
            check(what, client)
        assert main(["info", "--json", "--scheduler", client.scheduler.address]) == 0
        (pair,) = json.loads(capfd.readouterr().out)["pairs"]
        assert pair["transport"] == "NCCL"
        assert pair["bandwidth"] < 20e9
        assert at_rest(client)
