"""Clusters that shrink and grow while a run is on: workers that are retired, not lost."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import hetero_la
from tests.scheduler.recovery import at_rest, mend, slow_down, wait_for_workers
from tests.support import assert_close, random

NB, N = 8, 200
#: Seconds, at most, for a run of about three and another one from the beginning.
SOON = 30.0


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=request.param == "processes",
            dashboard_address=None, silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as running,
    ):  # fmt: skip
        running.run(slow_down, 0.05)
        yield running
        running.run(mend, on_error="ignore")  # `adapt` may still retire workers


def eager(client: Client, a: NDArray, **options: Any) -> tuple[NDArray, list[str]]:
    factors = hetero_la.lu_factor(a, nb=NB, client=client, **options)
    return factors.lu, [loss.reason for loss in factors.timing.losses]


def lazy(client: Client, a: NDArray) -> tuple[NDArray, list[str]]:
    factors = hetero_la.lu_factor(da.from_array(a, chunks=N // 2), nb=NB, client=client)
    return client.compute(factors[0]).result(timeout=60), []


def during(client: Client, run: Callable[..., Any], act: Callable[[], object]) -> list[str]:
    """Act while a run is on; what it has lost."""
    a = random(N)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, client, a.copy())
        time.sleep(1)
        assert not future.done()
        began = time.monotonic()
        act()
        lu, losses = future.result(SOON)
    assert time.monotonic() - began < SOON
    assert_close(lu, scipy.linalg.lu_factor(a)[0])
    return losses


def on_each_client(*quick: tuple[str, Callable[..., Any]]) -> pytest.MarkDecorator:
    """Both kinds of runs on both kinds of clients; all but the `quick` are exhaustive."""
    return pytest.mark.parametrize(
        ("client", "run"),
        [pytest.param(*pair, marks=[] if pair in quick else pytest.mark.exhaustive)
         for pair in itertools.product(("processes", "threads"), (eager, lazy))],
        indirect=["client"],
    )  # fmt: skip


@on_each_client(("processes", eager))
def test_a_worker_that_is_retired(
    client: Client, run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    # The first one: threads do a run on Dask arrays together, as a task of that one.
    gone = min(client.scheduler_info(n_workers=-1)["workers"].items(), key=lambda w: w[1]["id"])[0]
    losses = during(client, run, lambda: client.retire_workers([gone]))
    assert gone not in client.nthreads()
    assert time.monotonic() - began < SOON
    if run is eager:
        assert len(losses) == 1
        assert gone in losses[0]
        assert "was retired before its work was done" in losses[0]
    assert "lease" not in caplog.text
    assert at_rest(client)


@pytest.mark.exhaustive
@on_each_client(("processes", lazy))
def test_a_cluster_that_is_scaled_down_and_up(client: Client, run: Callable[..., Any]) -> None:
    def scale() -> None:
        client.cluster.scale(1)
        time.sleep(1)
        client.cluster.scale(3)

    during(client, run, scale)
    wait_for_workers(client, 3)
    client.run(mend)
    lu, losses = run(client, random(N))
    assert not losses
    assert_close(lu, scipy.linalg.lu_factor(random(N))[0])


@pytest.mark.parametrize(
    "client", ["processes", pytest.param("threads", marks=pytest.mark.exhaustive)], indirect=True
)
@pytest.mark.exhaustive
def test_a_cluster_that_adapts(client: Client) -> None:
    def adapt() -> None:
        client.cluster.adapt(minimum=1, maximum=2, interval="200ms", wait_count=1)

    losses = during(client, eager, adapt)  # none, if all comes to its end before
    assert not [reason for reason in losses if "paused" in reason]


def test_threads_that_work_in_the_place_of_the_input_cannot_begin_again() -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(slow_down, 0.05)
        try:
            with ThreadPoolExecutor(1) as pool:
                a = np.asfortranarray(random(N))
                future = pool.submit(eager, client, a, overwrite_a=True)
                time.sleep(1)
                client.retire_workers([next(iter(client.nthreads()))])
                with pytest.raises(
                    hetero_la.tiles.arrays.errors.RunAbortedError, match=r"retired|left"
                ):
                    future.result(SOON)
        finally:
            client.run(mend)
