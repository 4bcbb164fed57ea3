"""Tasks of a lazy Dask graph: open a worker's shard, fill it, run slices, return results.

The shard is the result of the task that has made it, and all later tasks of that worker
refer to it (`HeldShard`): Dask frees it with the last of them, however the computation ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from distributed import Worker

from hetero_la.scheduler.cluster.devices import device_of
from hetero_la.scheduler.on_dask.held_shard import (
    HeldShard,
    current_worker,
    forget_unwanted,
    let_old_work_end,
)
from hetero_la.scheduler.on_dask.inputs import Piece, Room, fill, new_array
from hetero_la.scheduler.on_dask.team import Team
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.local_storage import LocalStorage, local_spans
from hetero_la.scheduler.run.runner import Payload, Runner
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.arrays.device import Array, Device
from hetero_la.tiles.arrays.errors import StaleShardError
from hetero_la.tiles.arrays.transfer import (
    column_major_copy,
    current_gpu,
    device_index,
    is_device_array,
    to_device,
    to_host,
)
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.storage.shard import local_width


class Sent(NamedTuple):
    """A message, and the attempt at a run to which it belongs."""

    attempt: str
    payload: Payload


@dataclass
class Finished:
    """Results of a worker: columns, per-step vectors, and extent of the diagonal."""

    storage: LocalStorage
    values: dict[Name, np.ndarray]


# Dask places the tasks that use it by the cost of sending it.
sizeof.register(Finished, lambda finished: finished.storage.array.nbytes)


def begin_run() -> str:
    """Dask task: return a name for an attempt at a run, on which all its tasks depend."""
    return uuid.uuid4().hex


def open_shard(
    run: str, attempt: str, job: Job, worker: int, on_gpu: bool, together: bool
) -> HeldShard:
    """Dask task: allocate a worker's shard, on the GPU if its input is on one.

    Workers that do a run `together` have one shard, in the matrix's own order.
    """
    forget_unwanted()
    here = current_worker()
    share = (run, worker, here.address if here else None)
    let_old_work_end(share)
    if together:
        runner: Runner | Team = _team(job)
    else:
        runner = _opened(job, worker, _device(here, _place(here, on_gpu)), on_gpu)
    return HeldShard(runner, attempt, share)


def _team(job: Job) -> Team:
    return Team(job, new_array(job, job.layout.width, CpuDevice("team"), False))


def _opened(job: Job, worker: int, device: Device, on_gpu: bool) -> Runner:
    array = new_array(job, local_width(job.layout, job.programs[worker].columns), device, on_gpu)
    return job.runner(worker, device, LocalStorage(array, local_spans(job, worker)))


def _place(worker: Worker | None, on_gpu: bool, arrays: Sequence[Array] = ()) -> int | None:
    """Return the GPU of a run's columns: the worker's, or else the one that holds `arrays`."""
    if not on_gpu:
        return None
    if worker is not None and device_of(worker).index >= 0:
        return device_of(worker).index
    return next((device_index(a) for a in arrays if is_device_array(a)), current_gpu())


def _device(worker: Worker | None, place: int | None) -> Device:
    """Return a device for data on the GPU `place`, or on the host: the worker's if it can."""
    if worker is not None and (place is None or device_of(worker).index == place):
        return device_of(worker)
    if place is None:
        return CpuDevice("caller")
    from hetero_la.tiles.kernels.gpu.device import GpuDevice

    return GpuDevice(place, "caller")


def fill_shard(
    held: HeldShard, portion: int, pieces: Sequence[Piece], arrays: Sequence[Array]
) -> int:
    """Dask task: copy a portion of the input to its place in a shard; return its number."""
    with held.at_work() as runner:
        if runner.position != 0:
            raise StaleShardError("a shard cannot be filled again: work on it has begun")
        storage = runner.storage
        assert isinstance(storage, LocalStorage)
        threads = len(runner.job.workers) if isinstance(runner, Team) else 1
        fill(storage.array, runner.device, pieces, arrays, threads)
        held.filled.add(portion)
    return portion


def run_slice(
    held: HeldShard, start: int, stop: int, keys: Sequence[MessageKey],
    messages: Sequence[Sent], before: Any,
) -> Sent | None:  # fmt: skip
    """Dask task: run a slice of a program, given the messages that it receives.

    The first comes after all that has filled the shard: the portions in `before`.
    """
    with held.at_work() as runner:
        if any(message.attempt != held.attempt for message in messages):
            raise StaleShardError("a message of an earlier attempt has come: compute again")
        if start == 0 and held.filled != set(before):
            # Dask may take the end of a cancelled task for that of the same task submitted anew.
            raise StaleShardError(
                f"portions {sorted(held.filled)} of the input have filled a shard that was to "
                f"hold {sorted(before)}: compute again"
            )
        runner.inbox.update(zip(keys, (message.payload for message in messages), strict=True))
        runner.run(start, stop)
        sent, runner.outbox = runner.outbox, None
        return None if sent is None else Sent(held.attempt, sent)


def close_shard(held: HeldShard, before: Any) -> Finished:
    """Dask task: return a worker's results, after its program's end."""
    with held.at_work() as runner:
        finished = _finished(runner)
        held.let_go()
        return finished


def open_whole(job: Job, on_gpu: bool, pieces: Sequence[Piece], arrays: Sequence[Array]) -> Room:
    """Dask task: allocate memory for a run of one task, and copy a portion of the input to it."""
    worker, team = current_worker(), len(job.programs) > 1
    place = _place(worker, on_gpu, arrays)
    device = CpuDevice("team") if team else _device(worker, place)
    array = new_array(job, job.layout.width, device, on_gpu)
    return fill_whole(Room(array, len(job.programs)), pieces, arrays)


def fill_whole(room: Room, pieces: Sequence[Piece], arrays: Sequence[Array]) -> Room:
    """Dask task: copy another portion of the input to that memory."""
    device = _device(current_worker(), device_index(room.array))
    fill(room.array, device, pieces, arrays, room.threads)
    return room


def run_whole(job: Job, room: Room) -> Finished:
    """Dask task: run a whole job of one worker, or of several threads of a process."""
    array = room.begin()
    if len(job.programs) > 1:
        runner: Runner | Team = Team(job, array)
    else:
        device = _device(current_worker(), device_index(array))
        runner = job.runner(0, device, LocalStorage(array, local_spans(job, 0)))
    runner.run(0, len(job.programs[0].instructions))
    return _finished(runner)


def run_at_once(
    job: Job, on_gpu: bool, pieces: Sequence[Piece], arrays: Sequence[Array]
) -> Finished:
    """Dask task: run a whole job of so little input that more tasks would not pay."""
    return run_whole(job, open_whole(job, on_gpu, pieces, arrays))


def _finished(runner: Runner | Team) -> Finished:
    values, storage = runner.finish(), runner.storage
    assert isinstance(storage, LocalStorage)
    with runner.device.activate():
        return Finished(storage, values | storage.diagonal_extent(runner.layout))


def values_of(finished: Finished, after: Any = None) -> dict[Name, np.ndarray]:
    """Dask task: return the per-step vectors of a worker."""
    return finished.values


def block_of(
    finished: Finished, start: int, last: int, copy: bool, on_gpu: bool, verdict: Any
) -> Array:
    """Dask task: return adjacent finished tile columns, once the run has succeeded.

    With `copy`, the rest of the shard can be freed.
    """
    block = finished.storage.block(start, last)
    block = column_major_copy(block) if copy else block
    return to_device(block) if on_gpu else to_host(block)
