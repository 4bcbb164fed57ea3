"""What the Dask tasks of a run do: fill a worker's shard, work on it, hand it out."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from hetero_la.scheduler.cluster.devices import current_worker, device_lock, device_of
from hetero_la.scheduler.exchange.between_processes import ProcessPort
from hetero_la.scheduler.exchange.columns import (
    ColumnSource,
    FedColumns,
    GivenColumns,
    send_columns,
)
from hetero_la.scheduler.exchange.communicators import Contact
from hetero_la.scheduler.exchange.group import RunGroup
from hetero_la.scheduler.exchange.input_exchange import (
    HeldChunk,
    HeldColumns,
    exchange_columns,
    held_by,
    hold,
)
from hetero_la.scheduler.exchange.port import Port
from hetero_la.scheduler.on_dask.group_tasks import ending_together, in_group, new_group
from hetero_la.scheduler.on_dask.held_shard import (
    HeldShard,
    forget_unwanted,
    let_old_work_end,
    shards_of,
)
from hetero_la.scheduler.on_dask.inputs import (
    Declared,
    InputBuffer,
    Inputs,
    Piece,
    TeamBuffer,
    new_array,
)
from hetero_la.scheduler.on_dask.threads import run_as_one_task, team_of
from hetero_la.scheduler.run.checkpoint_store import Saved, write_files
from hetero_la.scheduler.run.job import PackedJob
from hetero_la.scheduler.run.local_storage import (
    LocalStorage,
    TeamStorage,
    local_spans,
    whole_spans,
)
from hetero_la.scheduler.run.runner import Runner
from hetero_la.scheduler.run.step_memory import Name, StepVectors
from hetero_la.scheduler.run.trace import LogEntry, WorkerTrace
from hetero_la.tiles.arrays.errors import StaleShardError
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.arrays.transfer import (
    column_major_copy,
    current_gpu,
    device_index,
    is_device_array,
    on_device_index,
    to_current_gpu,
    to_device,
    to_host,
    wait_for_writes,
)
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Array, Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage, local_width


@dataclass
class Finished:
    """What a worker has made: its columns, and its per-step vectors; its log and trace."""

    storage: LocalStorage | TeamStorage
    values: dict[Name, np.ndarray]
    log: list[LogEntry] = field(default_factory=list)
    trace: WorkerTrace | None = None


# Dask places the tasks that use it by what it would cost to send it.
sizeof.register(Finished, lambda finished: finished.storage.nbytes)


def begin_run() -> str:
    """Dask task: a name for an attempt at a run, on which all of it depends.

    On a cluster, the scheduler gives those tasks another one, see `KeepPlacement`.
    """
    return uuid.uuid4().hex


def open_shard(
    run: str, attempt: str, packed: PackedJob, worker: int, on_gpu: bool = False,
    blocks: dict[int, np.ndarray] | None = None, fed: bool = False,
    pieces: Sequence[tuple[int, Piece]] = (),
) -> HeldShard:  # fmt: skip
    """Dask task: make room for a worker's shard, which `blocks` or other tasks fill.

    If it is `fed`, the client's process does; with `pieces`, chunks that workers of the run hold.
    It is on the GPU if what fills it is on one.
    """
    job = packed.job
    forget_unwanted()
    here = current_worker()
    share = (run, worker, here.address if here else None)
    let_old_work_end(share)
    with _opening:  # of two shards of a run that open at once, one sees the other
        device = _device(_place(on_gpu))
        if any(other.device is device for other in shards_of(attempt)):
            # This worker does a lost one's share as well.  The two wait for each other's messages,
            # and a device serves one thread at a time: so each has its own.
            device = _another(device)
        columns = job.programs[worker].columns
        array = new_array(job, local_width(job.layout, columns), device, on_gpu)
        together = len(job.programs) > 1 or fed
        group = new_group(attempt, worker, device, job.order) if together else None
        source: ColumnSource | None = None if blocks is None else GivenColumns(blocks)
        if fed and group is not None:
            source = FedColumns(group.inbox)
        storage = LocalStorage(array, local_spans(job.layout, columns), source)
        port = ProcessPort(group, device) if group else Port()
        runner = Runner(job, worker, device, storage, port, attempt)
        return HeldShard(device, attempt, share, (runner, InputBuffer(array, pieces=pieces)), group)


_opening = ProcessLock()


def _place(on_gpu: bool, arrays: Sequence[Array] = ()) -> int | None:
    """GPU on which a run keeps its columns: the worker's, or else the one that has `arrays`."""
    if not on_gpu:
        return None
    worker = current_worker()
    if worker is not None and device_of(worker).index >= 0:
        return device_of(worker).index
    return next((device_index(a) for a in arrays if is_device_array(a)), current_gpu())


def _device(place: int | None) -> Device:
    """Device that works on data of the GPU `place`, or of the host: the worker's if it can."""
    worker = current_worker()
    if worker is not None and (place is None or device_of(worker).index == place):
        return device_of(worker)
    return CpuDevice("caller") if place is None else GpuDevice(place, "caller")


def _another(device: Device) -> Device:
    """Return a device like this one, with queues of its own."""
    if isinstance(device, GpuDevice):
        return GpuDevice(device.index, device.name)
    return type(device)(device.name)  # type: ignore[call-arg]  # on the host, virtual GPUs too


def fill_shard(held: HeldShard, portion: int, inputs: Inputs) -> int:
    """Dask task: copy a portion of the input, which it returns, to where it belongs in a shard."""
    with held.at_work() as (_, buffer):
        buffer.fill(held.device, portion, inputs)
    return portion


def begin_shard(held: HeldShard, before: Any) -> Contact | None:
    """Dask task: tell how to reach a worker, once the portions in `before` have filled its shard.

    It is None for a worker that is alone.
    """
    with held.at_work() as (_, buffer):
        buffer.begin(before)
    return None if held.group is None else held.group.contact()


def hold_chunk(
    chunk: Array, declared: Declared, attempt: str, contacts: Sequence[Contact | None]
) -> HeldChunk:
    """Dask task: hold a chunk for the workers of a run, one of which is here, until it begins.

    It is checked here, and not once more where its columns go.  All shards are open when there are
    `contacts`.
    """
    declared.require(chunk)
    place = device_index(chunk)
    groups = _groups_of(attempt)
    if not groups:
        raise StaleShardError(
            "a chunk of the input came to a worker that takes no part in the run: Dask did not "
            "keep the tasks where the plan has put them; build it again for this cluster"
        )
    group = next((g for g in groups if g.device.index == place), groups[0])
    if group.device.index >= 0:
        with on_device_index(group.device.index):
            chunk = to_current_gpu(chunk)
    wait_for_writes(chunk)
    return hold(group, chunk)


def _groups_of(attempt: str) -> list[RunGroup]:
    """Return the groups of the shards of an attempt in this process."""
    return [s.group for s in shards_of(attempt) if s.group is not None and not s.empty]


def run_slice(
    held: HeldShard, start: int, stop: int, contacts: Sequence[Contact], before: Any,
    chunks: Sequence[HeldChunk] = (),
) -> None:  # fmt: skip
    """Dask task: run a slice of a program, beside those of the run's other workers.

    The first begins with the input that they hold, which are `chunks`.
    """
    if held.group is None or current_worker() is not None:
        _run_slice(held, start, stop, contacts, chunks)
        return
    # Without Dask's workers, there may be one thread for all tasks; all shards are in this process.
    with _without_workers:
        if not held.group.joined:
            together = shards_of(held.attempt)
            with ThreadPoolExecutor(len(together)) as pool:
                ends = [
                    pool.submit(_run_slice, each, start, each.length, contacts, chunks)
                    for each in together
                ]
            for end in ends:
                end.result()


def run_to_end(
    held: HeldShard, start: int, contacts: Sequence[Contact], before: Any,
    chunks: Sequence[HeldChunk] = (),
) -> Finished:  # fmt: skip
    """Dask task: run the last slice of a program, and hand out what the worker has made."""
    run_slice(held, start, held.length, contacts, before, chunks)
    return close_shard(held)


#: Of runs without Dask's workers, one goes on at a time.
_without_workers = ProcessLock()


def _run_slice(
    held: HeldShard, start: int, stop: int, contacts: Sequence[Contact],
    chunks: Sequence[HeldChunk],
) -> None:  # fmt: skip
    try:
        _work(held, start, stop, contacts, chunks)
    except BaseException as error:
        _clear_frames(error)
        if held.is_over:
            held.drop()
        raise


def _clear_frames(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold, and of those that led to it.

    Dask keeps them, and so a shard and all that the device has for it, until garbage is collected.
    """
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _work(
    held: HeldShard, start: int, stop: int, contacts: Sequence[Contact],
    chunks: Sequence[HeldChunk],
) -> None:  # fmt: skip
    with held.in_task(), in_group(held.group, contacts), held.at_work() as (runner, buffer):
        try:
            if chunks and held.group is not None:
                _exchange_input(held.group, held.attempt, buffer, chunks)
            runner.run(start, stop)
        finally:
            if held.empty:  # the run has been given up meanwhile
                runner.come_to_rest()


def _exchange_input(
    group: RunGroup, attempt: str, buffer: InputBuffer, chunks: Sequence[HeldChunk]
) -> None:
    """Fill a shard with what the workers of the run hold, and send them what this one does."""
    here = {each.worker: each for each in _groups_of(attempt)}
    near: list[tuple[Piece, Array]] = []
    far: dict[HeldColumns, Piece] = {}
    for number, piece in buffer.pieces:
        chunk = chunks[number]
        if chunk.worker in here:
            near.append((piece, held_by(here[chunk.worker], chunk)))
        else:
            far[HeldColumns(chunk, piece.spans)] = piece
    into = {
        held: piece.targets(buffer.array)
        for held, piece in far.items()
        if held.chunk.worker in group.channels and held.chunk.gapless
        and (held.chunk.rows, held.chunk.dtype) == (len(buffer.array), buffer.array.dtype)
    }  # fmt: skip
    with group.device.activate():
        buffer.copy(group.device, near)
        near.clear()
        exchange_columns(
            group, list(far), into,
            lambda some: buffer.copy(
                group.device, [(far[held].side_by_side(), array) for held, array in some]
            ),
        )  # fmt: skip


def save_shard(held: HeldShard, step: int, folder: str | None, before: Any) -> Saved:
    """Dask task: a worker's part of a checkpoint, or the files to which it was written."""
    with held.at_work() as (runner, _):
        saved = runner.saved.pop(step, None)
    if saved is None:
        worker = runner.worker
        raise StaleShardError(f"worker {worker} has given away its checkpoint of step {step}")
    return {**saved} if folder is None else write_files(saved, folder, f"{held.attempt}-{step}")


def close_shard(held: HeldShard) -> Finished:
    """Return what a worker has made that has come to its program's end, and give up its shard."""
    try:
        with ending_together(held.group), held.at_work() as (runner, _):
            finished = _finished(runner)
            held.let_go()
            return finished
    except BaseException:
        held.drop()  # or its turn would end with its memory
        raise


def hand_over(finished: Finished, link: str, topic: str, most: int | None) -> Finished:
    """Dask task: what a worker has made, without the columns if the client is on this host.

    Its process has them then by another way.
    """
    assert isinstance(finished.storage, LocalStorage)
    columns = (part._replace(block=to_host(part.block)) for part in finished.storage.columns())
    if send_columns(link, topic, columns, most):
        return replace(finished, storage=LocalStorage(np.empty((0, 0)), {}))
    return finished


def open_whole(packed: PackedJob, on_gpu: bool, inputs: Inputs) -> InputBuffer:
    """Dask task: memory for a run that is one task, and in it a portion of the input."""
    job = packed.job
    threads, place = len(job.programs), _place(on_gpu, [array for _, array in inputs])
    device = CpuDevice("team") if threads > 1 else _device(place)
    array = new_array(job, job.layout.width, device, on_gpu)
    return fill_whole(InputBuffer(array, threads), 0, inputs)


def fill_whole(buffer: InputBuffer, portion: int, inputs: Inputs) -> InputBuffer:
    """Dask task: put another portion of the input there.

    It hands the memory on to the next, so that Dask may take it elsewhere in between.
    """
    buffer.fill(_device(device_index(buffer.array)), portion, inputs)
    return buffer


def run_whole(packed: PackedJob, buffer: InputBuffer, portions: int) -> Finished:
    """Dask task: a run of one worker, or of several threads of a process, wherever it is."""
    job, array = packed.job, buffer.begin(range(portions))
    storage = LocalStorage(array, whole_spans(job.layout))
    if len(job.programs) > 1:
        return Finished(storage, run_as_one_task(job, ArrayStorage(array, array), team_of(job)))
    device = _device(device_index(array))
    with device_lock(device):
        runner = Runner(job, 0, device, storage)
        runner.run(0, len(job.programs[0].instructions))
        return _finished(runner)


def run_at_once(packed: PackedJob, on_gpu: bool, inputs: Inputs) -> Finished:
    """Dask task: a run of little input, which has nothing to gain from tasks that bring it."""
    return run_whole(packed, open_whole(packed, on_gpu, inputs), 1)


def open_team(packed: PackedJob, on_gpu: bool) -> TeamBuffer:
    """Dask task: memory for the columns of each worker of this process, on the worker's device."""
    job, parts = packed.job, []
    for program, device in zip(job.programs, team_of(job, on_gpu), strict=True):
        width = local_width(job.layout, program.columns)
        array = new_array(job, width, device, device.index >= 0)
        parts.append((device, LocalStorage(array, local_spans(job.layout, program.columns))))
    return TeamBuffer(parts)


def fill_team(buffer: TeamBuffer, portion: int, inputs: Inputs) -> int:
    """Dask task: put a portion of the input there, and return its number."""
    buffer.fill(portion, inputs)
    return portion


def run_team(packed: PackedJob, buffer: TeamBuffer, portions: Sequence[int]) -> Finished:
    """Dask task: a run of workers of this process, whose columns stay on their devices."""
    storage = buffer.begin(portions)
    devices = [device for device, _ in buffer.parts]
    return Finished(storage, run_as_one_task(packed.job, storage, devices))


def _finished(runner: Runner) -> Finished:
    assert isinstance(runner.storage, LocalStorage)
    values = runner.finish()
    trace = None if runner.recorder is None else runner.recorder.trace()
    storage = runner.storage.without_source(runner.job.absent)
    return Finished(storage, values, runner.log, trace)


def end_of(finished: Finished) -> None:
    """Dask task: nothing, once a worker has finished."""


def values_of(
    finished: Finished, layout: TileLayout, extent: bool, after: Any = None
) -> StepVectors:
    """Dask task: the small part of what a worker has made; on request, its diagonal's extent."""
    diagonal = finished.storage.diagonal_extent(layout) if extent else {}
    return StepVectors(finished.values | diagonal)


def block_of(
    finished: Finished, start: int, last: int, copy: bool, on_gpu: bool, verdict: Any
) -> Array:
    """Dask task: adjacent finished tile columns, once the run is known to have gone well.

    A copy lets go of the rest of the shard.
    """
    block = finished.storage.block(start, last)
    block = column_major_copy(block) if copy else block
    return to_device(block) if on_gpu else to_host(block)
