"""Calls from inside Dask tasks, whose workers they may need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
from distributed import Client, LocalCluster, get_client, secede, worker_client

import hetero_la
from tests.support import assert_close, random


def by_get_client(n: int) -> Any:
    return hetero_la.lu_factor(random(n), client=get_client(), nb=8).lu


def by_worker_client(n: int) -> Any:
    with worker_client() as client:
        return hetero_la.lu_factor(random(n), client=client, nb=8).lu


def after_secede(n: int) -> Any:
    secede()
    return hetero_la.lu_factor(random(n), client=get_client(), nb=8).lu


def without_client(n: int) -> Any:
    return hetero_la.lu_factor(random(n), nb=8).lu


def of_dask_array(n: int) -> Any:
    a = da.from_array(random(n), chunks=n // 2)
    return hetero_la.lu_factor(a, client=get_client(), nb=8)[0].compute()


@pytest.fixture(scope="module", params=["processes", "one thread", "threads", "ours"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    kinds: dict[str, Callable[[], Any]] = {
        "processes": lambda: LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ),
        "one thread": lambda: LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ),
        "threads": lambda: LocalCluster(
            n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None
        ),
        "ours": lambda: hetero_la.Cluster(cpus=1, gpus=0, virtual_gpus=2),
    }
    with kinds[request.param]() as cluster, Client(cluster, set_as_default=False) as running:
        yield running
        # Where workers are threads, `get_client` has left their client as this process's default.
        for other in list(Client._instances):
            address = getattr(other.scheduler, "address", None)  # none once it is closed
            if other is not running and address == running.scheduler.address:
                other.close()


@pytest.mark.parametrize(
    "call", [by_get_client, by_worker_client, after_secede, without_client, of_dask_array]
)
def test_several_tasks_that_factor_at_once(client: Client, call: Callable[[int], Any]) -> None:
    expected = scipy.linalg.lu_factor(random(64))[0]
    tasks = [client.submit(call, 64, pure=False) for _ in range(4)]
    for task in tasks:
        assert_close(task.result(timeout=60), expected)
    workers = list(client.nthreads())  # and no worker has lost its thread
    ended = [client.submit(np.ones, 1, workers=[w], pure=False) for w in workers]
    client.gather(ended)
