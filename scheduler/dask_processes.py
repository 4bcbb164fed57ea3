"""The Dask executor for clusters whose workers are other processes.

Every worker process keeps its shard in place; Dask tasks, pinned to their worker and
chained, run a slice of its program each.  A slice ends wherever a message leaves; the
message is the task's result, and so reaches whatever needs it on any cluster.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import distributed
import numpy as np

from hetero_la.scheduler.dask_plugins import this_device
from hetero_la.scheduler.dask_wait import wait_all
from hetero_la.scheduler.instructions import Program
from hetero_la.scheduler.job import Job, Outcome
from hetero_la.scheduler.messages import MessageKey
from hetero_la.scheduler.runner import LogEntry, Name, Payload, Runner
from hetero_la.tiles.errors import RunAbortedError, StaleShardError
from hetero_la.tiles.kernels.cpu import CpuDevice
from hetero_la.tiles.kernels.spec import Array, Device, Queue
from hetero_la.tiles.shard import Storage

#: Shards that live in this worker process, by run and worker index.  They are kept here
#: and not as Dask results, which a worker may spill to disk while they are updated.
_shards: dict[tuple[str, int], Runner] = {}
#: How long a run that failed waits for the workers that are left to forget it.
_CLEAN_UP_SECONDS = 10
#: Runs that have ended early: what was already on its way for them is refused.
_ended: deque[str] = deque(maxlen=1000)


class BlockStorage:
    """The columns of one worker, shipped to its process."""

    def __init__(self, blocks: dict[int, np.ndarray]) -> None:
        self.blocks = blocks
        self.results: dict[int, np.ndarray] = {}

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """None: the blocks belong to Dask."""
        return None, False

    def load(self, device: Device, start: int, stop: int, target: Array) -> None:
        """Copy a block in, and drop it."""
        device.copy(target, self.blocks.pop(start), Queue.COPY)

    def store(self, device: Device, start: int, stop: int, source: Array) -> None:
        """Keep a finished block until it is collected."""
        self.results[start] = np.empty(source.shape, source.dtype, order="F")
        device.copy(self.results[start], source, Queue.COPY)

    def flush(self, device: Device) -> None:
        """Nothing: `Device.synchronize` completes the copies."""


def open_shard(run: str, worker: int, job: Job, blocks: dict[int, np.ndarray]) -> None:
    """Dask task: set up a worker's state."""
    if run in _ended:
        raise RunAbortedError(f"run {run} has ended")
    _shards[run, worker] = job.runner(worker, this_device(), BlockStorage(dict(blocks)))


def run_slice(
    run: str, worker: int, start: int, stop: int, keys: Sequence[MessageKey],
    payloads: Sequence[Payload], before: Any,
) -> Payload | None:  # fmt: skip
    """Dask task: run a slice of a program, given the messages that it receives."""
    if (run, worker) not in _shards:
        raise StaleShardError(f"the shard of worker {worker} was lost with its process")
    runner = _shards[run, worker]
    runner.inbox.update(zip(keys, payloads, strict=True))
    runner.run(start, stop)
    sent, runner.outbox = runner.outbox, None
    return sent


def close_shard(
    run: str, worker: int, before: Any
) -> tuple[dict[int, np.ndarray], dict[Name, np.ndarray], list[LogEntry]]:
    """Dask task: finished columns, per-step vectors and the log of a worker."""
    runner = _shards.pop((run, worker))
    values = runner.finish()
    assert isinstance(runner.storage, BlockStorage)
    return runner.storage.results, values, runner.log


def drop_shards(run: str) -> None:
    """Forget what a run that failed has left in this process."""
    _ended.append(run)
    for key in [key for key in _shards if key[0] == run]:
        del _shards[key]


def run_in_processes(client: distributed.Client, job: Job, storage: Storage) -> Outcome:
    """Run on workers of any Dask cluster."""
    run = f"{job.name}-{uuid.uuid4().hex[:8]}"
    outcome = Outcome()
    addresses = [worker.address for worker in job.workers]
    submitted: list[distributed.Future] = []
    try:
        finals = _submit(client, job, run, storage, submitted)
        submitted.clear()  # what no later task needs may go
        wait_all(client, finals, addresses)
        for worker, future in enumerate(finals):
            results, values, log = future.result()
            for start, block in results.items():
                storage.store(CpuDevice(), start, start + block.shape[1], block)
            outcome.values.update(values)
            outcome.logs[worker] = log
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            if submitted:
                client.cancel(submitted)
            left = set(addresses) & set(client.nthreads())  # nobody answers for the others
            drops = [client.submit(drop_shards, run, workers=[a], pure=False) for a in left]
            for drop in drops:
                drop.result(timeout=_CLEAN_UP_SECONDS)
        raise
    return outcome


def _submit(
    client: distributed.Client, job: Job, run: str, storage: Storage,
    submitted: list[distributed.Future],
) -> list[distributed.Future]:  # fmt: skip
    """Submit all slices in an order in which messages come before what needs them."""

    def pinned(function: Any, what: str, worker: int, *args: Any) -> distributed.Future:
        future = client.submit(
            function, run, worker, *args, key=f"{run}-{job.workers[worker].name}-{what}",
            workers=[job.workers[worker].address], allow_other_workers=False, pure=False,
            retries=0,
        )  # fmt: skip
        submitted.append(future)
        return future

    blocks = [_ship(client, job, worker, storage) for worker in range(len(job.programs))]
    last = [pinned(open_shard, "load", worker, job.only(worker), blocks[worker])
            for worker in range(len(job.programs))]  # fmt: skip
    sent: dict[MessageKey, distributed.Future] = {}
    waiting = {program.worker: list(slices(program)) for program in job.programs}
    while any(waiting.values()):
        for worker, pieces in waiting.items():
            while pieces and all(key in sent for key in pieces[0][2]):
                start, stop, keys, message = pieces.pop(0)
                inputs = [sent[key] for key in keys]
                what = f"instructions-{start}-{stop}"
                last[worker] = pinned(
                    run_slice, what, worker, start, stop, keys, inputs, last[worker]
                )
                if message is not None:
                    sent[message] = last[worker]
    return [pinned(close_shard, "collect", worker, last[worker]) for worker in range(len(last))]


def _ship(
    client: distributed.Client, job: Job, worker: int, storage: Storage
) -> distributed.Future:
    """Send a worker its columns."""
    blocks: dict[int, np.ndarray] = {}
    for instruction in job.programs[worker].instructions:
        if instruction.op != "load":
            continue
        start, stop = job.layout.columns(instruction.first)
        blocks[start] = np.empty((job.layout.m, stop - start), job.dtype, order="F")
        storage.load(CpuDevice(), start, stop, blocks[start])
    target = job.workers[worker]
    try:
        return client.scatter([blocks], workers=[target.address], hash=False)[0]
    except (KeyError, OSError) as error:  # the scheduler does not know it, or cannot reach it
        raise RunAbortedError(
            f"worker {target.name} ({target.address}) left the cluster before its work was done"
        ) from error


def slices(program: Program) -> Iterator[tuple[int, int, list[MessageKey], MessageKey | None]]:
    """Cut a program after every send: start, stop, messages needed, message sent."""
    start, needed = 0, list[MessageKey]()
    for place, instruction in enumerate(program.instructions):
        if instruction.op == "receive" and instruction.message is not None:
            needed.append(instruction.message)
        elif instruction.op == "send":
            yield start, place + 1, needed, instruction.message
            start, needed = place + 1, []
    yield start, len(program.instructions), needed, None
