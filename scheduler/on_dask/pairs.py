"""Pairs of workers: how they exchange panels, and how fast."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import distributed
import numpy as np

from hetero_la.scheduler.cluster.devices import current_worker, device_of
from hetero_la.scheduler.exchange.communicators import Contact
from hetero_la.scheduler.exchange.group import RunGroup
from hetero_la.scheduler.machine.model import LinkModel
from hetero_la.scheduler.on_dask.group_tasks import in_group, new_group
from hetero_la.scheduler.on_dask.wait import fetch_all
from hetero_la.scheduler.placement.workers import WorkerInfo, transport_of

#: Two workers of one cluster.
Pair = tuple[WorkerInfo, WorkerInfo]
#: Bytes of a small and of a large message.
_SMALL, _LARGE = 8_000, 16_000_000
#: How often each goes there and back.
_TIMES = 8
#: Groups beyond which pairs are grouped more coarsely.
_MOST_GROUPS = 16


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
    return (transport_of(first, second).value, *sorted((first.kind, second.kind)))


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
    short = message_seconds(client, first, second, _SMALL)
    long = message_seconds(client, first, second, _LARGE)
    # On a busy machine either may be disturbed; then at least the large one's own rate is true.
    return LinkModel(short, (_LARGE - _SMALL) / (long - short if long > 1.1 * short else long))


def message_seconds(
    client: distributed.Client, first: WorkerInfo, second: WorkerInfo, nbytes: int
) -> float:
    """Return the seconds of a message between two workers, which goes the way of a run's panels."""
    run, ends = f"pair-{uuid.uuid4().hex[:8]}", (first.address, second.address)

    def add(function: Callable[..., Any], index: int, *args: Any) -> distributed.Future:
        return client.submit(
            function, run, index, *args, key=f"{run}{function.__name__}-{index}",
            workers=[ends[index]], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip

    contacts = [add(_open, index) for index in range(2)]
    seconds = [add(_time, index, contacts, nbytes) for index in range(2)]
    there_and_back, _ = fetch_all(client, seconds, ends)
    return min(there_and_back[1:]) / 2  # the others were disturbed, the first has connected them


#: What is being measured, by name and end.
_open_groups: dict[tuple[str, int], RunGroup] = {}


def _open(run: str, index: int) -> Contact:
    """Dask task: begin to measure."""
    worker = current_worker()
    assert worker is not None
    group = _open_groups[run, index] = new_group(run, index, device_of(worker))
    return group.contact()


def _time(run: str, index: int, contacts: Sequence[Contact], nbytes: int) -> list[float]:
    """Dask task: return the seconds of messages to the other end and back."""
    group = _open_groups.pop((run, index))
    with in_group(group, contacts):
        seconds = _round_trips(group, 1 - index, nbytes, begins=index == 0)
        group.close()
    return seconds


def _round_trips(group: RunGroup, other: int, nbytes: int, *, begins: bool) -> list[float]:
    """Return the seconds of messages to another worker, which calls this too, and back."""
    channel, device, seconds = group.channels.get(other), group.device, []
    with device.activate():
        on_host = np.empty(nbytes, np.uint8)
        array = on_host if channel is None else device.empty((nbytes,), np.uint8)
        for turn in range(_TIMES):
            began = time.perf_counter()
            for sends in (begins, not begins):
                if channel is not None and sends:
                    channel.send([array])
                    channel.flush()
                elif channel is not None:
                    channel.receive_in([array])
                    device.synchronize()  # what is sent back must not leave before
                elif sends:
                    group.post(other, turn, [array])
                else:
                    arrived = group.inbox.take(turn)
                    np.copyto(array, arrived.arrays[0])
                    arrived.release()
            seconds.append(time.perf_counter() - began)
    return seconds
