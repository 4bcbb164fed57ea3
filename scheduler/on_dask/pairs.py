"""Pairs of workers: how they exchange panels, and how fast."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import distributed
import numpy as np

from hetero_la.scheduler.machine.model import LinkModel
from hetero_la.scheduler.on_dask.wait import fetch_all
from hetero_la.scheduler.placement.workers import WorkerInfo

#: Two workers of one cluster.
Pair = tuple[WorkerInfo, WorkerInfo]
#: Bytes of a small and of a large message.
_SMALL, _LARGE = 8_000, 16_000_000
#: How often each goes there and back.
_SMALL_TIMES, _LARGE_TIMES = 8, 4
#: Groups beyond which pairs are grouped more coarsely.
_MOST_GROUPS = 16


def pair_transport(first: WorkerInfo, second: WorkerInfo) -> str:
    """Return how two workers exchange panels.

    Examples
    --------
    >>> first = WorkerInfo("cpu0", "cpu", host="a", pid=1)
    >>> pair_transport(first, WorkerInfo("cpu1", "cpu", host="b", pid=1))
    "Dask's messages"
    """
    one_process = (first.host, first.pid) == (second.host, second.pid)
    return "one process" if one_process else "Dask's messages"


def group_pairs(workers: Sequence[WorkerInfo]) -> list[list[Pair]]:
    """Group the pairs of workers by what their links should have in common.

    Few pairs are alone in their groups.  More are grouped by transport, device kinds and hosts,
    or, on many hosts, by transport, device kinds, and whether they are on one host.

    Examples
    --------
    >>> workers = [WorkerInfo(f"cpu{i}", "cpu", host="ab"[i % 2], pid=i) for i in range(8)]
    >>> [len(group) for group in group_pairs(workers[:3])], [len(g) for g in group_pairs(workers)]
    ([1, 1, 1], [16, 6, 6])
    """
    rules: list[Callable[[WorkerInfo, WorkerInfo], Hashable]] = [
        lambda first, second: (first.name, second.name),
        lambda first, second: (*_kind(first, second), *sorted((first.host, second.host))),
        lambda first, second: (*_kind(first, second), first.host == second.host),
    ]
    for rule in rules:
        groups: dict[Hashable, list[Pair]] = {}
        for pair in itertools.combinations(workers, 2):
            groups.setdefault(rule(*pair), []).append(pair)
        if len(groups) <= _MOST_GROUPS:
            break
    return list(groups.values())


def _kind(first: WorkerInfo, second: WorkerInfo) -> tuple[str, ...]:
    return (pair_transport(first, second), *sorted((first.kind, second.kind)))


def measure_pair(client: distributed.Client, first: WorkerInfo, second: WorkerInfo) -> LinkModel:
    """Measure latency and bandwidth between two workers, by messages that go there and back.

    Parameters
    ----------
    client : Client
        Client of their cluster.
    first, second : WorkerInfo
        The workers, which should be idle.

    Raises
    ------
    WorkerLostError
        If one of them leaves meanwhile.
    """
    short = _seconds(client, first, second, _SMALL, _SMALL_TIMES)
    long = _seconds(client, first, second, _LARGE, _LARGE_TIMES)
    # On a busy machine either may be disturbed; then at least the large one's own rate is true.
    return LinkModel(short, (_LARGE - _SMALL) / (long - short if long > 1.1 * short else long))


def _seconds(
    client: distributed.Client, first: WorkerInfo, second: WorkerInfo, nbytes: int, times: int
) -> float:
    """Return the least seconds from one worker to the other, for results of a chain of tasks."""
    ends, run = (first.address, second.address), f"pair-{uuid.uuid4().hex[:8]}"
    chain: list[distributed.Future] = []

    def add(function: Callable[..., Any], received: Any) -> None:
        key, end = f"{run}-{len(chain)}", ends[len(chain) % 2]
        chain.append(
            client.submit(
                function, received, key=key, workers=[end],
                allow_other_workers=False, pure=False, retries=0,
            )
        )  # fmt: skip

    add(_first_message, nbytes)
    for _ in range(2 * times + 3):  # the first round trip connects them; the last task is _stamps
        add(_pass_on, chain[-1])
    add(_stamps, chain[-1])
    del chain[:-1]  # messages that have arrived may go
    (stamps,) = fetch_all(client, chain, ends)
    there_and_back = np.diff(stamps[::2])  # by the clock of the second worker
    return float(there_and_back[1:].min()) / 2  # the others were disturbed


def _first_message(nbytes: int) -> tuple[np.ndarray, list[float]]:
    """Dask task: make a message."""
    return np.arange(nbytes // 8, dtype=np.float64), []


def _pass_on(message: tuple[np.ndarray, list[float]]) -> tuple[np.ndarray, list[float]]:
    """Dask task: note when a message is there, by the clock of this worker's process."""
    array, stamps = message
    return array, [*stamps, time.perf_counter()]


def _stamps(message: tuple[np.ndarray, list[float]]) -> list[float]:
    """Dask task: return the times that a message has noted."""
    return message[1]
