"""A run on very many GPUs, step by step instead of event by event.

The same program as `programs.build_programs` writes for each worker, without writing it:
in phase p the owner of tile column c = p + d (d: look-ahead) brings that column up to
date and factors panel c on its panel queue, and sends it; every worker applies step p to
the rest of its columns on its update queue.  So a phase is a few operations on arrays
over all workers, and a scalar one for the panel's owner, where two queues share a GPU
(`sharing`).  Left out, against `simulate`: the host's time to enqueue calls; that buffers
of received panels are few; and that a trailing update of the panel's own GPU can start
when the panel is done but not yet its inverse, and waits for the last look-ahead update
with the same panel.  `simulate` executes the real programs, and a test compares the two.

Beside each time stands what the longest chain of waits to it consists of (`PARTS`), so
that the parts of the last one add up to the makespan: they say what bounds the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.scheduler.graph.step_calls import StepCalls
from hetero_la.scheduler.graph.step_kernels import Call
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.cluster_model import ClusterModel
from hetero_la.scheduler.predict.path_time import (
    AHEAD,
    BEGINNING,
    END,
    LINKS,
    NETWORK,
    PANEL,
    PARTS,
    UPDATE,
    Arrival,
    Moment,
)
from hetero_la.scheduler.predict.sharing import PanelWork, Slowed, Work, beside, through
from hetero_la.scheduler.predict.trailing_updates import Phases
from hetero_la.tiles.storage.layout import TileLayout


@dataclass(frozen=True, eq=False)
class ScaledRun:
    """A predicted run on many GPUs; times in seconds.

    Attributes
    ----------
    makespan : float
        Time at which the last worker ends.
    parts : dict of str to float
        What the longest chain of waits consists of (`PARTS`): they add up to the makespan.
    busy : numpy.ndarray, shape (workers,)
        Kernel time of each worker, as if each ran alone.
    bytes_moved : int
        Bytes that came from one worker to another.
    """

    makespan: float
    parts: dict[str, float]
    busy: np.ndarray
    bytes_moved: int


def simulate_at_scale(
    build: Callable[[TileLayout], TaskGraph],
    layout: TileLayout,
    machine: ClusterModel,
    gpus: int,
    *,
    depth: int = 1,
    dtype: Any = np.float64,
) -> ScaledRun:
    """Predict a factorization on many GPUs, columns distributed beforehand.

    Parameters
    ----------
    build : callable
        Builder of the factorization's graph.
    layout : TileLayout
        The matrix.
    machine : ClusterModel
        What it runs on.
    gpus : int
        How many of its GPUs, the first ones.
    depth : int, optional
        Look-ahead.
    dtype : dtype, optional
        Element type.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> from hetero_la.scheduler.machine.device import H200
    >>> from hetero_la.scheduler.machine.cluster_model import Fabric
    >>> link = Fabric(1e-5, 396e9)
    >>> machine = ClusterModel("four", H200, 141e9, 4, 1, link, link)
    >>> run = simulate_at_scale(lu_tasks, TileLayout(65536, 65536, 1024), machine, 4)
    >>> bool(0.9 < run.makespan < 1.5 and abs(sum(run.parts.values()) - run.makespan) < 1e-9)
    True
    """
    if not 0 < gpus <= machine.gpus:
        raise ValueError(f"{machine.name} has {machine.gpus} GPUs, and not {gpus}")
    return _Run(StepCalls(build, layout), machine, gpus, depth, np.dtype(dtype)).finish()


class _Run:
    """State of the recurrence."""

    def __init__(
        self, steps: StepCalls, machine: ClusterModel, gpus: int, depth: int, dtype: np.dtype
    ) -> None:
        self.steps, self.machine, self.depth, self.dtype = steps, machine, depth, dtype
        self.kt, self.nt = steps.layout.kt, steps.layout.nt
        self.team = np.arange(gpus)
        self.phases = Phases(steps, gpus, depth, self.seconds)
        self.done = np.zeros(gpus)  # when the update queue is
        self.parts = np.zeros((gpus, len(PARTS)))
        self.copied = np.zeros(gpus)  # when the copy queue is
        self.busy = np.zeros(gpus)
        self.bytes_moved = 0
        self.arrivals: dict[int, Arrival] = {}
        self.panels: dict[int, Moment] = {}  # when a worker's panel queue is done
        self.slowed: dict[int, list[Slowed]] = {}
        # Of the owner of the next panel: when its column is up to date, and how much is
        # left of the update that has done so.
        self.column, self.rest = BEGINNING, 0.0

    def seconds(self, calls: Sequence[Call]) -> float:
        """Time of calls one after the other, alone on a GPU."""
        gpu = self.machine.gpu
        return sum(gpu.kernel_seconds(call.kind, call.shapes, self.dtype) for call in calls)

    def finish(self) -> ScaledRun:
        """Go through all phases."""
        for phase in range(-self.depth, self.kt):
            if phase + self.depth < self.kt:
                self.factor(phase)
            if phase >= 0:
                self.update(phase)
                self.phases.forget(phase)
                del self.arrivals[phase]
        for owner, panel in self.panels.items():
            if panel.at > self.done[owner]:
                self.done[owner], self.parts[owner] = panel
        self.close()
        last = int(np.argmax(self.done))
        named = dict(zip(PARTS, self.parts[last].tolist(), strict=True))
        return ScaledRun(float(self.done[last]), named, self.busy, self.bytes_moved)

    def factor(self, phase: int) -> None:
        """The panel queue of the worker that owns the panel of a phase."""
        c = phase + self.depth
        owner = c % len(self.team)
        now = max(self.panels.get(owner, BEGINNING), self.column, key=lambda moment: moment.at)
        work, waits = self.panel_work(c, owner, now.at)
        updates = [Work(self.column.at, self.rest)]
        for p in range(max(phase, 0), c):  # what may run beside it, once that column is there
            ready = max(self.column.at, float(self.arrivals[p].at[owner]))
            updates.append(Work(ready, float(self.phases.of(p)[owner])))
        spans = beside(work, updates)
        for call, before, span in zip(work, waits, spans, strict=True):
            if before is not None and before.at > now.at:
                now = before
            now = now.after(span.stop - now.at, PANEL if before is None else AHEAD)
            self.busy[owner] += call.seconds
        self.panels[owner] = now
        self.slow_down(owner, spans)
        others = min(len(self.team) - 1, self.nt - 1 - c)
        nbytes = self.steps.message_bytes(c, self.dtype) if others else 0
        self.send(c, owner, now, others, nbytes)

    def panel_work(
        self, c: int, owner: int, begin: float
    ) -> tuple[list[PanelWork], list[Moment | None]]:
        """Calls that bring column `c` up to date and factor it, and panels they wait for."""
        work: list[PanelWork] = []
        waits: list[Moment | None] = []
        width = self.steps.layout.column_width(c)
        for k in range(max(c - self.depth, 0), c):
            waits.append(there := self.arrivals[k].moment(owner))
            seconds = self.seconds(self.steps.update(k, c))
            work.append(PanelWork(max(begin, there.at), seconds))
        for call in self.steps.panel(c):
            waits.append(None)
            overlap = self.machine.gpu.overlap(call.kind, width)
            work.append(PanelWork(begin, self.seconds([call]), overlap))
        return work, waits

    def slow_down(self, owner: int, spans: list[Slowed]) -> None:
        """Let the panel's calls take their share of the GPU from the owner's updates."""
        earlier = self.slowed.get(owner, [])
        self.slowed[owner] = [*earlier, *spans]
        if self.rest:
            self.run_update(owner, self.column, self.rest)

    def run_update(self, worker: int, start: Moment, seconds: float) -> None:
        """An update of a worker whose panel queue may be at work too."""
        stop = through(start.at, seconds, self.slowed.get(worker, ()))
        moment = start.after(seconds, UPDATE)
        self.done[worker], self.parts[worker] = moment.after(stop - moment.at, PANEL)

    def send(self, k: int, owner: int, sent: Moment, others: int, nbytes: int) -> None:
        """Bring a message of step `k` to those who need it."""
        at, far = np.full(len(self.team), sent.at), np.zeros(len(self.team))
        if others:
            lag, hold, far = self.machine.spread(nbytes, owner, others, self.team)
            at = np.maximum(sent.at + lag, self.copied) + hold
            at[owner] = sent.at
            self.copied = np.maximum(at, self.copied)
            self.bytes_moved += others * nbytes
        self.arrivals[k] = Arrival(sent, at, far)

    def wait(self, arrival: Arrival, who: np.ndarray) -> None:
        """Let the update queues of some workers wait for a message."""
        late = who & (arrival.at > self.done)
        self.parts[late] = arrival.sent.parts
        waited = arrival.at[late] - arrival.sent.at
        self.parts[late, NETWORK] += waited * arrival.far[late]
        self.parts[late, LINKS] += waited * (1 - arrival.far[late])
        self.done = np.where(late, arrival.at, self.done)

    def update(self, phase: int) -> None:
        """The update queues of all workers."""
        seconds, arrival = self.phases.of(phase), self.arrivals[phase]
        self.wait(arrival, seconds > 0)
        start, before = self.done, self.parts.copy()
        self.parts[:, UPDATE] += seconds
        self.done = start + seconds
        self.busy += seconds
        following = (phase + self.depth + 1) % len(self.team)
        for worker in self.slowed:
            begin = Moment(float(start[worker]), before[worker])
            self.run_update(worker, begin, float(seconds[worker]))
        first = self.phases.first(phase, following)
        self.run_update(following, Moment(float(start[following]), before[following]), first)
        self.column = Moment(float(self.done[following]), self.parts[following].copy())
        self.rest = float(seconds[following]) - first
        self.run_update(following, self.column, self.rest)
        self.forget_slowed(following, self.arrivals.get(phase + 1, arrival).sent.at)

    def forget_slowed(self, following: int, since: float) -> None:
        """Drop what slows no update down that begins at `since` or later.

        What is left of the update on the next panel's owner begins where its column ended.
        """
        self.slowed = {
            worker: kept
            for worker, spans in self.slowed.items()
            for begin in [self.column.at if worker == following else since]
            if (kept := [span for span in spans if span.stop > begin])
        }

    def close(self) -> None:
        """What comes after the last step."""
        end, team = self.steps.closing(self.dtype), len(self.team)
        if end.chain:
            owner = (self.kt - 1) % team
            seconds = self.seconds(end.chain)
            sent = Moment(float(self.done[owner]), self.parts[owner]).after(seconds, END)
            self.send(self.kt, owner, sent, min(team - 1, len(end.columns)), end.nbytes)
            self.wait(self.arrivals[self.kt], self.team < len(end.columns))
            self.busy[owner] += seconds
        for j, calls in enumerate(end.columns):
            self.busy[j % team] += (seconds := self.seconds(calls))
            self.done[j % team] += seconds
            self.parts[j % team, END] += seconds
