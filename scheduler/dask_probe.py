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
    first = list(addresses[:1])
    one, many = (
        statistics.median(_samples(functools.partial(_run, client, _nothing, first * tasks)))
        for tasks in (1, _CHAIN)
    )
    with ThreadPoolExecutor(len(addresses)) as pool:
        longer = _samples(
            functools.partial(_run, client, _copies, addresses),
            lambda: list(pool.map(_copies, addresses)),
        )
    # No less than a task that does nothing: on a machine in use, differences are not certain.
    return DaskCosts(max(statistics.median(longer), one), max(many - one, 0.0) / (_CHAIN - 1))


def _samples(work: Callable[[], Any], other: Callable[[], Any] | None = None) -> list[float]:
    """Seconds of several calls, less those of another call right before each."""
    samples = []
    for _ in range(_REPEATS + 1):
        before = _seconds(other) if other is not None else 0.0
        samples.append(_seconds(work) - before)
    return samples[1:]  # the first one warms up


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


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
