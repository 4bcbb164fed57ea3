"""Times of a worker's instructions, and the reasons for the time in between.

All times are seconds of `time.perf_counter`, which the processes of a host share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.program.instructions import (
    CallKernel,
    Instruction,
    Program,
    ReceiveMessage,
    SendMessage,
)
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.kernels.device import Device, Event, Interval, Queue


class LogEntry(NamedTuple):
    """Start and end of the issue of an instruction, in seconds of `time.perf_counter`."""

    place: int
    start: float
    stop: float


class WorkerTrace(NamedTuple):
    """Times of one worker's instructions in a run.

    Attributes
    ----------
    issued : numpy.ndarray, shape (instructions,)
        Time at which its thread reached each instruction.
    spans : numpy.ndarray, shape (instructions, 2)
        Start and end of each on the device; the start is after all that it waits for.
    windows : numpy.ndarray, shape (windows, 2)
        Start and end of each of its thread's tasks of the executor: of Dask, or of the caller.
    loading : numpy.ndarray, shape (calls, 2)
        Start and end of the first calls of kernels in a process, in which the thread loads what
        they launch, and compiles what has not been compiled before.
    """

    issued: np.ndarray
    spans: np.ndarray
    windows: np.ndarray
    loading: np.ndarray = np.zeros((0, 2))

    def __repr__(self) -> str:
        return one_line("WorkerTrace", counted(len(self.issued), "instruction"))

    def shifted(self, seconds: float) -> WorkerTrace:
        """Return the trace on a clock that is ahead by `seconds`."""
        return WorkerTrace(*(part + seconds for part in self))

    @property
    def end(self) -> float:
        """Time of its last event."""
        return float(max(self.spans.max(initial=-np.inf), self.windows.max(initial=-np.inf)))


class Recorder:
    """Recorder of the times at which a device executes a program's instructions.

    The end of each instruction is marked, on a GPU by an event of its queue.  Its start is the time
    at which it has been issued and the instructions before it here have ended; only if it also
    waits for other workers, the start is marked as well.

    Parameters
    ----------
    device : Device
        The device; it must be active.
    instructions : sequence of Instruction
        The program's.
    """

    def __init__(self, device: Device, instructions: Sequence[Instruction]) -> None:
        self._watch = device.stopwatch()
        self._device, self._loaded_before = device, len(device.loading)
        self._instructions = instructions
        self._issued: list[float] = []
        self._begun: dict[int, Event] = {}
        self._ended: list[Event] = []
        self._windows: list[Interval] = []
        self._loading: list[Interval] = []

    def _now(self, queue: Queue) -> Event:
        return time.perf_counter() if self._watch is None else self._watch.mark(queue)

    def _seconds(self, mark: Event) -> float:
        return mark if self._watch is None else self._watch.seconds(mark)

    def issue(self) -> None:
        """Record that the thread has reached the next instruction."""
        self._issued.append(time.perf_counter())

    def begin(self, queue: Queue) -> None:
        """Record that the instruction's data of other workers is there; the last call counts."""
        self._begun[len(self._issued) - 1] = self._now(queue)

    def end(self, queue: Queue) -> Event | None:
        """Record the end of the instruction, or its enqueuing; return its event, or None."""
        self._ended.append(self._now(queue))
        return None if self._watch is None else self._ended[-1]

    def window(self, opened: float) -> None:
        """Record a window from `opened` until now; the device is still active."""
        if self._watch is not None:
            self._watch.compare_clocks()  # all work is enqueued, so it delays few runs
        self._windows.append((opened, time.perf_counter()))
        self._loading = list(self._device.loading[self._loaded_before :])

    def trace(self) -> WorkerTrace:
        """Return the trace, once the device has finished: at any time, in any thread."""
        # The clocks of device and host differ a little: nothing ends before it is issued.
        ends = [
            max(self._seconds(mark), issued)
            for mark, issued in zip(self._ended, self._issued, strict=False)
        ]
        begins, latest = [], dict.fromkeys(Queue, -np.inf)
        loading = np.array(self._loading, np.float64).reshape(-1, 2)
        places = np.searchsorted(self._issued, loading[:, 0]) - 1
        called = dict(zip(places.tolist(), loading[:, 1].tolist(), strict=True))
        for place, end in enumerate(ends):
            instruction = self._instructions[place]
            begin = max(called.get(place, self._issued[place]), latest[instruction.queue])
            for before in instruction.waits:
                begin = max(begin, ends[before])
            if place in self._begun:
                begin = max(begin, self._seconds(self._begun[place]))
            begins.append(min(begin, end))
            latest[instruction.queue] = end
        return WorkerTrace(
            np.array(self._issued),
            np.array([begins, ends], np.float64).T,
            np.array(self._windows, np.float64).reshape(-1, 2),
            loading,
        )


#: Kinds of a worker's time in a run; of several that apply, the first one counts.
PARTS = (
    "computing", "loading kernels", "copying", "waiting for a panel", "nothing left",
    "waiting for Dask", "other",
)  # fmt: skip


def split_time(
    trace: WorkerTrace,
    program: Program,
    began: float,
    ended: float,
    sent: Mapping[MessageKey, float] | None = None,
    first: float = -np.inf,
) -> dict[str, float]:
    """Divide a worker's time between `began` and `ended` by kind; return the seconds of each.

    ``"computing"``: a kernel ran.  ``"loading kernels"``: none ran, and its thread loaded or
    compiled one.  ``"copying"``: neither, but a copy ran.  ``"waiting for a panel"``: none of
    these, and a receive had been issued, or the next task began with a message that had not been
    sent.  ``"nothing left"``: its program had ended.  ``"waiting for Dask"``: its thread had no
    task.  ``"other"``: its thread was busy with anything else, such as issuing calls.

    Parameters
    ----------
    trace : WorkerTrace
        The worker's trace.
    program : Program
        The worker's program.
    began, ended : float
        Start and end of the run, in seconds of the trace's clock.
    sent : mapping, optional
        Message -> time at which it was ready to be received.
    first : float, optional
        When the first task of the run began, on any worker: until then nobody waits for a message.

    Examples
    --------
    >>> from hetero_la.scheduler.graph.tasks import Region
    >>> from hetero_la.scheduler.program.instructions import LoadColumn
    >>> column = Region("A", 0, 0, 1)
    >>> call = CallKernel(0, 0, 0, "getrf", (column,))
    >>> program = Program(0, [0], [LoadColumn(0, column), call])
    >>> trace = WorkerTrace(
    ...     np.array([1.0, 3.0]), np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 6.0]])
    ... )
    >>> {part: s for part, s in split_time(trace, program, 0.0, 10.0).items() if s}
    {'computing': 2.0, 'copying': 1.0, 'nothing left': 4.0, 'waiting for Dask': 1.0, 'other': 2.0}
    """
    issued = program.instructions[: len(trace.issued)]
    calls = np.array([isinstance(i, CallKernel) for i in issued], bool)
    asked = np.column_stack([trace.issued, trace.spans[:, 0]])
    waits = np.array([bool(i.awaits) or isinstance(i, ReceiveMessage) for i in issued], bool)
    covers = {
        "computing": trace.spans[calls],
        "loading kernels": trace.loading,
        "copying": trace.spans[~calls],
        "waiting for a panel": np.concatenate(
            [asked[waits], _message_waits(trace, program, max(began, first), sent or {})]
        ),
        "nothing left": np.array([[trace.end, ended]]),
        # The intervals outside its windows, which are in order.
        "waiting for Dask": np.array([began, *trace.windows.ravel(), ended]).reshape(-1, 2),
        "other": np.array([[began, ended]]),
    }
    edges = np.unique(np.clip(np.concatenate(list(covers.values())), began, ended))
    lengths, free = np.diff(edges), np.ones(max(len(edges) - 1, 0), bool)
    parts = {}
    for part in PARTS:
        mine = free & _covered(covers[part], edges, began, ended)
        parts[part] = float(lengths[mine].sum())
        free &= ~mine
    return parts


def _message_waits(
    trace: WorkerTrace, program: Program, began: float, sent: Mapping[MessageKey, float]
) -> np.ndarray:
    """Return the intervals from each task's end until the next one's first message was sent."""
    found = []
    firsts = np.searchsorted(trace.issued, trace.windows[:, 0])
    idle = began
    for first, (opened, closed) in zip(firsts, trace.windows, strict=True):
        ready = idle
        for instruction in program.instructions[first:]:
            if isinstance(instruction, CallKernel):
                break
            if isinstance(instruction, ReceiveMessage):
                ready = max(ready, sent.get(instruction.message, idle))
        found.append((idle, min(ready, opened)))
        idle = closed
    return np.array(found).reshape(-1, 2)


def send_times(
    traces: Sequence[WorkerTrace], programs: Sequence[Program]
) -> dict[MessageKey, float]:
    """Return for each message of a run the time at which it was ready to be received."""
    return {
        instruction.message: float(stop)
        for trace, program in zip(traces, programs, strict=True)
        for instruction, (_, stop) in zip(program.instructions, trace.spans, strict=True)
        if isinstance(instruction, SendMessage)
    }


def _covered(intervals: np.ndarray, edges: np.ndarray, began: float, ended: float) -> np.ndarray:
    """Return whether each interval between two edges lies in one of the intervals, by a sweep."""
    change = np.zeros(len(edges), np.int64)
    ordered = intervals[intervals[:, 1] > intervals[:, 0]]
    for column, step in ((0, 1), (1, -1)):
        edge = np.searchsorted(edges, np.clip(ordered[:, column], began, ended))
        np.add.at(change, edge, step)
    return change.cumsum()[:-1] > 0


def align_clocks(
    traces: Sequence[WorkerTrace], hosts: Sequence[str], here: str, ended: float
) -> list[WorkerTrace]:
    """Return traces of several hosts on the clock of this one.

    Clocks of different hosts have nothing to do with each other; those of another host are
    shifted so that its last work ended with the run.
    """
    last: dict[str, float] = {}
    for trace, host in zip(traces, hosts, strict=True):
        last[host] = max(last.get(host, -np.inf), trace.end)
    return [
        trace if host == here else trace.shifted(ended - last[host])
        for trace, host in zip(traces, hosts, strict=True)
    ]
