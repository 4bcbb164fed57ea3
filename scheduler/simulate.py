"""Runs programs on the machine model, without kernels.

A discrete-event simulation of what the executors do.  Each worker has a host thread
that issues its instructions in program order, and three in-order queues.  A CPU works
in its host thread; a GPU's host thread only enqueues, and stops where it needs an
event that another worker has not recorded yet.  Programs that would hang do so here,
and are told what hangs.

The PANEL and UPDATE queues of a GPU share its multiprocessors.  The rule: panel work has
priority and runs as if alone; an update beside a getrf, netperm or trtri goes on with
the share that these leave (`DeviceModel.panel_share`), and beside any other kernel of
the panel queue, which could fill the GPU, it stands still.  So no throughput is
invented, and a look-ahead update costs the trailing update its own time.  Copies take
link time and no multiprocessors; transfers contend only in their receiver's queue.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hetero_la.scheduler.costs import MachineModel, call_shapes
from hetero_la.scheduler.graph import TaskGraph
from hetero_la.scheduler.messages import Traffic
from hetero_la.scheduler.programs import Program
from hetero_la.tiles.kernels.spec import Queue

_NARROW = frozenset({"getrf", "netperm", "trtri"})  # cannot fill a GPU
_BEGIN, _END = -2, -1  # event codes; others number the forecasts of an update's end


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a simulated run did; times in seconds from its start.

    Attributes
    ----------
    makespan : float
        Time at which the last instruction ended.
    start, stop : list of numpy.ndarray
        For each worker, when its instructions began and ended on their queues.
    issued : list of numpy.ndarray
        When its host thread was done with enqueuing them.
    busy : numpy.ndarray, shape (workers, 3)
        Time in which each queue had something running.
    computing : numpy.ndarray, shape (workers,)
        Time in which a worker's PANEL or UPDATE queue, or both, ran something.
    bytes_sent : numpy.ndarray, shape (workers, workers)
        Bytes moved from worker (row) to worker (column).
    bytes_host : numpy.ndarray, shape (workers,)
        Bytes loaded from and stored to the user's array.
    """

    makespan: float
    start: list[np.ndarray]
    stop: list[np.ndarray]
    issued: list[np.ndarray]
    busy: np.ndarray
    computing: np.ndarray
    bytes_sent: np.ndarray
    bytes_host: np.ndarray

    @property
    def idle(self) -> np.ndarray:
        """For each worker, the time in which it computed nothing."""
        return self.makespan - self.computing

    @property
    def bytes_moved(self) -> int:
        """All bytes that crossed from one worker to another."""
        return int(self.bytes_sent.sum())


def simulate(
    programs: Sequence[Program],
    traffic: Traffic,
    graph: TaskGraph,
    model: MachineModel,
    dtype: Any = np.float64,
    *,
    host_arrays: bool = False,
) -> Simulation:
    """Predict a run.

    Parameters
    ----------
    programs : sequence of Program
        One per worker.
    traffic : Traffic
        The messages between them.
    graph : TaskGraph
        What the programs were made from.
    model : MachineModel
        One device per program, and the links.
    dtype : dtype, optional
        Element type.
    host_arrays : bool, optional
        Whether loads and stores cost time; otherwise the data are in place.

    Returns
    -------
    Simulation

    Raises
    ------
    RuntimeError
        If the programs wait for each other; it names the instructions that are stuck.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> from hetero_la.scheduler.costs import H200
    >>> from hetero_la.scheduler.distribution import Distribution
    >>> from hetero_la.scheduler.placement import place
    >>> from hetero_la.scheduler.programs import build_programs
    >>> from hetero_la.tiles.layout import TileLayout
    >>> graph = lu_tasks(TileLayout(8192, 8192, 512))
    >>> columns = Distribution.cyclic(16, [1, 1])
    >>> programs, traffic = build_programs(graph, place(graph, columns), columns, 2, depth=1)
    >>> run = simulate(programs, traffic, graph, MachineModel((H200, H200)))
    >>> bool(0.01 < run.makespan < 0.1)
    True
    """
    if len(model.devices) != len(programs):
        raise ValueError(f"{len(programs)} programs need as many devices, not {len(model.devices)}")
    machine = _Machine(programs, model)
    machine.price(traffic, graph, np.dtype(dtype), host_arrays)
    machine.connect()
    machine.run()
    machine.check_finished()
    return machine.summary()


class _Machine:
    """State of a simulation; instructions of all programs are numbered through."""

    def __init__(self, programs: Sequence[Program], model: MachineModel) -> None:
        self.programs, self.model = programs, model
        counts = [len(program.instructions) for program in programs]
        self.first = [0, *accumulate(counts)]
        self.all = [i for program in programs for i in program.instructions]
        self.worker = [w for w, count in enumerate(counts) for _ in range(count)]
        self.blocking = [device.kind == "cpu" for device in model.devices]
        total = len(self.all)
        # One more, which never comes to be, for what nobody sends or takes.
        self.issued = [math.nan] * (total + 1)
        self.start, self.stop = [math.nan] * total, [math.nan] * total
        self.seconds, self.host = [0.0] * total, [0.0] * total
        self.expected = [1] * total  # ends that a start waits for, and its own issue
        self.ready = [0.0] * total  # the latest of these so far
        self.after: list[list[int]] = [[] for _ in range(total + 1)]
        self.needs: dict[int, list[int]] = {}  # issues elsewhere that an issue waits for
        self.held: dict[int, list[int]] = {}  # and the workers that stand there
        self.position, self.clock = self.first[:-1], [0.0] * len(programs)
        # Of each worker: the update that runs, its work left, since when, its event's
        # number, and the part of the multiprocessors that panel work takes.
        self.update, self.left = [-1] * len(programs), [0.0] * len(programs)
        self.since, self.version = [0.0] * len(programs), [0] * len(programs)
        self.taken = [0.0] * len(programs)
        self.events: list[tuple[float, int, int]] = []
        self.bytes_sent = np.zeros((len(programs), len(programs)), np.int64)
        self.bytes_host = np.zeros(len(programs), np.int64)

    def price(self, traffic: Traffic, graph: TaskGraph, dtype: np.dtype, host_arrays: bool) -> None:
        """Fill in what each instruction costs its queue and its host thread."""
        layout = graph.layout
        sizes = {
            key: sum(math.prod(p.shape) * np.dtype(p.dtype or dtype).itemsize for p in m.parts)
            for key, m in traffic.messages.items()
        }
        for w, program in enumerate(self.programs):
            device, columns = self.model.devices[w], program.columns
            edges = [0, *accumulate(layout.column_width(c) for c in columns)]
            for at, i in enumerate(program.instructions, self.first[w]):
                if i.op == "call":
                    stop = bisect_right(columns, i.last)
                    width = edges[stop] - edges[bisect_left(columns, i.first, 0, stop)]
                    shapes = call_shapes(i, graph, width or None)
                    self.seconds[at] = device.kernel_seconds(i.kind, shapes, dtype)
                    self.host[at] = device.host_seconds(i.kind, shapes)
                elif i.op == "receive" and i.message in sizes:
                    size, source = sizes[i.message], i.message.source
                    home = traffic.messages[i.message].parts
                    private = i.private or any(
                        p.row is not None and p.region.index in columns for p in home
                    )
                    self.seconds[at] = self.model.transfer_seconds(size, source, w, private=private)
                    self.host[at] = device.launch_seconds
                    self.bytes_sent[source, w] += size
                elif i.op in ("load", "store") and host_arrays:
                    size = layout.m * layout.column_width(i.first) * dtype.itemsize
                    self.seconds[at] = self.model.host_seconds(size, w)
                    self.host[at] = device.launch_seconds
                    self.bytes_host[w] += size

    def connect(self) -> None:
        """Derive who waits for whom."""
        never = len(self.all)
        sends = {i.message: at for at, i in enumerate(self.all) if i.op == "send"}
        takes = {(key, self.worker[at]): at for at, i in enumerate(self.all) for key in i.takes}
        for w, program in enumerate(self.programs):
            latest: dict[int, int] = {}
            for at, i in enumerate(program.instructions, self.first[w]):
                before = [takes.get(pair, never) for pair in i.awaits]
                if i.op == "receive":
                    before.append(sends.get(i.message, never))
                if before:
                    self.needs[at] = before
                if not self.blocking[w]:
                    before = before + [self.first[w] + place for place in i.waits]
                    if i.queue in latest:
                        before.append(latest[i.queue])
                    latest[i.queue] = at
                for other in before:
                    self.after[other].append(at)
                self.expected[at] += len(before)

    def run(self) -> None:
        """Process events in order of time until none is left."""
        self.issue(list(range(len(self.programs))))
        while self.events:
            now, at, code = heapq.heappop(self.events)
            if code == _BEGIN:
                self.begin_shared(at, now)
            elif code == _END or code == self.version[self.worker[at]]:
                self.end(at, now)

    def issue(self, hosts: list[int]) -> None:
        """Let host threads go on until they end, work, or need another one."""
        while hosts:
            w = hosts.pop()
            while self.position[w] < self.first[w + 1]:
                at, now = self.position[w], self.clock[w]
                missing = [n for n in self.needs.get(at, ()) if self.issued[n] != self.issued[n]]
                if missing:
                    self.held.setdefault(missing[0], []).append(w)
                    break
                for need in self.needs.get(at, ()):
                    now = max(now, self.issued[need])
                self.position[w] += 1
                if self.blocking[w]:
                    self.arrive(at, now)  # `end` lets the thread go on
                    break
                self.arrive(at, now + min(self.host[at], self.model.devices[w].launch_seconds))
                self.clock[w] = self.issued[at] = now + self.host[at]
                hosts += self.held.pop(at, ())

    def arrive(self, at: int, now: float) -> None:
        """One of the things that an instruction waits for has come."""
        self.ready[at] = now = max(now, self.ready[at])
        self.expected[at] -= 1
        if self.expected[at]:
            return
        w, queue = self.worker[at], self.all[at].queue
        if self.blocking[w] or queue == Queue.COPY or not self.seconds[at]:
            self.start[at] = now
            heapq.heappush(self.events, (now + self.seconds[at], at, _END))
        else:
            heapq.heappush(self.events, (now, at, _BEGIN))

    def begin_shared(self, at: int, now: float) -> None:
        """A kernel starts on a GPU whose multiprocessors it shares."""
        w = self.worker[at]
        self.start[at] = now
        if self.all[at].queue == Queue.UPDATE:
            self.update[w], self.left[w], self.since[w] = at, self.seconds[at], now
            self.schedule_update(w, now)
        else:
            # A launch at a time: a panel ends no earlier than its last one is enqueued.
            seconds = max(self.seconds[at], self.issued[at] - now)
            heapq.heappush(self.events, (now + seconds, at, _END))
            narrow = self.all[at].kind in _NARROW
            self.set_taken(w, now, self.model.devices[w].panel_share if narrow else 1.0)

    def set_taken(self, w: int, now: float, taken: float) -> None:
        """Panel work begins or ends: the update beside it changes its speed."""
        self.left[w] -= (now - self.since[w]) * (1 - self.taken[w])
        self.since[w], self.taken[w] = now, taken
        if self.update[w] >= 0:
            self.schedule_update(w, now)

    def schedule_update(self, w: int, now: float) -> None:
        """Foresee the end of the running update; what was foreseen before is void."""
        self.version[w] += 1
        if self.taken[w] < 1:
            end = now + max(self.left[w], 0.0) / (1 - self.taken[w])
            heapq.heappush(self.events, (end, self.update[w], self.version[w]))

    def end(self, at: int, now: float) -> None:
        """An instruction has ended: its queue, and those that wait for it, go on."""
        w = self.worker[at]
        self.stop[at] = now
        if not self.blocking[w] and self.seconds[at]:
            if self.all[at].queue == Queue.UPDATE:
                self.update[w] = -1
            elif self.all[at].queue == Queue.PANEL:
                self.set_taken(w, now, 0.0)
        for other in self.after[at]:
            self.arrive(other, now)
        if self.blocking[w]:
            self.clock[w] = self.issued[at] = now
            self.issue([w, *self.held.pop(at, ())])

    def check_finished(self) -> None:
        """Raise unless everything has ended, and say where each worker stands."""
        stuck = [w for at, w in enumerate(self.worker) if math.isnan(self.stop[at])]
        if stuck:
            reasons = "; ".join(self._reason(w) for w in dict.fromkeys(stuck))
            raise RuntimeError(f"the programs wait for each other and never end: {reasons}")

    def _reason(self, w: int) -> str:
        at = self.position[w]
        span = range(self.first[w], self.first[w + 1])
        if at not in span or not self.needs.get(at):
            at = next(at for at in span if math.isnan(self.stop[at]))
        i = self.all[at]
        waits = [f"message {tuple(key)} to be taken by worker {to}" for key, to in i.awaits]
        if i.op == "receive" and i.message is not None:
            waits.append(f"message {tuple(i.message)} from worker {i.message.source}")
        waiting = f" (waits for {', '.join(waits)})" if waits else ""
        return f"worker {w} is stuck at instruction {at - span.start}, {i.label}{waiting}"

    def summary(self) -> Simulation:
        """Cut the times into one array per worker."""

        def cut(times: list[float]) -> list[np.ndarray]:
            return [np.array(times[a:b]) for a, b in pairwise(self.first)]

        start, stop = cut(self.start), cut(self.stop)
        busy, computing = np.zeros((len(start), 3)), np.zeros(len(start))
        for w, program in enumerate(self.programs):
            queues = np.array([i.queue for i in program.instructions], np.intp)
            np.add.at(busy[w], queues, stop[w] - start[w])
            mine = queues != Queue.COPY
            computing[w] = _covered(start[w][mine], stop[w][mine])
        makespan = max(self.stop, default=0.0)
        return Simulation(
            makespan, start, stop, cut(self.issued), busy, computing,
            self.bytes_sent, self.bytes_host,
        )  # fmt: skip


def _covered(start: np.ndarray, stop: np.ndarray) -> float:
    """Length of the union of intervals."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(stop[order])
    return float(until[-1] - start[0] - np.maximum(start[1:] - until[:-1], 0.0).sum())
