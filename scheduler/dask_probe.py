"""Measures what Dask takes for a run, and to go on from one task to the next."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from distributed import Client

from hetero_la.scheduler.costs import DaskCosts
from hetero_la.scheduler.dask_wait import wait_all

_REPEATS, _CHAIN = 9, 16
#: What a worker does meanwhile, as when it loads columns: blocks of rows of so many columns,
#: copied so many times.
_ROWS, _COLUMNS, _TIMES = 64, 1024, 20
_numbers = itertools.count()


def _copies(before: Any) -> None:
    """Dask task: short calls, which release the interpreter and want it back."""
    source, target = np.ones((_COLUMNS, _COLUMNS)), np.empty((_COLUMNS, _COLUMNS), order="F")
    for row in [*range(0, _COLUMNS, _ROWS)] * _TIMES:
        target[row : row + _ROWS] = source[row : row + _ROWS]


def _nothing(before: Any) -> None:
    """Dask task."""


def measure_dask(client: Client, addresses: Sequence[str]) -> DaskCosts:
    """Time tasks on all workers of a cluster, and in plain threads.

    Parameters
    ----------
    client : Client
        Of a cluster in this process.
    addresses : sequence of str
        Of its workers.
    """
    with ThreadPoolExecutor(len(addresses)) as pool:
        plain = _median(lambda: list(pool.map(_copies, addresses)))
    start = _median(lambda: _run(client, _copies, addresses)) - plain
    first = list(addresses[:1])
    one, many = (
        _median(functools.partial(_run, client, _nothing, first * tasks)) for tasks in (1, _CHAIN)
    )
    return DaskCosts(max(start, 0.0), max(many - one, 0.0) / (_CHAIN - 1))


def _median(work: Callable[[], Any]) -> float:
    """Seconds of several calls, of which the first warms up."""
    samples = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        work()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples[1:])


def _run(client: Client, task: Callable[[Any], None], addresses: Sequence[str]) -> None:
    """Run a task at each of the addresses, after the one before it at the same."""
    number, latest, futures = next(_numbers), dict[str, Any](), []
    for place, address in enumerate(addresses):
        latest[address] = client.submit(
            task, latest.get(address), key=f"probe-{number}-{place}", workers=[address],
            allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip
        futures.append(latest[address])
    wait_all(client, futures, list(latest))
