"""The timeline of a run that is predicted for a described machine."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from hetero_la.execution.timeline import TracedRun
from hetero_la.pictures.runs.tracks import bounds
from hetero_la.planning.plan import Plan
from hetero_la.predict.forecast_run import forecast_run, require_timeline
from hetero_la.predict.scaling import FACTORIZATIONS, forecast
from hetero_la.scheduler.program.instructions import CallKernel, ReceiveMessage, SendMessage
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.run.trace import WorkerTrace

CASES = [
    ((16384, 16384), 1024, 4, 1),
    ((16384, 16384), 512, 8, 2),
    ((10000, 10000), 512, 5, 0),
    ((9000, 9000), "8x1024+512", 1, 2),
    ((3000, 3000), 512, 8, 1),
]


@functools.cache
def sends(run: TracedRun) -> dict[MessageKey, int]:
    """The place of each message's send in its sender's program."""
    return {
        i.message: at
        for program in run.plan.programs
        for at, i in enumerate(program.instructions)
        if isinstance(i, SendMessage)
    }


def calls_of(plan: Plan, worker: int, trace: WorkerTrace, queue: int) -> np.ndarray:
    """Begin and end of a worker's calls on one queue."""
    instructions = plan.programs[worker].instructions
    places = [
        at for at, i in enumerate(instructions) if isinstance(i, CallKernel) and i.queue == queue
    ]
    return trace.spans[places]


@pytest.mark.parametrize("routine", FACTORIZATIONS)
@pytest.mark.parametrize(("shape", "nb", "gpus", "depth"), CASES)
def test_the_timeline_is_that_of_the_prediction(
    routine: str, shape: tuple[int, int], nb: int | str, gpus: int, depth: int
) -> None:
    found = forecast(routine, shape, "dgx-h200", gpus, nb=nb, lookahead=depth)
    run = forecast_run(found)
    assert run.predicted
    assert run.seconds == found.seconds
    assert max(trace.end for trace in run.workers) == pytest.approx(found.seconds)
    assert run.plan.lookahead == depth
    for worker, trace in enumerate(run.workers):
        assert (trace.spans[:, 0] <= trace.spans[:, 1]).all()
        for queue in range(4):
            spans = calls_of(run.plan, worker, trace, queue)
            assert (spans[1:, 0] >= spans[:-1, 1] - 1e-12).all()
    limits = bounds(run.recording)
    assert 0 < limits.work <= run.seconds * (1 + 1e-12)
    assert 0 < limits.path <= run.seconds * (1 + 1e-12)


@pytest.mark.parametrize("routine", FACTORIZATIONS)
@pytest.mark.parametrize(("shape", "gpus"), [((20000, 12000), 4), ((9000, 15000), 8)])
def test_no_call_begins_before_what_it_reads_is_there(
    routine: str, shape: tuple[int, int], gpus: int
) -> None:
    square = (shape[1], shape[1])
    of = square if routine == "cholesky" else shape
    run = forecast_run(forecast(routine, of, "dgx-h200", gpus, nb=1024))
    programs, traces = run.plan.programs, run.workers
    received = 0
    for program, trace in zip(programs, traces, strict=True):
        for at, call in enumerate(program.instructions):
            for before in call.waits if isinstance(call, CallKernel) else ():
                taken = program.instructions[before]
                if isinstance(taken, ReceiveMessage) and taken.step == call.step:
                    offered = traces[taken.message.source].spans[sends(run)[taken.message], 1]
                    assert offered <= trace.spans[before, 0]
                    assert trace.spans[before, 1] <= trace.spans[at, 0] + 1e-12
                    received += 1
    assert received > gpus
    here, spans, calls = run.plan.placement, run.recording.task_spans, run.recording.calls
    for task in run.plan.graph.tasks:
        for before in task.after:
            if here[before] == here[task.index] and calls[before] != calls[task.index]:
                assert spans[before, 1] <= spans[task.index, 0] + 1e-12


def test_its_title_says_of_which_machine() -> None:
    run = forecast_run(forecast("qr", (8192, 8192), "dgx-h200", 2, nb=1024))
    assert run.recording.title == ("QR of 8192 × 8192, tiles of 1024, 2 GPUs of DGX H200")


def test_what_is_too_large_is_refused_in_one_sentence() -> None:
    found = forecast("qr", (60000, 60000), "dgx-h200-x128", 4, nb=1024)
    with pytest.raises(ValueError, match="a timeline has room for 128 GPUs, not for 129"):
        require_timeline(dataclasses.replace(found, gpus=129))
    large = forecast("qr", (200000, 200000), "dgx-h200-x128", 64, nb=512)
    with pytest.raises(ValueError, match=r"tasks, of which at most 2e\+05 are shown in a timeline"):
        forecast_run(large)
