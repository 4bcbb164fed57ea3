"""Timelines of runs: recorded, split into work and waiting, written and drawn."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetero_la.comparison import Comparison, compare
from hetero_la.plan import Plan
from hetero_la.scheduler.job import Job, Outcome
from hetero_la.scheduler.own_columns import OwnColumns
from hetero_la.scheduler.trace import PARTS, WorkerTrace, aligned, sent_at, split
from hetero_la.tiles.counted import counted

_active: list[Trace] = []
#: Unread runs hold a GPU's events, one or two for each instruction.
_MOST_UNREAD = 16


@dataclass(frozen=True, eq=False)
class TracedRun:
    """One run of a plan.

    Attributes
    ----------
    plan : Plan
        What was run.
    began, ended : float
        From before its first task to after its last, in seconds of `time.perf_counter`.
    workers : list of WorkerTrace
        What each worker did, in the plan's order.
    """

    plan: Plan
    began: float
    ended: float
    workers: list[WorkerTrace]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    def calls(self) -> list[tuple[int, int]]:
        """Of each task of the plan's graph, the worker and the place of the call that did it.

        A call does the tasks of several adjacent columns.
        """
        graph = self.plan.graph
        exactly = {(t.kind, t.step, t.column, t.accesses): t.index for t in graph.tasks}
        nearly = {(t.kind, t.step, t.column): t.index for t in graph.tasks}
        found = [(-1, -1)] * len(graph)
        for worker, program in enumerate(self.plan.programs):
            own = OwnColumns(program.columns, graph.layout)
            for place, i in enumerate(program.instructions):
                if i.op != "call":
                    continue
                found[exactly[i.kind, i.step, i.first, i.regions]] = worker, place
                # Columns between those of this worker are others'.
                for column in own.between(i.first + 1, i.last):
                    found[nearly[i.kind, i.step, column]] = worker, place
        return found

    def parts(self) -> list[dict[str, float]]:
        """Where each worker's time went, in seconds; its parts add up to the run.

        The parts are those of `hetero_la.scheduler.trace.split`.
        """
        sent = sent_at(self.workers, self.plan.programs)
        return [
            split(trace, program, self.began, self.ended, sent)
            for trace, program in zip(self.workers, self.plan.programs, strict=True)
        ]


class Trace:
    """What the runs within ``with hetero_la.trace() as t:`` did when.

    Parameters
    ----------
    runs : sequence of TracedRun, optional
        Runs that it has from the beginning.
    """

    def __init__(self, runs: Sequence[TracedRun] = ()) -> None:
        self._runs = list(runs)
        self._unread: list[Callable[[], TracedRun]] = []
        self._reading = threading.Lock()

    @property
    def runs(self) -> list[TracedRun]:
        """The runs that have ended, in that order.

        One call may make several: `solve` on GPUs finds the condition, and refines, by
        further runs.  What was measured is put together when it is asked for, so that runs
        need not wait; only where many are unread, the next one waits for the first of these.
        """
        self._read(0)
        return self._runs

    def _read(self, unread: int) -> None:
        """Read the first runs, but for so many."""
        with self._reading:
            while len(self._unread) > unread:
                self._runs.append(self._unread[0]())
                del self._unread[0]

    def _add(self, read: Callable[[], TracedRun]) -> None:
        """Take in one more run, which `read` gives."""
        self._unread.append(read)
        with contextlib.suppress(Exception):  # whoever asks for the runs is told; this one is well
            self._read(_MOST_UNREAD)

    def __repr__(self) -> str:
        return f"<Trace of {counted(len(self._runs) + len(self._unread), 'run')}>"

    def __str__(self) -> str:
        head = f"{'worker':<10}" + "".join(f"{part:>21}" for part in PARTS) + f"{'run':>10}"
        lines = []
        for run in self.runs:
            lines += [f"{run.plan.routine}: seconds", head]
            for worker, parts in zip(run.plan.workers, run.parts(), strict=True):
                cells = "".join(f"{parts[part]:>21.4f}" for part in PARTS)
                lines.append(f"{worker.name:<10}{cells}{run.seconds:>10.4f}")
        return "\n".join(lines) or "no run was traced"

    def compare(self, plan: Plan | None = None) -> Comparison:
        """What was predicted of a run, beside what it took.

        Parameters
        ----------
        plan : Plan, optional
            For the problem of one of the runs (of several, the last) and as many workers;
            by default the plan of the run that took longest.

        Returns
        -------
        Comparison
            Per kernel, per worker, and of the whole run; as text, a table.

        Raises
        ------
        ValueError
            If no such run was traced.

        Examples
        --------
        >>> import numpy as np
        >>> import hetero_la
        >>> with hetero_la.trace() as t:
        ...     _ = hetero_la.lu_factor(np.random.default_rng(0).random((300, 300)), nb=100)
        >>> [row.name for row in t.compare().workers]
        ['caller']
        """
        if not self.runs:
            raise ValueError("no run was traced: there is nothing to compare")
        if plan is None:
            run = max(self.runs, key=lambda run: run.seconds)
            return compare(run, run.plan)
        fitting = [run for run in self.runs if _problem(run.plan) == _problem(plan)]
        if not fitting:
            of = ", ".join(dict.fromkeys(_problem(run.plan) for run in self.runs))
            raise ValueError(f"the plan is for {_problem(plan)}, and what was traced is {of}")
        return compare(fitting[-1], plan)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline; the suffix says how.

        Parameters
        ----------
        path : path
            ``.json`` for Perfetto and Chrome's tracing page, with arrows where messages
            travel; ``.svg``, ``.png`` (with the extra `viz`) or ``.html`` for a chart.

        Raises
        ------
        ValueError
            For another suffix, for ``.png`` where Matplotlib is missing, and if no run
            was traced.
        """
        from hetero_la.pictures.timelines import require_suffix

        write = require_suffix(path)
        if not self.runs:
            raise ValueError("no run was traced: there is nothing to write")
        write(self.runs, Path(path))


def _problem(plan: Plan) -> str:
    layout = plan.layout
    size = f"{layout.m} x {layout.n} + {layout.nrhs}"
    return (
        f"{plan.routine} of {size} in {plan.dtype.name} on {counted(len(plan.workers), 'worker')}"
    )


@contextlib.contextmanager
def trace() -> Iterator[Trace]:
    """Record what the runs of the block do when.

    On a CPU the times are those of its thread, on a GPU those of its queues, by CUDA
    events; all on one clock.  Runs of other threads of this process are recorded too.

    Yields
    ------
    Trace
        Filled as the runs end.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> with hetero_la.trace() as t:
    ...     _ = hetero_la.lu_factor(np.random.default_rng(0).random((200, 200)), nb=50)
    >>> parts = t.runs[0].parts()[0]
    >>> abs(sum(parts.values()) - t.runs[0].seconds) < 1e-9
    True
    """
    opened = Trace()
    _active.append(opened)
    try:
        yield opened
    finally:
        _active.remove(opened)


@contextlib.contextmanager
def traced(job: Job) -> Iterator[Callable[[Plan, Outcome], tuple[Plan, Outcome]]]:
    """Let the open traces have the plan that was followed, and its outcome: the block keeps them.

    That plan is another one than the job's where workers were lost.
    """
    to = list(_active)
    job.traced = bool(to)
    began = time.perf_counter()

    def keep(plan: Plan, outcome: Outcome) -> tuple[Plan, Outcome]:
        ended, traces = time.perf_counter(), outcome.traces

        @functools.cache
        def read() -> TracedRun:
            hosts = [worker.host for worker in plan.workers]
            found = [traces[worker]() for worker in range(len(hosts))]
            return TracedRun(plan, began, ended, aligned(found, hosts, platform.node(), ended))

        for opened in to:
            opened._add(read)
        return plan, outcome

    yield keep
