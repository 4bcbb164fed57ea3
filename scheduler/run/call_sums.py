"""What a worker's program has done before each of its instructions, for those who watch it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    CopyRegion,
    Instruction,
    Program,
    ReceiveMessage,
    SendMessage,
)
from hetero_la.scheduler.program.own_columns import OwnColumns
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.kernels.spec import SPECS, Role

#: Kinds of work; the rest of a worker's time it is idle.
WORK = ("panel", "update", "copying")


class CallSums(NamedTuple):
    """Sums over a program's instructions, each array of one more than there are of these.

    Attributes
    ----------
    kinds : list of str
        Kind of work of each instruction; empty for messages.
    flops : numpy.ndarray
        Floating-point operations (real arithmetic) of the calls before each instruction.
    steps : numpy.ndarray
        Steps without a call from this instruction on.
    sent, received : numpy.ndarray
        Messages sent, counted for each worker that gets one, and received before each instruction.
    """

    kinds: list[str]
    flops: np.ndarray
    steps: np.ndarray
    sent: np.ndarray
    received: np.ndarray

    @classmethod
    def of(cls, job: Job, worker: int, given: Mapping[Name, tuple[int, ...]]) -> CallSums:
        """Sum up a worker's program; `given` has the shapes of the values of an earlier run."""
        program = job.programs[worker]
        # What comes after the last panel, such as LU's last row swaps, is no step of its own.
        last = program.last_step + (program.last_step != job.layout.kt)
        steps, counts = [last], np.zeros((3, len(program.instructions) + 1))
        for place, one in enumerate(program.instructions, 1):
            if isinstance(one, SendMessage):
                counts[1, place] = len(job.messages[one.message].consumers)
            counts[2, place] = isinstance(one, ReceiveMessage)
        for place, flops in _call_flops(job, program, given).items():
            counts[0, place + 1] = flops
        for one in reversed(program.instructions):
            steps.append(min(steps[-1], one.step) if isinstance(one, CallKernel) else steps[-1])
        flops, sent, received = counts.cumsum(axis=1)
        return cls(
            [*map(_kind, program.instructions)], flops, np.array(steps[::-1]), sent, received
        )


def _kind(one: Instruction) -> str:
    if isinstance(one, CallKernel):
        return "panel" if SPECS[one.kind].role in (Role.PANEL, Role.INVERSE) else "update"
    return "copying" if isinstance(one, CopyRegion) else ""


def _call_flops(
    job: Job, program: Program, given: Mapping[Name, tuple[int, ...]]
) -> dict[int, float]:
    """Return what `Program.call_flops` does, for a worker, which has no graph."""
    layout, own = job.layout, OwnColumns(program.columns, job.layout)
    values = {name: shape for name, (shape, _) in program.values.items()} | dict(given)
    for message in job.messages.values():
        values |= {part.region[:2]: part.shape for part in message.parts if part.row is None}

    def shape(region: Region, first: int, width: int | None) -> tuple[int, ...]:
        if region[:2] in values:
            return values[region[:2]]
        columns = width if width and region.index == first else layout.column_width(region.index)
        return layout.row(region.stop) - layout.row(region.start), columns

    found = {}
    for place, call in enumerate(program.instructions):
        if isinstance(call, CallKernel):
            found[place] = sum(
                SPECS[call.kind].flops([shape(r, first, own.width(first, last)) for r in regions])
                for first, last, regions in call.kernel_calls()
            )
    return found
