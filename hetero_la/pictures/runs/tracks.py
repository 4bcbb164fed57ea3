"""What a run shows over its time: ideal bounds, steps, ready tasks, memory and links."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hetero_la.pictures.runs.recording import Recording
from hetero_la.scheduler.graph.analysis import earliest_times
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    CopyRegion,
    LoadColumn,
    ReadBack,
    ReceiveMessage,
    StoreRows,
)
from hetero_la.scheduler.program.messages import Message, MessagePart
from hetero_la.scheduler.program.own_columns import OwnColumns

#: Intervals of equal length in which bytes are counted.
_INTERVALS = 400
#: Stands for the name of a matrix whose parts are in buffers.
_BUFFER = "a buffer"


class StepFunction(NamedTuple):
    """A value that changes at some times: ``values[i]`` from ``times[i]`` to ``times[i + 1]``."""

    times: np.ndarray
    values: np.ndarray


class Bounds(NamedTuple):
    """Times that no order of the tasks of a run could have beaten, with kernels as fast as in it.

    Attributes
    ----------
    work : float
        Time in which kernels ran, divided by the workers.
    path : float
        Length of the critical path.
    """

    work: float
    path: float


def bounds(run: Recording) -> Bounds:
    """Return the bounds of a run: neither is above its time.

    A task's time is its share of its call's.

    Examples
    --------
    >>> import hetero_la
    >>> plan = hetero_la.plan("lu", (400, 400), nb=100)
    >>> run = plan.predicted_recording()
    >>> work, path = bounds(run)
    >>> bool(0 < path <= work <= run.seconds)
    True
    """
    computing = [_covered(spans[run.call_mask(w)]) for w, spans in enumerate(run.spans)]
    stops = earliest_times(run.graph, run.task_seconds)[1]
    return Bounds(sum(computing) / max(len(computing), 1), float(stops.max(initial=0.0)))


def _covered(spans: np.ndarray) -> float:
    """Return the length of the union of some intervals."""
    times, running = _sum_of_changes(spans, np.ones(len(spans)))
    return float(np.diff(times)[running[:-1] > 0].sum())


def _sum_of_changes(spans: np.ndarray, weights: np.ndarray) -> StepFunction:
    """Return the sum of the weights of the intervals that contain a time; it begins at time 0."""
    edges = np.concatenate([[0.0], spans.ravel()])
    change = np.concatenate([[0.0], np.column_stack([weights, -weights]).ravel()])
    times, place = np.unique(edges, return_inverse=True)
    return StepFunction(times, np.bincount(place, weights=change, minlength=len(times)).cumsum())


def step_spans(run: Recording) -> np.ndarray:
    """Return begin and end of the calls of each step, shape (steps, 2); NaN without calls."""
    steps = np.array([task.step for task in run.graph.tasks], np.intp)
    found = np.full((int(steps.max(initial=-1)) + 1, 2), np.nan)
    np.fmin.at(found[:, 0], steps, run.task_spans[:, 0])
    np.fmax.at(found[:, 1], steps, run.task_spans[:, 1])
    return found


def ready_tasks(run: Recording) -> StepFunction:
    """Return how many tasks could begin, all that they wait for having ended, but have not begun.

    Panels that travel to the task's worker are not counted as something to wait for.
    """
    starts, stops = run.task_spans.T
    ready = np.array([
        max((stops[before] for before in task.after), default=0.0) for task in run.graph.tasks
    ])  # fmt: skip
    return _sum_of_changes(
        np.column_stack([np.minimum(ready, starts), starts]), np.ones(len(ready))
    )


def running_tasks(run: Recording) -> StepFunction:
    """Return how many tasks are in work at a time."""
    return _sum_of_changes(run.task_spans, np.ones(len(run.task_spans)))


def memory(run: Recording, worker: int) -> StepFunction:
    """Return the bytes that a worker has in use: what it always needs, and what comes and goes.

    Panels come from other workers, and where not all columns are in memory, columns from the host:
    each is there from the start of its copy until the last instruction that uses it has ended.
    """
    program, spans, layout = run.programs[worker], run.spans[worker], run.graph.layout
    own, columns = OwnColumns(program.columns, layout), set(program.columns)
    holder: dict[tuple[str, int], int] = {}  # place of the copy that brought something last
    read: dict[int, int] = {}  # place of the last instruction that uses what a copy brought
    sizes: dict[int, int] = {}
    for at, i in enumerate(program.instructions):
        used: Iterable[tuple[str, int]] = ()
        if isinstance(i, ReceiveMessage):
            parts = _buffered(run.messages[i.message], columns)
            if program.streamed:  # it keeps values, of which there is one for each step
                parts = [part for part in parts if part.row is not None]
            used, sizes[at] = [part.region[:2] for part in parts], _bytes(parts, run.dtype)
            holder |= dict.fromkeys(used, at)
        elif isinstance(i, LoadColumn | ReadBack) and program.streamed:
            rows = (0, layout.mt) if isinstance(i, LoadColumn) else i.region[2:]
            whole = Region(*i.region[:2], *rows)
            used = [i.region[:2] if isinstance(i, LoadColumn) else (_BUFFER, i.slot)]
            sizes[at] = math.prod(run.graph.shape(whole)) * run.dtype.itemsize
            holder |= dict.fromkeys(used, at)
        elif isinstance(i, CallKernel):
            used = {r[:2] for r in i.regions if r[:2] not in i.buffers}
            used |= {(_BUFFER, slot) for slot in i.buffers.values()}
            if program.streamed:
                used |= {("A", column) for column in own.between(i.first, i.last)}
        elif isinstance(i, StoreRows):
            used = [i.region[:2]]
        read |= {holder[name]: at for name in used if name in holder}
    held = [(spans[at, 0], max(spans[last, 1], spans[at, 1])) for at, last in read.items()]
    changes = [sizes[at] for at in read]
    found = _sum_of_changes(np.array(held).reshape(-1, 2), np.array(changes, np.float64))
    return StepFunction(found.times, found.values + run.fixed_bytes[worker])


def _buffered(message: Message, own: set[int]) -> list[MessagePart]:
    """Return what a message brings into its receiver's buffers: not values, nor its own columns."""
    return [
        part
        for part in message.parts
        if len(part.shape) == 2 and not (part.row is not None and part.region.index in own)
    ]


def _bytes(parts: Iterable[MessagePart], dtype: np.dtype) -> int:
    return sum(math.prod(part.shape) * np.dtype(part.dtype or dtype).itemsize for part in parts)


class LinkUse(NamedTuple):
    """Bytes that moved in intervals of equal length, all workers together.

    Attributes
    ----------
    between : numpy.ndarray, shape (intervals,)
        From worker to worker.
    host : numpy.ndarray, shape (intervals,)
        Between workers and the user's array.
    """

    between: np.ndarray
    host: np.ndarray


def link_use(run: Recording) -> LinkUse:
    """Return the bytes that moved, evenly over the time of each transfer."""
    between, host = np.zeros(_INTERVALS), np.zeros(_INTERVALS)
    for program, spans in zip(run.programs, run.spans, strict=True):
        for i, span in zip(program.instructions, spans, strict=True):
            if isinstance(i, ReceiveMessage):
                _add(between, span, _bytes(run.messages[i.message].parts, run.dtype), run.seconds)
            elif isinstance(i, CopyRegion):
                size = math.prod(run.graph.shape(i.region)) * run.dtype.itemsize
                _add(host, span, size if span[1] > span[0] else 0, run.seconds)
    return LinkUse(between, host)


def _add(bins: np.ndarray, span: np.ndarray, size: int, seconds: float) -> None:
    """Add bytes to the intervals that a transfer covers, in proportion to its time there."""
    first, last = np.clip(span / max(seconds, 1e-30), 0.0, 1.0) * len(bins)
    cells = np.arange(min(int(first), len(bins) - 1), min(math.ceil(last), len(bins)))
    if not len(cells) or last <= first:
        bins[min(int(first), len(bins) - 1)] += size
        return
    inside = np.minimum(cells + 1, last) - np.maximum(cells, first)
    bins[cells] += size * inside / (last - first)
