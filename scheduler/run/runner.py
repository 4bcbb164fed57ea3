"""Execution of one worker's program on its device."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from hetero_la.scheduler.exchange.port import Port
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    CopyRegion,
    Instruction,
    LoadColumn,
    ReadBack,
    ReceiveMessage,
    SaveRegion,
    SendMessage,
    StoreRows,
)
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.received import Received
from hetero_la.scheduler.run.step_memory import Name, StepMemory
from hetero_la.scheduler.run.trace import LogEntry, Recorder
from hetero_la.scheduler.run.watched import Part
from hetero_la.tiles.arrays.errors import RunAbortedError, StaleShardError
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue
from hetero_la.tiles.storage.shard import HomeStorage, Shard, Storage, Wanted, local_width


@dataclass
class Runner:
    """State of one worker in a run, which executes slices of its program.

    The state includes the place that the program has reached.  A slice that does not start
    there raises `StaleShardError`: updates are in place, so that repeating one, or one on
    half-updated data, would give wrong results without an error.

    Parameters
    ----------
    job : Job
        The run.
    worker : int
        The worker's index.
    device : Device
        Its device.
    storage : Storage
        Source and destination of columns.
    port : Port, optional
        To the other workers of the run, if there are any.
    run_name : str, optional
        Name of the attempt at the run, for those who watch it; the same for all its workers.
    """

    job: Job
    worker: int
    device: Device
    storage: Storage
    port: Port = field(default_factory=Port)
    run_name: str = ""
    saved: dict[int, dict[Name, np.ndarray]] = field(default_factory=dict)
    log: list[LogEntry] = field(default_factory=list)
    _position: int | None = 0

    def __post_init__(self) -> None:
        job, self.program = self.job, self.job.programs[self.worker]
        self.layout, self._kept = job.layout, job.kept.get(self.worker)
        self._values = StepMemory(self.program.values, self.device, job.dtype)
        self._received = Received(job, self.worker, self.device)
        self._events: dict[int, Event] = {}
        with self.device.activate():
            instructions = self.program.instructions
            self.recorder = Recorder(self.device, instructions) if job.traced else None
            columns = [c for c in self.program.columns if not self._is_kept(c)]
            width = self.program.capacity or local_width(self.layout, columns)
            array, self._loaded = None, False
            if not self.program.streamed:
                array, self._loaded = self.storage.home(self.device, width)
            self._in_place = array is not None
            if array is None:
                array = self.device.empty((self.layout.m, width), job.dtype)
            self.shard = Shard(array, self.layout, columns, self._kept, self.program.places)
            given = job.given_to(self.worker)
            self._given = {name: self._upload(value) for name, value in given.items()}
        self._part = Part(
            self.run_name or uuid.uuid4().hex, job, self.worker, self.device, self.log,
            self._events, {name: value.shape for name, value in given.items()},
        )  # fmt: skip

    def _upload(self, value: Array) -> Array:
        """Return a copy of a value on the device."""
        array = self.device.empty(value.shape, value.dtype)
        self.device.copy(array, value, Queue.COPY)
        self.device.synchronize()
        return array

    @property
    def position(self) -> int | None:
        """Place of the next instruction; None if one has failed, or is being issued."""
        return self._position

    def _is_kept(self, column: int) -> bool:
        return self._kept is not None and column < self.layout.nt

    def run(self, start: int, stop: int) -> None:
        """Issue instructions ``[start, stop)``."""
        if self._position != start:
            raise StaleShardError(
                f"worker {self.worker} is at instruction {self._position}, "
                f"not at {start}: its shard cannot be updated again"
            )
        self._position = None
        opened = time.perf_counter()
        with self._device_at_rest_on_error():
            if start == 0:
                self._part.begin()
            if start == 0 and not self._in_place and not self.program.streamed:
                self.storage.begin_loading(self.device, self._loads())
            # Of pageable memory, for one, the host copies.
            with self.device.on_wait(self.port.waiting):
                self.port.issue(self.program.instructions, range(start, stop), self)
            if self.recorder is not None:
                self.recorder.window(opened)
        self._position = stop

    def issue(self, place: int) -> None:
        """Issue an instruction, in any thread in which the device is current."""
        began = time.perf_counter()
        self._execute(place, self.program.instructions[place])
        self.log.append(LogEntry(place, began, time.perf_counter()))

    def may_wait(self, place: int) -> bool:
        """Return whether its storage may let an instruction wait for something."""
        instruction = self.program.instructions[place]
        if isinstance(instruction, LoadColumn):
            return not self._loaded
        return isinstance(instruction, CopyRegion) and not self._in_place

    @contextlib.contextmanager
    def _device_at_rest_on_error(self) -> Iterator[None]:
        """Activate the device; after an error in the block, wait for it and raise that error."""
        with self.device.activate():
            try:
                yield
            except BaseException as error:
                self.come_to_rest(error)
                raise

    def come_to_rest(self, error: BaseException | None = None) -> None:
        """Wait for all enqueued work, even if it fails, so that its memory may be freed."""
        self._part.end(error or RunAbortedError("the run was given up"))
        with contextlib.suppress(Exception), self.device.activate():
            self.device.synchronize()
        with contextlib.suppress(Exception):  # the run's own error is the one to be seen
            self.storage.abandon(self.device)

    def finish(self) -> dict[Name, np.ndarray]:
        """Wait for the device; return the results that were computed here, on the host."""
        with self._device_at_rest_on_error():
            self.storage.flush(self.device)
            self.device.synchronize()
            self.port.flush()
            self.port.check()
            values = self._values.to_host(self.program.results)
        self._part.end()
        return values

    def keep_record(self, outcome: Outcome) -> None:
        """Keep the log, and the function that returns the trace, once the run is over."""
        outcome.logs[self.worker] = self.log
        if self.recorder is not None:
            outcome.traces[self.worker] = self.recorder.trace

    def values(self, names: Collection[str]) -> dict[Name, Array]:
        """Return the per-step values of these names that were computed here, on the device."""
        return self._values.made(names)

    def _execute(self, place: int, instruction: Instruction) -> None:
        if self.recorder is not None:
            self.recorder.issue()
        for key, consumer in instruction.awaits:
            self.device.wait(instruction.queue, self.port.taken(key, consumer))
        for before in instruction.waits:
            self.device.wait(instruction.queue, self._events[before])
            self._let_overwrite(before, instruction)
        if instruction.awaits:
            self._begin(instruction.queue)
        match instruction:
            case CallKernel():
                self._call(instruction)
            case ReceiveMessage():
                self._receive(instruction)
            case SendMessage():
                self._send(instruction)
            case LoadColumn():
                self._load(instruction)
            case ReadBack():
                self._read_back(instruction)
            case StoreRows():
                self._store(instruction)
            case SaveRegion():
                self._save(instruction)
        ended = None if self.recorder is None else self.recorder.end(instruction.queue)
        if instruction.signals:
            queue = instruction.queue
            self._events[place] = self.device.record(queue) if ended is None else ended
        for message in instruction.takes:
            self.port.note_taken(message, instruction.queue)

    def _let_overwrite(self, before: int, instruction: Instruction) -> None:
        """Let an instruction wait for a store that another thread goes on with."""
        store = self.program.instructions[before]
        if isinstance(store, StoreRows) and self.program.streamed:
            start, _ = self.layout.columns(store.region.index)
            with self.port.waiting():
                self._home.let_overwrite(self.device, start, instruction.queue)

    def _begin(self, queue: Queue) -> None:
        """Record that the data of other workers for the current instruction is there."""
        if self.recorder is not None:
            self.recorder.begin(queue)

    def _loads(self) -> list[Wanted]:
        """Return the columns that the program loads, in order."""
        wanted = [load.region for load in self.program.select(LoadColumn)]
        return [
            Wanted(*self._place(region)) for region in wanted if not self._is_kept(region.index)
        ]

    def _load(self, load: LoadColumn) -> None:
        if not self._loaded and not self._is_kept(load.region.index):
            self._copy(self._reload if load.again else self.storage.load, load)

    def _reload(self, device: Device, start: int, stop: int, target: Array, rows: slice) -> None:
        self._home.reload(device, start, stop, target, rows, self.port.check)

    @property
    def _home(self) -> HomeStorage:
        return cast(HomeStorage, self.storage)

    def _read_back(self, read: ReadBack) -> None:
        _, column, first, last = read.region
        start, stop = self.layout.columns(column)
        rows = slice(self.layout.row(first), self.layout.row(last))
        buffer = self._received.read_back(read)
        with self.port.waiting():
            self._reload(self.device, start, stop, buffer, rows)

    def _store(self, store: StoreRows) -> None:
        if not self._in_place and not self._is_kept(store.region.index):
            if store.readers:
                start, _ = self.layout.columns(store.region.index)
                with self.port.waiting():
                    self._home.let_read(self.device, start, store.readers, self.port.check)
            self._copy(self.storage.store, store)

    def _copy(self, copy: Callable[..., None], instruction: CopyRegion) -> None:
        """Let the storage copy a region to the shard, or from there."""
        with self.port.waiting():
            copy(self.device, *self._place(instruction.region))

    def _place(self, region: Region) -> tuple[int, int, Array, slice]:
        """Return a region's columns, its view in the shard, and its rows."""
        _, column, first, last = region
        rows = slice(self.layout.row(first), self.layout.row(last))
        return *self.layout.columns(column), self.shard.view(first, last, column, column), rows

    def _save(self, save: SaveRegion) -> None:
        region = save.region
        self.device.synchronize()  # any queue may have written it
        copy = np.array(to_host(self._locate(region, region.index)), order="F")
        self.saved.setdefault(save.step, {})[region[:2]] = copy

    def _call(self, call: CallKernel) -> None:
        for first, last, regions in call.kernel_calls():
            arrays = [
                # The first task's own column is replaced by all columns merged into this call.
                self._received.in_buffer(call.buffers[region[:2]], region)
                if call.buffers and region[:2] in call.buffers
                else self._locate(region, last if region.index == first else region.index)
                for region in regions
            ]
            self.device.call(call.kind, call.queue, arrays, self.job.options)

    def _locate(self, region: Region, last: int) -> Array:
        """Return the view of `region`, in the shard up to tile column `last`."""
        name, index, start, stop = region
        if (name, index) in self._values:
            return self._values[name, index]
        if (name, index) in self._given:
            return self._given[name, index]
        received = self._received.find(region)
        if received is not None:
            return received
        return self.shard.view(start, stop, index, last)

    def _send(self, send: SendMessage) -> None:
        message = self.job.messages[send.message]
        arrays = [self._locate(part.region, part.region.index) for part in message.parts]
        self.port.offer(message, arrays, send.queue)

    def _receive(self, receive: ReceiveMessage) -> None:
        message, foreign = self.job.messages[receive.message], []
        with self.port.taking(message, receive) as incoming:
            self._begin(Queue.COPY)
            for place, part in enumerate(message.parts):
                _, index, start, stop = part.region
                if part.row is not None and index in self.shard:
                    incoming.copy(place, self.shard.view(start, stop, index, index))
                else:
                    foreign.append(place)
            self._received.take(message.parts, foreign, incoming, receive)
