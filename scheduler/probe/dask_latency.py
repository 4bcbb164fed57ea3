"""Probe of Dask's overhead: for a run, and from one task to the next."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from distributed import Client

from hetero_la.scheduler.machine.model import DaskCosts
from hetero_la.scheduler.on_dask.wait import wait_all

_REPEATS, _CHAIN = 9, 16
#: Load of a worker meanwhile, as when it loads columns: rows of a block, columns of the matrix,
#: and how often the matrix is copied.
_ROWS, _COLUMNS, _TIMES = 64, 1024, 20
_numbers = itertools.count()


#: Start and end of each of the latest tasks, which run in this process.
_spans: list[tuple[float, float]] = []


def _copies(before: Any) -> None:
    """Dask task: make short copies, which release the interpreter lock and take it again."""
    began = time.perf_counter()
    source, target = np.ones((_COLUMNS, _COLUMNS)), np.empty((_COLUMNS, _COLUMNS), order="F")
    for row in [*range(0, _COLUMNS, _ROWS)] * _TIMES:
        target[row : row + _ROWS] = source[row : row + _ROWS]
    _spans.append((began, time.perf_counter()))


def _nothing(before: Any) -> None:
    """Dask task: do nothing."""


def measure_dask(client: Client, addresses: Sequence[str]) -> DaskCosts:
    """Time tasks on all workers of a cluster in this process, and the overhead around them.

    Parameters
    ----------
    client : Client
        Client of the cluster.
    addresses : sequence of str
        Addresses of its workers.
    """
    around = _samples(functools.partial(_overhead, client, addresses))
    return DaskCosts(statistics.median(around), _hop(client, addresses))


def measure_cluster_dask(client: Client, addresses: Sequence[str]) -> DaskCosts:
    """Time tasks on all workers of a cluster of other processes, which share no clock."""
    around = _samples(functools.partial(_run, client, _nothing, addresses))
    return DaskCosts(statistics.median(around), _hop(client, addresses))


def _hop(client: Client, addresses: Sequence[str]) -> float:
    """Return the seconds from one task to the next one of the same worker."""
    first = list(addresses[:1])
    one, many = (
        statistics.median(_samples(functools.partial(_run, client, _nothing, first * tasks)))
        for tasks in (1, _CHAIN)
    )
    return max(many - one, 0.0) / (_CHAIN - 1)


def _samples(seconds: Callable[[], float]) -> list[float]:
    """Return the results of several calls."""
    return [seconds() for _ in range(_REPEATS + 1)][1:]  # the first call is a warm-up


def _overhead(client: Client, addresses: Sequence[str]) -> float:
    """Return the seconds of a run before its first task begins and after its last one has ended."""
    _spans.clear()
    seconds = _run(client, _copies, addresses)
    starts, ends = zip(*_spans, strict=True)
    return seconds - (max(ends) - min(starts))


def _run(client: Client, task: Callable[[Any], None], addresses: Sequence[str]) -> float:
    """Return the seconds of tasks at the given addresses, those at the same one in a chain."""
    began = time.perf_counter()
    number, latest, futures = next(_numbers), dict[str, Any](), []
    for place, address in enumerate(addresses):
        latest[address] = client.submit(
            task, latest.get(address), key=f"probe-{number}-{place}", workers=[address],
            allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip
        futures.append(latest[address])
    wait_all(client, futures, list(latest))
    return time.perf_counter() - began
