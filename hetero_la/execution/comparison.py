"""Comparison of predicted and measured times of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hetero_la.algorithms.routines import title_of
from hetero_la.execution.timeline import TracedRun
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.program.instructions import CallKernel, Program, SendMessage
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.arrays.displayed import as_html, one_line


class Compared(NamedTuple):
    """Predicted and measured seconds of one kind of work, or of one worker.

    Attributes
    ----------
    name : str
        Name of the kernel, of another instruction, or of the worker.
    calls : int
        Number of calls.
    predicted, measured : float
        Total seconds.
    """

    name: str
    calls: int
    predicted: float
    measured: float

    def __repr__(self) -> str:
        return one_line("Compared", self.name, *self.texts)

    @property
    def texts(self) -> tuple[str, str]:
        """The two times in words."""
        predicted, measured = in_seconds(self.predicted), in_seconds(self.measured)
        return f"predicted {predicted}", f"measured {measured}"

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds; NaN if nothing was measured."""
        return self.predicted / self.measured if self.measured else float("nan")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Comparison of a run with its prediction.

    Attributes
    ----------
    run : Compared
        The whole run, from before its first task until after its last.
    workers, idle : list of Compared
        For each worker, the time in which it computes, and the rest of the run.
    kernels : list of Compared
        For each kernel and each other instruction, over all workers; the longest first.
    """

    run: Compared
    workers: list[Compared]
    idle: list[Compared]
    kernels: list[Compared]

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return one_line("Comparison", self.run.name, *self.run.texts)

    def rows(self) -> list[tuple[str, Compared]]:
        """Return all that is compared, by name: the run, kernels, workers."""
        rows = [(self.run.name, self.run), *((row.name, row) for row in self.kernels)]
        for busy, idle in zip(self.workers, self.idle, strict=True):
            rows += [(f"{busy.name} computing", busy), (f"{busy.name} idle", idle)]
        return rows

    def __str__(self) -> str:
        lines = [f"{'':<22}{'calls':>7}{'predicted':>11}{'measured':>11}{'ratio':>8}"]
        for name, row in self.rows():
            ratio = "-" if np.isnan(row.ratio) else f"{row.ratio:.3f}"
            predicted, measured = in_seconds(row.predicted), in_seconds(row.measured)
            lines.append(f"{name:<22}{row.calls:>7}{predicted:>11}{measured:>11}{ratio:>8}")
        return "\n".join(lines)


def compare(run: TracedRun, plan: Plan) -> Comparison:
    """Compare a traced run with the prediction of a plan for the same problem."""
    simulated = plan.simulate()
    predicted = [np.column_stack(s) for s in zip(simulated.start, simulated.stop, strict=True)]
    measured = [trace.spans for trace in run.workers]
    there, here = _by_kind(plan.programs, predicted), _by_kind(run.plan.programs, measured)
    none = (0, 0.0)
    kernels = [
        Compared(kind, here.get(kind, none)[0], there.get(kind, none)[1], here.get(kind, none)[1])
        for kind in {**there, **here}
    ]
    workers, idle = [], []
    for at, (worker, parts) in enumerate(zip(plan.workers, run.parts(), strict=True)):
        calls = sum(call.times for call in run.plan.programs[at].select(CallKernel))
        busy = parts["computing"]
        workers.append(Compared(worker.name, calls, float(simulated.computing[at]), busy))
        idle.append(Compared(worker.name, 0, float(simulated.idle[at]), run.seconds - busy))
    return Comparison(
        Compared(f"{title_of(plan.routine)}, the run", 1, simulated.makespan, run.seconds),
        workers, idle,
        sorted(kernels, key=lambda row: -max(row.predicted, row.measured)),
    )  # fmt: skip


def _by_kind(programs: list[Program], spans: list[np.ndarray]) -> dict[str, tuple[int, float]]:
    """Sum up calls and seconds by kernel, or by the kind of other instructions."""
    found: dict[str, tuple[int, float]] = {}
    for program, times in zip(programs, spans, strict=True):
        lengths = (times[:, 1] - times[:, 0]).tolist()
        for instruction, seconds in zip(program.instructions, lengths, strict=True):
            if isinstance(instruction, SendMessage):  # it only offers a message, and takes no time
                continue
            calls, spent = found.get(instruction.name, (0, 0.0))
            calls += instruction.times if isinstance(instruction, CallKernel) else 1
            found[instruction.name] = calls, spent + seconds
    return found
