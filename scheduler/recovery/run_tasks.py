"""The tasks of runs on clusters whose workers are other processes.

Every worker process keeps its shard in place; Dask tasks, pinned to their worker and
chained, run a slice of its program each.  A slice ends wherever a message leaves; the
message is the task's result, and so reaches whatever needs it on any cluster.
`hetero_la.scheduler.recovery.attempts` submits them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_la.scheduler.cluster.devices import this_device, turn_on
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.recovery.checkpoint_store import Saved, write_files
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.runner import LogEntry, Payload, Runner
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.scheduler.run.trace import WorkerTrace
from hetero_la.tiles.arrays.device import Array, Device, Queue
from hetero_la.tiles.arrays.errors import RunAbortedError, StaleShardError
from hetero_la.tiles.storage.shard import ALL_ROWS

#: Shards that live in this worker process, by run and worker index.  They are kept here
#: and not as Dask results, which a worker may spill to disk while they are updated.
_shards: dict[tuple[str, int], Runner] = {}
#: Runs that have ended early: tasks that still arrive for them are refused.
_ended: deque[str] = deque(maxlen=1000)


class BlockStorage:
    """Storage of one worker's columns, which were sent to its process."""

    def __init__(self, blocks: dict[int, np.ndarray]) -> None:
        self.blocks = blocks
        self.results: dict[int, np.ndarray] = {}

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return no array: the blocks belong to Dask."""
        return None, False

    def load(self, device: Device, start: int, stop: int, target: Array) -> None:
        """Copy a block in, and drop it."""
        device.copy(target, self.blocks.pop(start), Queue.COPY)

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Keep a finished block until it is collected."""
        if start not in self.results:
            self.results[start] = np.empty(source.shape, source.dtype, order="F")
        device.copy(self.results[start][rows], source[rows], Queue.COPY)

    def flush(self, device: Device) -> None:
        """Do nothing: `Device.synchronize` completes the copies."""


class Lease:
    """A Dask result that keeps the shards of a run for as long as a client wants them.

    When Dask forgets it, because the run has ended or its client has gone, the shards go too.
    So they do when Dask moves it to another worker, because this one is being retired: a copy
    that has travelled is of no run.
    """

    def __init__(self, run: str | None = None) -> None:
        self._run = run

    def __del__(self) -> None:
        if self._run is not None:
            drop_shards(self._run)

    def __reduce__(self) -> Any:
        return Lease, ()


def hold_shards(run: str, worker: int) -> Lease:
    """Dask task: return a lease of the run's shards on this worker."""
    return Lease(run)


def open_shard(run: str, worker: int, job: Job, blocks: dict[int, np.ndarray]) -> None:
    """Dask task: set up a worker's state."""
    if run not in _ended:
        runner = job.runner(worker, this_device(), BlockStorage(dict(blocks)))
        _shards[run, worker] = runner
    if run in _ended:  # perhaps meanwhile
        _shards.pop((run, worker), None)
        raise RunAbortedError(f"run {run} has ended")


def run_slice(
    run: str, worker: int, start: int, stop: int, keys: Sequence[MessageKey],
    payloads: Sequence[Payload], before: Any,
) -> Payload | None:  # fmt: skip
    """Dask task: run a slice of a program, given the messages that it receives."""
    runner = _opened(run, worker)
    runner.inbox.update(zip(keys, payloads, strict=True))
    with turn_on(runner.device):
        try:
            runner.run(start, stop)
        finally:
            if run in _ended:  # meanwhile
                runner.come_to_rest()
    sent, runner.outbox = runner.outbox, None
    return sent


def save_shard(run: str, worker: int, step: int, folder: str | None, before: Any) -> Saved:
    """Dask task: return a worker's part of a checkpoint, or the names of its files."""
    runner = _opened(run, worker)
    if step not in runner.saved:
        raise StaleShardError(f"worker {worker} has given away its checkpoint of step {step}")
    saved = runner.saved.pop(step)
    return {**saved} if folder is None else write_files(saved, folder, f"{run}-{step}")


def close_shard(
    run: str, worker: int, before: Any
) -> tuple[dict[int, np.ndarray], dict[Name, np.ndarray], list[LogEntry], WorkerTrace | None]:
    """Dask task: return finished columns, per-step vectors, log and trace of a worker."""
    runner = _opened(run, worker)
    del _shards[run, worker]
    with turn_on(runner.device):
        values = runner.finish()
    assert isinstance(runner.storage, BlockStorage)
    trace = None if runner.recorder is None else runner.recorder.trace()
    return runner.storage.results, values, runner.log, trace


def _opened(run: str, worker: int) -> Runner:
    runner = _shards.get((run, worker))
    if runner is None:
        raise StaleShardError(f"the shard of worker {worker} was lost with its process")
    return runner


def drop_shards(run: str) -> None:
    """Drop the shards of a run that has failed in this process."""
    _ended.append(run)
    for key in list(_shards):
        if key[0] == run:
            runner = _shards.pop(key, None)
            if runner is not None and runner.position is not None:  # else a slice sees to that
                with turn_on(runner.device):
                    runner.come_to_rest()
