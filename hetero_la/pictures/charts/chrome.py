"""Traced runs as events for Perfetto and Chrome's tracing page.

The format is Chrome's "Trace Event Format": a process for each worker, a thread for each
of its queues; times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hetero_la.algorithms.routines import title_of
from hetero_la.execution.timeline import TracedRun
from hetero_la.pictures.runs.page_data import ROWS
from hetero_la.scheduler.program.instructions import ReceiveMessage, SendMessage
from hetero_la.tiles.kernels.device import Queue

TASKS = len(Queue)  #: the thread that shows Dask's tasks


def chrome_events(runs: Sequence[TracedRun]) -> list[dict[str, Any]]:
    """Return all events of some runs; the first one begins at time 0.

    Examples
    --------
    >>> chrome_events([])
    []
    """
    origin = min((run.began for run in runs), default=0.0)
    names = {
        worker: info.name for run in runs for worker, info in enumerate(run.plan.workers)
    }  # follow-up runs have the same workers
    events = [
        _metadata_event("process_name", worker, 0, name) for worker, name in names.items()
    ] + [
        _metadata_event("thread_name", worker, row, text)
        for worker in names for row, text in enumerate(ROWS)
    ]  # fmt: skip
    for number, run in enumerate(runs):
        events += _slices(run, origin)
        events += _flows(run, origin, number)
    return events


def _metadata_event(what: str, worker: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": worker, "tid": row, "args": {"name": name}}


def _slice(
    name: str, category: str, worker: int, row: int, start: float, stop: float, **arguments: Any
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": category, "pid": worker, "tid": row,
        "ts": 1e6 * start, "dur": 1e6 * max(stop - start, 0.0), "args": arguments,
    }  # fmt: skip


def _slices(run: TracedRun, origin: float) -> Iterator[dict[str, Any]]:
    for worker, trace in enumerate(run.workers):
        program = run.plan.programs[worker]
        flops = program.call_flops(run.plan.graph)
        spans = enumerate(zip(program.instructions, trace.spans - origin, strict=True))
        for place, (instruction, (start, stop)) in spans:
            yield _slice(
                instruction.label, instruction.op, worker, int(instruction.queue),
                float(start), float(stop), step=instruction.step, flops=flops.get(place, 0.0),
            )  # fmt: skip
        for start, stop in trace.windows - origin:
            name = f"{title_of(run.plan.routine)} task"
            yield _slice(name, "task", worker, TASKS, float(start), float(stop))
        for start, stop in trace.loading - origin:
            name = "loading kernels"
            yield _slice(name, "loading", worker, TASKS, float(start), float(stop))


def messages(run: TracedRun) -> Iterator[tuple[int, int, int, int]]:
    """Yield sender, place of the send, receiver and place of the receive of each message."""
    sends = {
        instruction.message: (worker, place)
        for worker, program in enumerate(run.plan.programs)
        for place, instruction in enumerate(program.instructions)
        if isinstance(instruction, SendMessage)
    }
    for worker, program in enumerate(run.plan.programs):
        for place, instruction in enumerate(program.instructions):
            if isinstance(instruction, ReceiveMessage):
                yield *sends[instruction.message], worker, place


def _flows(run: TracedRun, origin: float, number: int) -> Iterator[dict[str, Any]]:
    """Yield the arrows from sends to receives."""
    for count, (source, sent, worker, taken) in enumerate(messages(run)):
        for phase, where, place in (("s", source, sent), ("f", worker, taken)):
            instruction = run.plan.programs[where].instructions[place]
            moment = float(run.workers[where].spans[place, 0]) - origin
            event = {
                "ph": phase, "id": f"{number}.{count}", "name": "message", "cat": "message",
                "pid": where, "tid": int(instruction.queue), "ts": 1e6 * moment,
            }  # fmt: skip
            yield {**event, "bp": "e"} if phase == "f" else event
