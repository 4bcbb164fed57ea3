"""What the page holds of a run: its calls, and all that its timeline shows, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_la.pictures.palette import LOADING, OTHER, family, text_on
from hetero_la.pictures.runs.recording import Recording
from hetero_la.pictures.runs.tracks import (
    bounds,
    link_use,
    memory,
    ready_tasks,
    running_tasks,
    step_spans,
)
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.tiles.kernels.device import Queue

#: Names of a worker's rows: its queues, and the tasks in which its thread worked.
ROWS = (*(queue.name.lower() for queue in Queue), "tasks")
_TASKS, _LOADING = "task", "loading kernels"


def run_description(run: Recording) -> dict[str, Any]:
    """Return what is one value, or a few, of a run."""
    limits = bounds(run)
    return {
        "title": run.title, "summary": run.summary, "predicted": run.predicted,
        "seconds": run.seconds, "workers": list(run.workers), "rows": ROWS,
        "work": limits.work, "path": limits.path, "peak": list(map(int, run.peak_bytes)),
        "kinds": [{"name": name, "colour": _colour(name), "ink": text_on(_colour(name))}
                  for name in _names(run)],
        "parts": run.parts(),
    }  # fmt: skip


def _names(run: Recording) -> list[str]:
    """Return the names of all that is drawn as a box: kernels, other instructions, tasks."""
    every = (i.name for program in run.programs for i in program.instructions)
    return list(dict.fromkeys([*every, _TASKS, _LOADING]))


def _colour(name: str) -> str:
    return {_LOADING: LOADING, _TASKS: OTHER.colour}.get(name, family(name).colour)


def run_arrays(run: Recording, *, tasks: bool) -> dict[str, np.ndarray]:
    """Return boxes and tracks of a run; with `tasks`, the box of each task as well.

    A box has a row (four for each worker), the place of its name, step, first and last column,
    begin and end, and the number of its first task, or -1.  Arrays over time come in pairs, as
    those of `tracks.StepFunction`.
    """
    boxes, place = _boxes(run, tasks=tasks)
    ints, times = boxes
    order = np.lexsort((times[:, 0], ints[:, 0]))  # by row, then by time
    columns = ("row", "name", "boxStep", "first", "last", "boxTask")
    found = dict(zip(columns, ints[order].T.astype(np.int32), strict=True))
    found["begin"], found["end"] = times[order].T
    if tasks:
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        found["taskBox"] = rank[[place[call] for call in run.calls]]
    found["steps"] = step_spans(run).ravel()
    for name, track in (("ready", ready_tasks(run)), ("running", running_tasks(run))):
        found |= {f"{name}Times": track.times, f"{name}": track.values}
    used = [memory(run, worker) for worker in range(len(run.workers))]
    found["memoryAt"] = np.cumsum([0, *(len(track.times) for track in used)]).astype(np.int32)
    found["memoryTimes"] = _joined([track.times for track in used])
    found["memory"] = _joined([track.values for track in used])
    found["between"], found["host"] = link_use(run)
    return found


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *parts])


def _boxes(
    run: Recording, *, tasks: bool
) -> tuple[tuple[np.ndarray, np.ndarray], dict[tuple[int, int], int]]:
    """Return integers and times of each box, and the number of that of each instruction."""
    names = {name: number for number, name in enumerate(_names(run))}
    ints: list[tuple[int, ...]] = []
    times: list[tuple[float, float]] = []
    place: dict[tuple[int, int], int] = {}
    firsts: dict[tuple[int, int], int] = {}
    for task, call in enumerate(run.calls if tasks else []):
        firsts.setdefault(call, task)
    for worker, (program, trace) in enumerate(zip(run.programs, run.traces, strict=True)):
        row = len(ROWS) * worker
        spans = run.spans[worker].tolist()
        for at, (i, span) in enumerate(zip(program.instructions, spans, strict=True)):
            columns = (i.first, i.last) if isinstance(i, CallKernel) else (-1, -1)
            place[worker, at] = len(ints)
            task = firsts.get((worker, at), -1)
            ints.append((row + int(i.queue), names[i.name], i.step, *columns, task))
            times.append(tuple(span))
        for name, intervals in ((_TASKS, trace.windows), (_LOADING, trace.loading)):
            for begin, end in (intervals - run.began).tolist():
                ints.append((row + len(ROWS) - 1, names[name], -1, -1, -1, -1))
                times.append((begin, end))
    return (np.array(ints, np.int64).reshape(-1, 6), np.array(times).reshape(-1, 2)), place
