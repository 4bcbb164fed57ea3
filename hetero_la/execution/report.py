"""Reports of runs: plan, timing of each worker, losses."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.machine.model import Source
from hetero_la.scheduler.placement.workers import calling_thread, workers_text
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.scheduler.run.job import Loss, Outcome
from hetero_la.scheduler.run.trace import LogEntry
from hetero_la.tiles.arrays.counted import counted, in_seconds, in_units
from hetero_la.tiles.arrays.displayed import as_html, one_line

#: Names of the values of geqrf's `method`.
_METHODS = ("householder", "cholesky")


class WorkerTiming(NamedTuple):
    """Times and operations of one worker.

    Attributes
    ----------
    name, kind : str
        Name and device kind of the worker: "cpu", "gpu" or "virtual gpu".
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

    def __repr__(self) -> str:
        return one_line(
            "WorkerTiming", self.name, counted(self.calls, "call"), f"{self.flops / 1e9:.3g} Gflop",
            f"busy {in_seconds(self.busy)}", f"moving {in_seconds(self.moving)}",
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Timing:
    """Timing of a run, in seconds.

    Attributes
    ----------
    seconds : float
        The whole run; of a host matrix on a GPU of the calling thread, with the copies there and
        back.
    load, factor, store : float
        Loading the shards, factoring, and storing the results; loads and stores that overlap
        with factoring count as long as the slowest worker waited for them.  Those copies count
        as load and store.
    workers : list of WorkerTiming
        Timing of each worker; if workers were lost, since the last loss.
    losses : tuple of Loss
        Workers that were lost during the run, and the step from which it continued.
    panels : tuple of str
        Method of each panel of a QR factorization: "householder" (column by column) or
        "cholesky" (CholeskyQR2); empty for other routines.
    plan : Plan
        Plan of the run.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> timing = hetero_la.lu_factor(np.eye(300), nb=100).timing
    >>> timing.seconds >= timing.factor > 0
    True
    >>> [worker.calls for worker in timing.workers]  # of kernels
    [...]
    """

    seconds: float
    losses: tuple[Loss, ...]
    panels: tuple[str, ...]
    plan: Plan
    _logs: dict[int, list[LogEntry]]
    _copies: tuple[float, float] = (0.0, 0.0)

    _repr_html_ = as_html

    def __repr__(self) -> str:
        lost = f"workers lost {counted(len(self.losses), 'time')}" if self.losses else ""
        return one_line("Timing", in_seconds(self.seconds), workers_text(self.plan.workers), lost)

    @classmethod
    def of(cls, seconds: float, plan: Plan, outcome: Outcome) -> Timing:
        """Return the timing of a run that took so many seconds."""
        methods = sorted(
            (key[1], int(v[0])) for key, v in outcome.values.items() if key[0] == "method"
        )
        panels = tuple(_METHODS[method] for _, method in methods)
        return cls(seconds, tuple(outcome.losses), panels, plan, outcome.logs)

    # The logs are summed up at the first access: most runs are over before that would be.

    @property
    def load(self) -> float:
        """Seconds in loads of the worker that waited for them longest."""
        return self._copies[0] + max((each["load"] for each in self._spent.values()), default=0.0)

    @property
    def store(self) -> float:
        """Seconds in stores of the worker that waited for them longest."""
        return self._copies[1] + max((each["store"] for each in self._spent.values()), default=0.0)

    @property
    def factor(self) -> float:
        """Seconds that are left without loads and stores."""
        return max(self.seconds - self.load - self.store, 0.0)

    @functools.cached_property
    def workers(self) -> list[WorkerTiming]:
        """Timing of each worker."""
        plan, rows = self.plan, []
        for index, spent in self._spent.items():
            program, worker = plan.programs[index], plan.workers[index]
            calls = program.select(CallKernel)
            flops = sum(program.call_flops(plan.graph).values())
            rows.append(
                WorkerTiming(
                    worker.name,
                    worker.kind_text,
                    calls=sum(call.times for call in calls),
                    flops=flops * (4 if plan.dtype.kind == "c" else 1),
                    busy=spent["call"],
                    moving=sum(seconds for op, seconds in spent.items() if op != "call"),
                )
            )
        return rows

    @functools.cached_property
    def _spent(self) -> dict[int, defaultdict[str, float]]:
        """Each worker's seconds in each kind of instruction."""
        found = {}
        for index, log in sorted(self._logs.items()):
            found[index] = spent = defaultdict[str, float](float)
            instructions = self.plan.programs[index].instructions
            for entry in log:
                spent[instructions[entry.place].op] += entry.stop - entry.start
        return found

    def panels_text(self) -> str:
        """Return how many panels of a QR factorization were factored by which method."""
        counts = Counter(self.panels)
        return ", ".join(f"{count} by {name}" for name, count in counts.items())

    def losses_text(self) -> list[str]:
        """Return a line for each time at which workers were lost."""
        return [
            f"{loss.reason}; {', '.join(loss.workers)} went on from step {loss.step}"
            for loss in self.losses
        ]

    def __str__(self) -> str:
        room = max([10, *(len(w.name) + 2 for w in self.workers)])
        lines = [
            f"{'worker':<{room}}{'kind':<13}{'calls':>6}{'work':>12}{'busy':>10}{'moving':>10}"
        ]
        lines += [
            f"{w.name:<{room}}{w.kind:<13}{w.calls:>6}{in_units(w.flops, 'flop'):>12}"
            f"{in_seconds(w.busy):>10}{in_seconds(w.moving):>10}"
            for w in self.workers
        ]
        lines += self.losses_text()
        if self.panels:
            lines.append(f"panels: {self.panels_text()}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MixedOutcome:
    """What came of `precision="mixed"`.

    Attributes
    ----------
    factored : str
        The dtype in which the matrix was factored in the end: the lower one, unless there was a
        reason to fall back.
    steps : int
        Steps of refinement: residuals that were computed, and corrections.
    inner_steps : int
        Steps of GMRES within them.
    fallback : str
        Why the matrix was factored in its own precision; empty if it was not.

    Examples
    --------
    >>> import numpy as np, hetero_la
    >>> a, b = np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([3.0, 4.0])
    >>> x, report = hetero_la.solve(a, b, precision="mixed", report=True)
    >>> report.mixed.factored, report.mixed.fallback
    ('float64', 'full precision is predicted to be as fast')
    """

    factored: str
    steps: int = 0
    inner_steps: int = 0
    fallback: str = ""

    def __str__(self) -> str:
        if self.fallback:
            return f"factored in {self.factored}: {self.fallback}"
        inner = f", {counted(self.inner_steps, 'step')} of GMRES" if self.inner_steps else ""
        steps = f"{counted(self.steps, 'step')} of refinement{inner}"
        return f"factored in {self.factored}, {steps}"


class Report:
    """Plan and timing of a run; iterates over the two.

    Parameters
    ----------
    plan : Plan
        How the run was planned.
    timing : Timing
        How it went.

    Attributes
    ----------
    mixed : MixedOutcome or None
        What came of `precision="mixed"`, where that was asked for.  Plan and workers' times are
        then those of the last factorization, and `timing.seconds` are those of the whole call.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> x, report = hetero_la.solve_with_report(np.eye(300) * 2, np.ones(300))
    >>> report.plan.layout.nb
    300
    >>> plan, timing = report
    """

    #: Seconds of the whole, and of the copies to a GPU and back, if the arrays are on the host.
    _copied: tuple[float, float, float] | None = None

    #: What came of `precision="mixed"`, where that was asked for.
    mixed: MixedOutcome | None = None

    def __init__(self, plan: Plan, timing: Timing) -> None:
        self._made = plan, timing

    _repr_html_ = as_html

    def __repr__(self) -> str:
        seconds = self.known_seconds
        return one_line("Report", self.title, "" if seconds is None else in_seconds(seconds))

    @property
    def title(self) -> str:
        """What was computed."""
        return self.plan.title

    @property
    def known_seconds(self) -> float | None:
        """How long the run took; None if only a GPU knows, which has not been asked yet."""
        return self.timing.seconds

    @property
    def plan(self) -> Plan:
        """How the run was planned."""
        return self._made[0]

    @property
    def timing(self) -> Timing:
        """How it went."""
        timing = self._made[1]
        if self._copied is None:
            return timing
        seconds, there, back = self._copied
        return replace(timing, seconds=seconds, _copies=(there, back))

    def include_copies(self, seconds: float, there: float, back: float) -> None:
        """Let the timing be that of the whole call, of which some seconds were copies."""
        self._copied = seconds, there, back

    def __iter__(self) -> Iterator[Any]:
        return iter((self.plan, self.timing))


class UnplannedReport(Report):
    """Report of a run by one call, whose plan is made when it is asked for: that of one tile.

    Parameters
    ----------
    problem : Problem
        What was computed.
    source : Source
        Memory order of the matrix.
    seconds : float, or callable
        How long it took; if callable, that is asked for then.
    gpu : int, optional
        The GPU on which it ran.
    """

    def __init__(
        self, problem: Problem, source: Source, seconds: float | Callable[[], float],
        gpu: int | None = None,
    ) -> None:  # fmt: skip
        self._run = problem, source, seconds, gpu

    @property
    def title(self) -> str:
        """What was computed."""
        return self._run[0].title

    @property
    def known_seconds(self) -> float | None:
        """How long the call took; None if only a GPU knows, which has not been asked yet."""
        if self._copied is not None or "_made" in self.__dict__:
            return self.timing.seconds if self._copied is None else self._copied[0]
        _, _, seconds, _ = self._run
        return None if callable(seconds) else seconds

    def _seconds(self) -> float:
        _, _, seconds, _ = self._run
        return seconds() if callable(seconds) else seconds

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, in which the time is a number."""
        problem, source, _, gpu = self._run
        run = problem, source, self._seconds(), gpu
        return {"_run": run, "_copied": self._copied, "mixed": self.mixed}

    @functools.cached_property
    def _made(self) -> tuple[Plan, Timing]:  # type: ignore[override]
        problem, source, _, gpu = self._run
        seconds = self._seconds()
        one = Options(nb=max(problem.m, problem.n, problem.nrhs))
        plan = make_plan(problem, one, (calling_thread(gpu=gpu),), Given(source=source))
        places = plan.programs[0].instructions
        call = next(place for place, i in enumerate(places) if isinstance(i, CallKernel))
        log = [LogEntry(call, 0.0, seconds)]
        panels = _METHODS[:1] if ("method", 0) in plan.programs[0].values else ()
        return plan, Timing(seconds, (), panels, plan, {0: log})
