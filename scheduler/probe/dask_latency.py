"""Measures what Dask takes for a run, and to go on from one task to the next."""

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
#: What a worker does meanwhile, as when it loads columns: blocks of rows of so many columns,
#: copied so many times.
_ROWS, _COLUMNS, _TIMES = 64, 1024, 20
_numbers = itertools.count()


#: When each of the latest tasks began and ended; they run in this process.
_spans: list[tuple[float, float]] = []


def _copies(before: Any) -> None:
    """Dask task: short calls, which release the interpreter and want it back."""
    began = time.perf_counter()
    source, target = np.ones((_COLUMNS, _COLUMNS)), np.empty((_COLUMNS, _COLUMNS), order="F")
    for row in [*range(0, _COLUMNS, _ROWS)] * _TIMES:
        target[row : row + _ROWS] = source[row : row + _ROWS]
    _spans.append((began, time.perf_counter()))


def _nothing(before: Any) -> None:
    """Dask task."""


def measure_dask(client: Client, addresses: Sequence[str]) -> DaskCosts:
    """Time tasks on all workers of a cluster, and what passes before and after them.

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
    around = _samples(functools.partial(_around, client, addresses))
    return DaskCosts(statistics.median(around), max(many - one, 0.0) / (_CHAIN - 1))


def _samples(seconds: Callable[[], float]) -> list[float]:
    """What several calls return."""
    return [seconds() for _ in range(_REPEATS + 1)][1:]  # the first one warms up


def _around(client: Client, addresses: Sequence[str]) -> float:
    """Seconds of a run until its first task begins, and after its last one has ended."""
    _spans.clear()
    seconds = _run(client, _copies, addresses)
    starts, ends = zip(*_spans, strict=True)
    return seconds - (max(ends) - min(starts))


def _run(client: Client, task: Callable[[Any], None], addresses: Sequence[str]) -> float:
    """Run a task at each of the addresses, after the one before it at the same; its seconds."""
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
