"""Losses of workers: whether one is behind an error, and who is there to go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import distributed
from distributed.scheduler import KilledWorker, NoValidWorkerError

from hetero_la.scheduler.cluster.clients import running_addresses, worker_infos
from hetero_la.scheduler.on_dask.wait import lost_message
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.arrays.errors import RunAbortedError, StaleShardError, WorkerLostError

#: Seconds to wait for a worker, if none is left.
_RESTART_SECONDS = 30.0
#: Seconds in which Dask's scheduler finds out that a worker has left, which an error told of.
_NOTICE_SECONDS = 1.0
_INTERVAL = 0.1
#: Errors that can be due to a lost worker.
_SUSPECT = (
    RunAbortedError, StaleShardError, OSError, asyncio.CancelledError, KilledWorker,
    NoValidWorkerError,
)  # fmt: skip


def what_was_lost(
    client: distributed.Client, workers: Sequence[WorkerInfo], error: BaseException
) -> str | None:
    """Return the reason of a failure, if a lost worker is behind it; else None."""
    if isinstance(error, WorkerLostError):
        return str(error)
    deadline = time.monotonic() + (_NOTICE_SECONDS if isinstance(error, _SUSPECT) else 0)
    while client.status == "running":
        there = {(info.address, info.pid) for info in worker_infos(client, refresh=True)}
        for worker in workers:  # at its address there may be a new process
            if (worker.address, worker.pid) not in there:
                return str(client.sync(lost_message, client, worker.address, worker.label))
        if time.monotonic() >= deadline:
            break
        time.sleep(_INTERVAL)
    return None


def who_goes_on(
    client: distributed.Client, count: int, seconds: Callable[[], float], reason: str
) -> list[WorkerInfo]:
    """Return the workers that are there, after waiting for a restarted one while that pays.

    It pays for no longer than the others would take for the lost worker's share.
    """
    began = time.monotonic()
    patience = min(seconds() / max(count - 1, 1), _RESTART_SECONDS)
    while True:
        there, waited = len(running_addresses(client)), time.monotonic() - began
        if there and (there >= count or waited >= patience):
            if workers := worker_infos(client, refresh=True):
                return workers
        elif waited >= _RESTART_SECONDS:
            raise RunAbortedError(
                f"{reason}; no worker was left, and none came within {_RESTART_SECONDS:g} s"
            )
        time.sleep(_INTERVAL)
