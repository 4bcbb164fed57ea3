"""What a worker did when, and what it waited for in between.

All times are seconds of `time.perf_counter`, which the processes of a host share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.program.instructions import Instruction, Program
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.tiles.arrays.device import Device, Event, Queue


class WorkerTrace(NamedTuple):
    """One worker's run.

    Attributes
    ----------
    issued : numpy.ndarray, shape (instructions,)
        When its thread came to each instruction.
    spans : numpy.ndarray, shape (instructions, 2)
        When the device began and ended it: after what it had to wait for.
    windows : numpy.ndarray, shape (windows, 2)
        When its thread was in a task of the executor: of Dask, or of the caller.
    """

    issued: np.ndarray
    spans: np.ndarray
    windows: np.ndarray

    def shifted(self, seconds: float) -> WorkerTrace:
        """The same on a clock that is ahead by `seconds`."""
        return WorkerTrace(*(part + seconds for part in self))

    @property
    def end(self) -> float:
        """When the last of it ended."""
        return float(max(self.spans.max(initial=-np.inf), self.windows.max(initial=-np.inf)))


class Recorder:
    """Measures when a device does what, while a program runs on it.

    Each instruction's end is marked, on a GPU by an event of its queue.  It begins when it has
    been issued and all that it follows here has ended; only where it also follows what other
    workers do, that moment is marked, too.

    Parameters
    ----------
    device : Device
        Whose calls these are; it must be active.
    instructions : sequence of Instruction
        The program's.
    """

    def __init__(self, device: Device, instructions: Sequence[Instruction]) -> None:
        self._watch = device.stopwatch()
        self._instructions = instructions
        self._issued: list[float] = []
        self._begun: dict[int, Event] = {}
        self._ended: list[Event] = []
        self._windows: list[tuple[float, float]] = []

    def _now(self, queue: Queue) -> Event:
        return time.perf_counter() if self._watch is None else self._watch.mark(queue)

    def _seconds(self, mark: Event) -> float:
        return mark if self._watch is None else self._watch.seconds(mark)

    def issue(self) -> None:
        """The thread comes to the next instruction."""
        self._issued.append(time.perf_counter())

    def begin(self, queue: Queue) -> None:
        """What the instruction awaited of other workers is there; the last call counts."""
        self._begun[len(self._issued) - 1] = self._now(queue)

    def end(self, queue: Queue) -> Event | None:
        """The instruction has ended, or been enqueued; an event of its end, if there is one."""
        self._ended.append(self._now(queue))
        return None if self._watch is None else self._ended[-1]

    def window(self, opened: float) -> None:
        """A window that was opened at a time ends now; the device is still active."""
        if self._watch is not None:
            self._watch.compare_clocks()  # all is enqueued: few runs have to wait for this
        self._windows.append((opened, time.perf_counter()))

    def trace(self) -> WorkerTrace:
        """What was measured, once the device has finished: at any time, in any thread."""
        ends = [self._seconds(mark) for mark in self._ended]
        begins, latest = [], dict.fromkeys(Queue, -np.inf)
        for place, end in enumerate(ends):
            instruction = self._instructions[place]
            begin = max(self._issued[place], latest[instruction.queue])
            for before in instruction.waits:
                begin = max(begin, ends[before])
            if place in self._begun:
                begin = max(begin, self._seconds(self._begun[place]))
            begins.append(min(begin, end))  # the device's clock and the host's are not one
            latest[instruction.queue] = end
        return WorkerTrace(
            np.array(self._issued),
            np.array([begins, ends], np.float64).T,
            np.array(self._windows, np.float64).reshape(-1, 2),
        )


#: Where the time of a run goes on a worker, the first that holds.
PARTS = ("computing", "copying", "waiting for a panel", "nothing left", "waiting for Dask", "other")


def split(
    trace: WorkerTrace,
    program: Program,
    began: float,
    ended: float,
    sent: Mapping[MessageKey, float] | None = None,
) -> dict[str, float]:
    """Where a worker's time went between two moments, in seconds; the parts add up to it.

    ``"computing"``: a kernel ran.  ``"copying"``: none, but a copy did.  ``"waiting for a
    panel"``: neither, and a message from another worker had been asked for, or the next
    task began with one that had not been sent.  ``"nothing left"``: its program had ended.
    ``"waiting for Dask"``: its thread had no task.  ``"other"``: its thread was busy with
    anything else, such as issuing calls.

    Parameters
    ----------
    trace : WorkerTrace
        What the worker did.
    program : Program
        What it was told to do.
    began, ended : float
        The run, in seconds of the trace's clock.
    sent : mapping, optional
        When each message was ready to be taken.

    Examples
    --------
    >>> from hetero_la.scheduler.program.instructions import Instruction
    >>> program = Program(0, [0], [Instruction("load", 0), Instruction("call", 0)])
    >>> trace = WorkerTrace(
    ...     np.array([1.0, 3.0]), np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 6.0]])
    ... )
    >>> {part: s for part, s in split(trace, program, 0.0, 10.0).items() if s}
    {'computing': 2.0, 'copying': 1.0, 'nothing left': 4.0, 'waiting for Dask': 1.0, 'other': 2.0}
    """
    ops = [instruction.op for instruction in program.instructions[: len(trace.issued)]]
    calls = np.array([op == "call" for op in ops], bool)
    asked = np.column_stack([trace.issued, trace.spans[:, 0]])
    waits = np.array([bool(i.awaits) or i.op == "receive" for i in program.instructions], bool)
    covers = {
        "computing": trace.spans[calls],
        "copying": trace.spans[~calls],
        "waiting for a panel": np.concatenate(
            [asked[waits[: len(asked)]], _held_up(trace, program, began, sent or {})]
        ),
        "nothing left": np.array([[trace.end, ended]]),
        "waiting for Dask": _gaps(trace.windows, began, ended),
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


def _held_up(
    trace: WorkerTrace, program: Program, began: float, sent: Mapping[MessageKey, float]
) -> np.ndarray:
    """From the end of each task until what the next one begins with had been sent."""
    found = []
    firsts = np.searchsorted(trace.issued, trace.windows[:, 0])
    idle = began
    for first, (opened, closed) in zip(firsts, trace.windows, strict=True):
        ready = idle
        for instruction in program.instructions[first:]:
            if instruction.op == "call":
                break
            if instruction.op == "receive" and instruction.message is not None:
                ready = max(ready, sent.get(instruction.message, idle))
        found.append((idle, min(ready, opened)))
        idle = closed
    return np.array(found).reshape(-1, 2)


def sent_at(traces: Sequence[WorkerTrace], programs: Sequence[Program]) -> dict[MessageKey, float]:
    """When each message of a run was ready to be taken."""
    return {
        instruction.message: float(stop)
        for trace, program in zip(traces, programs, strict=True)
        for instruction, (_, stop) in zip(program.instructions, trace.spans, strict=True)
        if instruction.op == "send" and instruction.message is not None
    }


def _gaps(windows: np.ndarray, began: float, ended: float) -> np.ndarray:
    """What is left of a run beside the windows, which follow one another."""
    flat = np.concatenate([[began], windows.ravel(), [ended]])
    return flat.reshape(-1, 2)


def _covered(intervals: np.ndarray, edges: np.ndarray, began: float, ended: float) -> np.ndarray:
    """Whether each stretch between two edges lies in one of the intervals, by a sweep."""
    change = np.zeros(len(edges), np.int64)
    ordered = intervals[intervals[:, 1] > intervals[:, 0]]
    for column, step in ((0, 1), (1, -1)):
        at = np.searchsorted(edges, np.clip(ordered[:, column], began, ended))
        np.add.at(change, at, step)
    return change.cumsum()[:-1] > 0


def aligned(
    traces: Sequence[WorkerTrace], hosts: Sequence[str], here: str, ended: float
) -> list[WorkerTrace]:
    """Traces of several hosts on the clock of this one.

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
