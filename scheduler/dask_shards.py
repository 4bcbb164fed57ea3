"""What the tasks of a lazy Dask graph do: fill a worker's shard, work on it, hand it out.

The shard is the result of the task that has made it, and all later tasks of that worker
refer to it: Dask frees it with the last of them, however the computation ends.
"""

from __future__ import annotations

import math
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from distributed import Worker, get_worker

from hetero_la.scheduler.dask_plugins import device_of
from hetero_la.scheduler.job import Job
from hetero_la.scheduler.local_storage import LocalStorage, Span, local_spans
from hetero_la.scheduler.messages import MessageKey
from hetero_la.scheduler.runner import Payload, Runner
from hetero_la.scheduler.step_memory import Name
from hetero_la.tiles.errors import InsufficientMemoryError, RunAbortedError, StaleShardError
from hetero_la.tiles.kernels.cpu import CpuDevice
from hetero_la.tiles.kernels.spec import Array, Device
from hetero_la.tiles.shard import local_width
from hetero_la.tiles.transfer import (
    array_module,
    current_gpu,
    device_index,
    is_device_array,
    settle,
    to_device,
    to_host,
)


class Piece(NamedTuple):
    """Where the columns of one array go: rows from `row` on, spans of it to spans of a shard."""

    row: int
    moves: tuple[tuple[Span, Span], ...]


class HeldShard:
    """A worker's state of a run, which never leaves its process.

    A copy that has travelled is empty.  Only where Dask has written the result to disk for
    want of memory, and reads it again in the same process, is the shard still there.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner: Runner | None = runner
        self.filled: set[int] = set()
        self.name = uuid.uuid4().hex
        self._worker, self._key = None, None
        if (worker := current_worker()) is not None:
            self._worker, self._key = weakref.ref(worker), worker.get_current_task()

    def here(self) -> Runner:
        """The state, for the worker that holds it.

        Raises
        ------
        StaleShardError
            For any other.
        """
        worker, home = current_worker(), self._worker() if self._worker else None
        if self.runner is None or worker is not home:
            raise StaleShardError(
                "a slice of a factorization ran on a worker that does not hold its shard, "
                f"{worker.address if worker else 'no worker of a cluster'}: Dask did not keep "
                "the tasks where the plan has put them"
            )
        return self.runner

    @property
    def wanted(self) -> bool:
        """Whether Dask still knows of it."""
        worker = self._worker() if self._worker else None
        return worker is not None and self._key in worker.data

    def __reduce__(self) -> tuple[Any, ...]:
        if self.runner is not None:
            _written[self.name] = self
        return _read, (self.name,)


#: Shards whose result was written, and may be read again in this process.
_written: dict[str, HeldShard] = {}


def _read(name: str) -> HeldShard:
    if name in _written:
        return _written.pop(name)
    elsewhere = HeldShard.__new__(HeldShard)
    elsewhere.runner = elsewhere._worker = elsewhere._key = None
    return elsewhere


def _forget_unwanted() -> None:
    for name, held in list(_written.items()):
        if not held.wanted:
            _written.pop(name, None)


def current_worker() -> Worker | None:
    """The Dask worker whose task runs in this thread; None in Dask's local schedulers."""
    try:
        return get_worker()
    except ValueError:
        return None


@dataclass
class Finished:
    """What a worker has made: its columns, and its per-step vectors."""

    storage: LocalStorage
    values: dict[Name, np.ndarray]


# Dask places the tasks that use it by what it would cost to send it.
sizeof.register(Finished, lambda finished: finished.storage.array.nbytes)


def cut(chunk: Array, spans: Sequence[Span]) -> Array:
    """Dask task: the columns of a chunk that go to one worker."""
    return array_module(chunk).concatenate([chunk[:, slice(*span)] for span in spans], axis=1)


def open_shard(job: Job, worker: int, on_gpu: bool) -> HeldShard:
    """Dask task: make room for a worker's shard, on the GPU if what fills it is on one."""
    _forget_unwanted()
    address, here = job.workers[worker].address, current_worker()
    if here is not None and address not in ("", here.address):
        raise RunAbortedError(
            f"this graph was made for worker {job.workers[worker].name} ({address}), which is "
            f"not in the cluster, or not in this one: it ran on {here.address}; build it again"
        )
    return _opened(job, worker, _device(here, current_gpu() if on_gpu else None), on_gpu)


def _opened(job: Job, worker: int, device: Device, on_gpu: bool) -> HeldShard:
    shape = (job.layout.m, local_width(job.layout, job.programs[worker].columns))
    needed, free = math.prod(shape) * np.dtype(job.dtype).itemsize, device.free_bytes()
    if needed > free:
        raise InsufficientMemoryError(
            f"{job.name} of a {job.layout.m} x {job.layout.n} matrix needs {needed:,} bytes on "
            f"worker {job.workers[worker].name}, which has {free:,}"
        )
    with device.activate():
        array = device.empty(shape, job.dtype) if on_gpu else np.empty(shape, job.dtype, order="F")
    storage = LocalStorage(array, local_spans(job, worker))
    return HeldShard(job.runner(worker, device, storage))


def _device(worker: Worker | None, place: int | None) -> Device:
    """The worker's; where that is none, or none with the data, the host or the GPU `place`."""
    if worker is not None and (place is None or device_of(worker).index >= 0):
        return device_of(worker)
    if place is None:
        return CpuDevice("caller")
    from hetero_la.tiles.kernels.gpu import GpuDevice

    return GpuDevice(place, "caller")


def fill_shard(
    held: HeldShard, portion: int, pieces: Sequence[Piece], arrays: Sequence[Array]
) -> int:
    """Dask task: copy a portion of the input, which it returns, to where it belongs in a shard."""
    runner = held.here()
    if runner.position != 0:
        raise StaleShardError("a shard cannot be filled again: work on it has begun")
    storage = runner.storage
    assert isinstance(storage, LocalStorage)
    with runner.device.activate():
        for piece, source in zip(pieces, arrays, strict=True):
            given = source if is_device_array(storage.array) else to_host(source)
            rows = slice(piece.row, piece.row + given.shape[0])
            for origin, target in piece.moves:
                storage.array[rows, slice(*target)] = given[:, slice(*origin)]
        settle(storage.array)
    held.filled.add(portion)
    return portion


def run_slice(
    held: HeldShard, start: int, stop: int, keys: Sequence[MessageKey],
    payloads: Sequence[Payload], before: Any,
) -> Payload | None:  # fmt: skip
    """Dask task: run a slice of a program, given the messages that it receives.

    The first comes after all that has filled the shard: the portions in `before`.
    """
    runner = held.here()
    if start == 0 and held.filled != set(before):
        # Dask may take the end of a cancelled task for that of the same task submitted anew.
        raise StaleShardError(
            f"portions {sorted(held.filled)} of the input have filled a shard that was to hold "
            f"{sorted(before)}: compute again"
        )
    runner.inbox.update(zip(keys, payloads, strict=True))
    runner.run(start, stop)
    sent, runner.outbox = runner.outbox, None
    return sent


def close_shard(held: HeldShard, before: Any) -> Finished:
    """Dask task: what a worker has made, once it has come to its program's end."""
    runner = held.here()
    values = runner.finish()
    held.runner = None
    _written.pop(held.name, None)
    assert isinstance(runner.storage, LocalStorage)
    return Finished(runner.storage, values)


def run_whole(job: Job, on_gpu: bool, pieces: Sequence[Piece], arrays: Sequence[Array]) -> Finished:
    """Dask task: a run of one worker, wherever it is."""
    place = device_index(arrays[0]) if arrays else None
    held = _opened(job, 0, _device(current_worker(), place), on_gpu and place is not None)
    portion = fill_shard(held, 0, pieces, arrays)
    run_slice(held, 0, len(job.programs[0].instructions), (), (), [portion])
    return close_shard(held, None)


def values_of(finished: Finished, after: Any = None) -> dict[Name, np.ndarray]:
    """Dask task: the small part of what a worker has made."""
    return finished.values


def block_of(finished: Finished, start: int, copy: bool, on_gpu: bool, verdict: Any) -> Array:
    """Dask task: a finished tile column, once the run is known to have gone well.

    A copy lets go of the rest of the shard.
    """
    block = finished.storage.block(start)
    block = block.copy(order="F") if copy else block
    return to_device(block) if on_gpu else to_host(block)
