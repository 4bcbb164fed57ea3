"""Event simulation of host threads, queues and shared multiprocessors.

Each worker's instructions are issued in program order, to three in-order queues.  A CPU works in
its own host thread.  For all GPUs of a process one thread enqueues, the most urgent instruction
first of those whose events have been recorded by other workers.  (It stops after a panel by
CholeskyQR2, too, which is not simulated.)

The PANEL and UPDATE queues of a GPU share its multiprocessors.  The rule, as measured
on an H200 (`DeviceModel.overlap`): the factorization or inversion of a panel beside an update
waits for multiprocessors at each of its many small kernels, and takes two to four times as long;
the update loses 10 to 20 % of its speed.  Any other kernel of the panel queue could fill the GPU
and has priority: it runs as if alone, and an update beside it stops.  So a look-ahead update
delays the trailing update by its own time.  Copies occupy links and no multiprocessors; transfers
contend in their receiver's queue, and between processes those of one message for the sender's link.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.device import Overlap
from hetero_la.scheduler.machine.model import MachineModel, Source
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    CopyRegion,
    LoadColumn,
    Program,
    ReadBack,
    ReceiveMessage,
    SendMessage,
    StoreRows,
)
from hetero_la.scheduler.program.messages import Message, Traffic
from hetero_la.scheduler.program.own_columns import OwnColumns

_ALONE = Overlap(1.0, 0.0)  # of an update without a panel
_BEGIN, _END = -2, -1  # event codes; others count the predictions of a kernel's end


class SimulationState:
    """State of a simulation; instructions of all programs are numbered consecutively."""

    def __init__(self, programs: Sequence[Program], model: MachineModel) -> None:
        self.programs, self.model = programs, model
        counts = [len(program.instructions) for program in programs]
        self.first = [0, *accumulate(counts)]
        self.all = [i for program in programs for i in program.instructions]
        self.worker = [w for w, count in enumerate(counts) for _ in range(count)]
        self.blocking = [device.kind == "cpu" for device in model.devices]
        total = len(self.all)
        # The last entry stays NaN: messages that no program sends or takes refer to it.
        self.issued = [math.nan] * (total + 1)
        self.start, self.stop = [math.nan] * total, [math.nan] * total
        self.seconds, self.host = [0.0] * total, [0.0] * total
        self.shared = [False] * total  # whether it needs a GPU's multiprocessors
        self.overlap = [_ALONE] * total  # its effect on an update, and the update's on it
        self.expected = [1] * total  # number of ends, and its own issue, before it can start
        self.ready = [0.0] * total  # time of the latest of these so far
        self.after: list[list[int]] = [[] for _ in range(total + 1)]
        self.needs: dict[int, list[int]] = {}  # instructions elsewhere to be issued before
        self.held: dict[int, set[int]] = {}  # instruction -> workers that wait for its issue
        self.position = self.first[:-1]
        #: Host threads: the workers of each, the thread of each worker, and the threads' clocks.
        self.teams = model.host_threads()
        self.thread = {w: thread for thread, team in enumerate(self.teams) for w in team}
        self.clock = [0.0] * len(self.teams)
        self.dask_delays: dict[int, float] = {}  # Dask's delay of a worker before an issue
        self.opened = [0.0] * len(programs)  # when Dask has begun each worker's latest task
        # Of the kernels that run on the PANEL queue (2 w) and the UPDATE queue (2 w + 1) of GPU w:
        # work left at time `since`, speed, and number of the latest prediction of the end.
        slots = 2 * len(programs)
        self.running, self.left, self.version = [-1] * slots, [0.0] * slots, [0] * slots
        self.speed, self.since = [0.0] * slots, [0.0] * len(programs)
        self.events: list[tuple[float, int, int]] = []
        self.last_load: dict[int, int] = {}  # of workers whose stores to the host wait for it
        self.bytes_sent = np.zeros((len(programs), len(programs)), np.int64)
        self.bytes_host = np.zeros(len(programs), np.int64)

    def set_costs(
        self, traffic: Traffic, graph: TaskGraph, dtype: np.dtype, loads: bool, source: Source,
        absent: int,
    ) -> None:  # fmt: skip
        """Set the time of each instruction on its queue and in its host thread.

        `loads` says whether GPUs load and store their columns; CPUs always do.  The leading columns
        that are `absent` are not stored.
        """
        layout, shape_of = graph.layout, functools.cache(graph.shape)
        receivers = Counter(
            (i.message, self.model.link(i.message.source, program.worker))
            for program in self.programs
            for i in program.select(ReceiveMessage)
        )
        for w, program in enumerate(self.programs):
            device, own = self.model.devices[w], OwnColumns(program.columns, layout)
            staged = device.kind == "gpu" and loads and source != "pinned"
            beside = _untouched(graph) if staged and source != "in place" else {}
            for index, i in enumerate(program.instructions, self.first[w]):
                match i:
                    case CallKernel():
                        for shapes in i.shapes(graph, own.width(i.first, i.last), shape_of):
                            self.seconds[index] += device.kernel_seconds(i.kind, shapes, dtype)
                            self.host[index] += device.host_seconds(i.kind, shapes)
                        self.shared[index] = device.kind == "gpu"
                        self.overlap[index] = device.overlap(i.kind, layout.inner_size(i.first))
                    case ReceiveMessage() if i.message in traffic.messages:
                        message = traffic.messages[i.message]
                        at_once = receivers[i.message, self.model.link(i.message.source, w)]
                        self.set_receive_costs(index, message, i.private, at_once, dtype)
                    case StoreRows() if i.region.index < absent:
                        pass
                    case LoadColumn() | StoreRows() | ReadBack() if loads or device.kind == "cpu":
                        rest = 0
                        if isinstance(i, StoreRows):
                            rest = beside.pop(i.region.index, 0) * dtype.itemsize
                        elif staged and not program.streamed:
                            self.last_load[w] = index
                        self.set_copy_costs(index, i, graph, dtype, source, rest)

    def set_copy_costs(
        self, index: int, copy: CopyRegion, graph: TaskGraph, dtype: np.dtype, source: Source,
        rest: int,
    ) -> None:  # fmt: skip
        """Set the times of a copy between a worker and the host, which copies `rest` bytes more."""
        w, region = self.worker[index], copy.region
        device, streamed = self.model.devices[w], self.programs[w].streamed
        if device.by_reference and not streamed:  # the rest of the column is copied as well
            region = region._replace(start=0, stop=graph.layout.mt)
        size = math.prod(graph.shape(region)) * dtype.itemsize
        if source == "row-major" and (isinstance(copy, ReadBack) or _is_again(copy)):
            source = "column-major"  # as results are
        self.seconds[index] = self.model.host_seconds(
            size + rest, w, store=isinstance(copy, StoreRows), source=source, streamed=streamed
        )
        self.host[index] = device.launch_seconds
        self.bytes_host[w] += size if self.seconds[index] else 0

    def set_receive_costs(
        self, index: int, message: Message, private: bool, receivers: int, dtype: np.dtype
    ) -> None:
        """Set the times of a transfer, to one of several receivers by the same link."""
        w, source = self.worker[index], message.key.source
        columns = set(self.programs[w].columns)
        size = sum(
            math.prod(part.shape) * np.dtype(part.dtype or dtype).itemsize for part in message.parts
        )
        home = any(p.row is not None and p.region.index in columns for p in message.parts)
        self.seconds[index] = self.model.transfer_seconds(
            size, source, w, private=home or private, receivers=receivers
        )
        self.host[index] = self.model.devices[w].launch_seconds
        self.bytes_sent[source, w] += size

    def connect(self) -> None:
        """Derive which instructions wait for which."""
        never = len(self.all)
        sends = {i.message: index for index, i in enumerate(self.all) if isinstance(i, SendMessage)}
        takes = {
            (key, self.worker[index]): index for index, i in enumerate(self.all) for key in i.takes
        }
        stores: dict[int, int] = {}  # column -> its first store
        for index, i in enumerate(self.all):
            if isinstance(i, StoreRows):
                stores.setdefault(i.region.index, index)
        for w, program in enumerate(self.programs):
            latest: dict[int, int] = {}
            for index, i in enumerate(program.instructions, self.first[w]):
                before = [takes.get(pair, never) for pair in i.awaits]
                if isinstance(i, ReceiveMessage):
                    before.append(sends.get(i.message, never))
                if isinstance(i, ReadBack) and i.region.index not in program.places:
                    before.append(stores[i.region.index])
                if before:
                    self.needs[index] = before
                if not self.blocking[w]:
                    before = before + [self.first[w] + place for place in i.waits]
                    if isinstance(i, StoreRows) and w in self.last_load:
                        before.append(self.last_load[w])
                    if i.queue in latest:
                        before.append(latest[i.queue])
                    latest[i.queue] = index
                for other in before:
                    self.after[other].append(index)
                self.expected[index] += len(before)

    def add_dask_delays(self, windows: Sequence[Sequence[int]], start: float, hop: float) -> None:
        """Add Dask's delays: `start` before a worker's first task, `hop` before each other one.

        `windows` holds, for each worker, the places in its program at which a Dask task begins.
        """
        for first, places in zip(self.first, windows, strict=False):
            for task, place in enumerate(places):
                before = self.dask_delays.get(first + place, 0.0)
                self.dask_delays[first + place] = before + (hop if task else start)

    def run(self) -> None:
        """Process events in order of time until none is left."""
        self.issue(list(range(len(self.programs))))
        while self.events:
            now, index, code = heapq.heappop(self.events)
            if code == _BEGIN:
                self.begin_shared(index, now)
            elif code == _END or code == self.version[self.slot(index)]:
                self.end(index, now)

    def slot(self, index: int) -> int:
        return 2 * self.worker[index] + self.all[index].queue

    def issue(self, hosts: list[int]) -> None:
        """Advance host threads until they end, compute, or wait for another one."""
        while hosts:
            thread = self.thread[hosts.pop()]
            while (w := self.next_worker(thread)) is not None:
                index = self.position[w]
                now = max(self.clock[thread], self.opened[w], self.needed(index))
                now += self.model.devices[w].issue_seconds
                self.position[w] += 1
                if self.blocking[w]:
                    self.end_dependence(index, now)  # `end` lets the thread go on
                    break
                self.end_dependence(
                    index, now + min(self.host[index], self.model.devices[w].launch_seconds)
                )
                self.clock[thread] = self.issued[index] = now + self.host[index]
                hosts += self.held.pop(index, ())

    def next_worker(self, thread: int) -> int | None:
        """Return the worker whose instruction a host thread issues next, if there is one.

        Those that wait for another thread are noted, to go on when it has issued what they need.
        """
        found, best = None, (math.inf, 0.0)
        for w in self.teams[thread]:
            index = self.position[w]
            if index == self.first[w + 1]:
                continue
            if delay := self.dask_delays.pop(index, 0.0):
                self.opened[w] = self.clock[thread] + delay
            needs = self.needs.get(index, ())
            missing = next((need for need in needs if math.isnan(self.issued[need])), None)
            if missing is not None:
                self.held.setdefault(missing, set()).add(w)
                continue
            ready = max(self.clock[thread], self.opened[w], self.needed(index))
            if (rank := (ready, self.all[index].urgency)) < best:
                found, best = w, rank
        return found

    def needed(self, index: int) -> float:
        """Return when everything that an instruction needs has been issued."""
        return max((self.issued[need] for need in self.needs.get(index, ())), default=0.0)

    def end_dependence(self, index: int, now: float) -> None:
        """Count one of the ends for which an instruction waits; start it after the last."""
        self.ready[index] = now = max(now, self.ready[index])
        self.expected[index] -= 1
        if self.expected[index]:
            return
        if self.shared[index]:
            heapq.heappush(self.events, (now, index, _BEGIN))
        else:
            self.start[index] = now
            heapq.heappush(self.events, (now + self.seconds[index], index, _END))

    def begin_shared(self, index: int, now: float) -> None:
        """Start a kernel on a GPU whose multiprocessors it shares."""
        slot = self.slot(index)
        self.start[index] = now
        # A panel is many launches, and ends no earlier than the last of them.
        self.left[slot] = max(self.seconds[index], self.issued[index] - now)
        self.running[slot], self.speed[slot] = index, math.nan
        self.divide_gpu(self.worker[index], now)

    def divide_gpu(self, w: int, now: float) -> None:
        """Advance the kernels that run on a GPU, and divide its multiprocessors anew."""
        panel, update = self.running[2 * w], self.running[2 * w + 1]
        overlap = self.overlap[panel] if panel >= 0 else _ALONE
        panel_speed = 1 / overlap.slowdown if update >= 0 else 1.0
        update_speed = 1 - overlap.share
        elapsed, self.since[w] = now - self.since[w], now
        for slot, index, speed in ((2 * w, panel, panel_speed), (2 * w + 1, update, update_speed)):
            if index < 0:
                continue
            if not math.isnan(self.speed[slot]):
                self.left[slot] = max(self.left[slot] - elapsed * self.speed[slot], 0.0)
            if speed != self.speed[slot]:
                # The end is predicted anew; the event of the former prediction is void.
                self.speed[slot] = speed
                self.version[slot] += 1
                if speed > 0:
                    event = (now + self.left[slot] / speed, index, self.version[slot])
                    heapq.heappush(self.events, event)

    def end(self, index: int, now: float) -> None:
        """End an instruction; its queue and the instructions that wait for it go on."""
        w = self.worker[index]
        self.stop[index] = now
        if self.shared[index]:
            self.running[self.slot(index)] = -1
            self.divide_gpu(w, now)
        for other in self.after[index]:
            self.end_dependence(other, now)
        if self.blocking[w]:
            self.clock[self.thread[w]] = self.issued[index] = now
            self.issue([w, *self.held.pop(index, ())])

    def check_finished(self) -> None:
        """Raise RuntimeError unless everything has ended, with the place of each stuck worker."""
        stuck = [w for index, w in enumerate(self.worker) if math.isnan(self.stop[index])]
        if stuck:
            reasons = "; ".join(self._reason(w) for w in dict.fromkeys(stuck))
            raise RuntimeError(f"the programs wait for each other and never end: {reasons}")

    def _reason(self, w: int) -> str:
        index = self.position[w]
        span = range(self.first[w], self.first[w + 1])
        if index not in span or not self.needs.get(index):
            index = next(index for index in span if math.isnan(self.stop[index]))
        i = self.all[index]
        waits = [f"message {tuple(key)} to be taken by worker {to}" for key, to in i.awaits]
        if isinstance(i, ReceiveMessage):
            waits.append(f"message {tuple(i.message)} from worker {i.message.source}")
        waiting = f" (waits for {', '.join(waits)})" if waits else ""
        return f"worker {w} is stuck at instruction {index - span.start}, {i.label}{waiting}"


def _is_again(copy: CopyRegion) -> bool:
    return isinstance(copy, LoadColumn) and copy.again


def _untouched(graph: TaskGraph) -> dict[int, int]:
    """Return the elements of each tile column that no task touches: hosts copy them themselves."""
    layout = graph.layout
    return {
        column: (layout.m - layout.row(stop) + layout.row(start)) * layout.column_widths[column]
        for column, (start, stop) in graph.touched_rows().items()
    }
