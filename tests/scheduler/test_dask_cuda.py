"""Runs on the workers of a `dask_cuda.LocalCUDACluster`, which are given its client and no more."""

from __future__ import annotations

import json
import logging
import os
import re
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
from tests.scheduler.recovery import at_rest, calls_of_kernels, count_kernels, die_at
from tests.support import DTYPES, assert_close, host, positive, random

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
dask_cuda = pytest.importorskip("dask_cuda", exc_type=ImportError)

NB = 32


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One process a GPU, as dask-cuda starts them; one that ends is started anew."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        dask_cuda.LocalCUDACluster(
            dashboard_address=None, silence_logs=logging.CRITICAL
        ) as running,
        Client(running, set_as_default=False) as connected,
    ):
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


def on_gpus(a: NDArray) -> da.Array:
    """A Dask array whose blocks become CuPy arrays on the workers."""
    cupy = pytest.importorskip("cupy")
    meta = cupy.empty((0,) * a.ndim, a.dtype)
    return chunked(a, 100).map_blocks(cupy.asarray, dtype=a.dtype, meta=meta)


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
