"""Timelines of runs: recorded, and split into work and waiting."""

from __future__ import annotations

import contextlib
import functools
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hetero_la.planning.plan import Plan
from hetero_la.scheduler.program.own_columns import OwnColumns
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.trace import WorkerTrace, align_clocks, send_times, split_time

_active: list[Recorder] = []
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

        The parts are those of `hetero_la.scheduler.run.trace.split_time`.
        """
        sent = send_times(self.workers, self.plan.programs)
        return [
            split_time(trace, program, self.began, self.ended, sent)
            for trace, program in zip(self.workers, self.plan.programs, strict=True)
        ]


class Recorder:
    """Collect the traced runs of a block.

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

    def __len__(self) -> int:
        return len(self._runs) + len(self._unread)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Take in the runs of the block, of all threads of this process."""
        _active.append(self)
        try:
            yield
        finally:
            _active.remove(self)


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
            return TracedRun(plan, began, ended, align_clocks(found, hosts, platform.node(), ended))

        for opened in to:
            opened._add(read)
        return plan, outcome

    yield keep
