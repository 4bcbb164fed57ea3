"""Reports of runs: plan, timing of each worker, losses."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from hetero_la.planning.plan import Plan
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.scheduler.run.job import Loss, Outcome

#: Names of the values of geqrf's `method`.
_METHODS = ("householder", "cholesky")


class WorkerTiming(NamedTuple):
    """Times and operations of one worker.

    Attributes
    ----------
    name, kind : str
        Name and device kind of the worker.
    calls : int
        Kernel calls; one may be for several tile columns.
    flops : float
        Real floating-point operations.
    busy : float
        Seconds in kernel calls; on a GPU, in issuing them.
    moving : float
        Seconds in loads, stores, and waiting for panels.
    """

    name: str
    kind: str
    calls: int
    flops: float
    busy: float
    moving: float


@dataclass(frozen=True)
class Timing:
    """Timing of a run, in seconds.

    Attributes
    ----------
    seconds : float
        The whole run.
    load, factor, store : float
        Loading the shards, factoring, and storing the results; loads and stores that overlap
        with factoring count as long as the slowest worker waited for them.
    workers : list of WorkerTiming
        Timing of each worker; if workers were lost, since the last loss.
    losses : tuple of Loss
        Workers that were lost during the run, and the step from which it continued.
    panels : tuple of str
        Method of each panel of a QR factorization: "householder" (column by column) or
        "cholesky" (CholeskyQR2); empty for other routines.
    """

    seconds: float
    load: float
    factor: float
    store: float
    workers: list[WorkerTiming]
    losses: tuple[Loss, ...] = ()
    panels: tuple[str, ...] = ()

    @classmethod
    def of(cls, seconds: float, plan: Plan, outcome: Outcome) -> Timing:
        """Sum up the logs of a run that took so many seconds."""
        rows, load, store = [], 0.0, 0.0
        for index, log in sorted(outcome.logs.items()):
            spent: defaultdict[str, float] = defaultdict(float)
            instructions, worker = plan.programs[index].instructions, plan.workers[index]
            for entry in log:
                spent[instructions[entry.place].op] += entry.stop - entry.start
            calls = plan.programs[index].select(CallKernel)
            busy = spent.pop("call", 0.0)
            load, store = max(load, spent["load"]), max(store, spent["store"])
            flops = sum(i.flops for i in calls) * (4 if plan.dtype.kind == "c" else 1)
            count = sum(i.times for i in calls)
            moving = sum(spent.values())
            rows.append(WorkerTiming(worker.name, worker.kind, count, flops, busy, moving))
        factor = max(seconds - load - store, 0.0)
        methods = sorted(
            (key[1], int(v[0])) for key, v in outcome.values.items() if key[0] == "method"
        )
        panels = tuple(_METHODS[method] for _, method in methods)
        return cls(seconds, load, factor, store, rows, tuple(outcome.losses), panels)

    def __str__(self) -> str:
        lines = [
            f"{'worker':<10}{'kind':<6}{'calls':>7}{'Gflop':>12}{'busy s':>10}{'moving s':>10}"
        ]
        lines += [
            f"{w.name:<10}{w.kind:<6}{w.calls:>7}{w.flops / 1e9:>12.3f}{w.busy:>10.3f}"
            f"{w.moving:>10.3f}"
            for w in self.workers
        ]
        lines += [
            f"{loss.reason}; {', '.join(loss.workers)} went on from step {loss.step}"
            for loss in self.losses
        ]
        counts = Counter(self.panels)
        if counts:
            lines.append(
                "panels: " + ", ".join(f"{count} by {name}" for name, count in counts.items())
            )
        return "\n".join(lines)


class Report(NamedTuple):
    """Plan and timing of a run."""

    plan: Plan
    timing: Timing
