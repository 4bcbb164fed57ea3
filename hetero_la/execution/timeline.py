"""Recording of timelines of runs, and their division into parts."""

from __future__ import annotations

import contextlib
import functools
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hetero_la.pictures.runs.recording import Recording, predicted_traces
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import workers_text
from hetero_la.scheduler.predict.simulate import Simulation
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.trace import WorkerTrace, align_clocks
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.arrays.displayed import as_html, one_line

_active: list[RunRecorder] = []
#: Maximum number of unread runs, which hold one or two GPU events for each instruction.
_MOST_UNREAD = 16


@dataclass(frozen=True, eq=False, repr=False)
class TracedRun:
    """Timeline of one run of a plan.

    Attributes
    ----------
    plan : Plan
        Plan of the run.
    began, ended : float
        Times before its first task and after its last one, in seconds of `time.perf_counter`.
    workers : list of WorkerTrace
        Trace of each worker, in the plan's order.
    predicted : bool
        Whether they are of a simulation.
    """

    plan: Plan
    began: float
    ended: float
    workers: list[WorkerTrace]
    predicted: bool = False

    _repr_html_ = as_html

    def __repr__(self) -> str:
        workers = workers_text(self.plan.workers)
        return one_line("TracedRun", self.plan.title, workers, in_seconds(self.seconds))

    @property
    def seconds(self) -> float:
        """Duration of the run."""
        return self.ended - self.began

    @functools.cached_property
    def recording(self) -> Recording:
        """The run as pictures show it."""
        return self.plan.recording(self.workers, self.began, self.ended, predicted=self.predicted)

    def parts(self) -> list[dict[str, float]]:
        """Divide each worker's time into parts, in seconds, which add up to the run.

        The parts are those of `hetero_la.scheduler.run.trace.split_time`.
        """
        return self.recording.parts()


def predicted_run(plan: Plan, run: Simulation) -> TracedRun:
    """Return the timeline that a simulation of a plan predicts, as if it had been recorded."""
    return TracedRun(plan, 0.0, run.makespan, predicted_traces(run), predicted=True)


def recording() -> bool:
    """Return whether a recorder waits for runs."""
    return bool(_active)


class RunRecorder:
    """Collector of the traced runs of a block.

    Parameters
    ----------
    runs : sequence of TracedRun, optional
        Initial runs.
    """

    def __init__(self, runs: Sequence[TracedRun] = ()) -> None:
        self._runs = list(runs)
        self._unread: list[Callable[[], TracedRun]] = []
        self._reading = threading.Lock()

    @property
    def runs(self) -> list[TracedRun]:
        """Traced runs that have ended, in that order.

        One call may make several: `solve` on GPUs estimates the condition, and refines, by further
        runs.  Measurements are evaluated when they are asked for, so that runs need not wait; only
        if many are unread, the next run waits for the first of them.
        """
        self._read(0)
        return self._runs

    def _read(self, unread: int) -> None:
        """Evaluate the first runs, until `unread` are left."""
        with self._reading:
            while len(self._unread) > unread:
                self._runs.append(self._unread[0]())
                del self._unread[0]

    def _add(self, read: Callable[[], TracedRun]) -> None:
        """Add a run, which `read` evaluates."""
        self._unread.append(read)
        with contextlib.suppress(Exception):  # `runs` raises it; the current run has succeeded
            self._read(_MOST_UNREAD)

    def __len__(self) -> int:
        return len(self._runs) + len(self._unread)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the runs of the block, of all threads of this process."""
        _active.append(self)
        try:
            yield
        finally:
            _active.remove(self)


@contextlib.contextmanager
def traced(job: Job) -> Iterator[Callable[[Plan, Outcome], tuple[Plan, Outcome]]]:
    """Trace the runs of `job` for the open recorders; yield a function that hands them over.

    The block calls it with the plan that was followed (another one than the job's if workers were
    lost) and its outcome.
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
