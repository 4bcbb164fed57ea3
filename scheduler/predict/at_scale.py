"""A run on very many GPUs, step by step instead of event by event.

The recurrence follows the programs of `build.build_programs` without writing them: in phase p
the owner of tile column c = p + d (d: look-ahead) brings that column up to date, factors panel c
on its panel queue, and sends it; every worker applies step p to the rest of its columns on its
update queue.  So a phase is a few operations on arrays over all workers, and a scalar one for the
panel's owner, where two queues share a GPU (`sharing`).  Neglected, compared with `simulate`: the
host's time to enqueue calls; the limited number of buffers for received panels; and that a
trailing update on the panel's own GPU can start after the panel and before its inverse, and waits
for the last look-ahead update with the same panel.  `simulate` executes the real programs, and a
test compares the two.

Each time carries the parts of the longest chain of waits that leads to it (`PARTS`), so that the
parts of the last time add up to the makespan: they show what bounds the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.scheduler.graph.step_kernels import Call, StepKernels, Tile
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
    PathTime,
)
from hetero_la.scheduler.predict.sharing import (
    PanelCall,
    PanelSpan,
    UpdateCall,
    panel_spans,
    update_end,
)
from hetero_la.scheduler.predict.trailing_updates import TrailingUpdates
from hetero_la.tiles.arrays.counted import counted, in_bytes, in_seconds
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.storage.layout import TileLayout


@dataclass(frozen=True, eq=False, repr=False)
class ScaledRun:
    """A predicted run on many GPUs; times in seconds.

    Attributes
    ----------
    makespan : float
        Time at which the last worker ends.
    parts : dict of str to float
        Time of each kind (`PARTS`) in the longest chain of waits; their sum is the makespan.
    busy : numpy.ndarray, shape (workers,)
        Kernel time of each worker, as if each kernel ran alone.
    bytes_moved : int
        Bytes transferred between workers.
    """

    makespan: float
    parts: dict[str, float]
    busy: np.ndarray
    bytes_moved: int

    def __repr__(self) -> str:
        workers = counted(len(self.busy), "worker")
        moved = f"{in_bytes(self.bytes_moved)} moved"
        return one_line("ScaledRun", in_seconds(self.makespan), workers, moved)


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
        Tiles of the matrix.
    machine : ClusterModel
        The machine.
    gpus : int
        Number of its GPUs to use, the first ones.
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
        raise ValueError(f"{machine.name} has {counted(machine.gpus, 'GPU')}, not {gpus}")
    if layout.nrhs:
        raise ValueError(f"predictions at scale take no right-hand sides, not {layout.nrhs}")
    kernels = StepKernels.of(build)
    return Recurrence(kernels, layout, machine, gpus, depth, np.dtype(dtype)).finish()


class Recurrence:
    """State of the recurrence over phases."""

    def __init__(
        self, kernels: StepKernels, layout: TileLayout, machine: ClusterModel, gpus: int,
        depth: int, dtype: np.dtype,
    ) -> None:  # fmt: skip
        self.kernels, self.layout, self.machine = kernels, layout, machine
        self.depth, self.dtype, self.team = depth, dtype, np.arange(gpus)
        self.tiles = [Tile.of(layout, k) for k in range(layout.kt)]
        self.kt, self.nt = layout.kt, layout.nt
        # Only neighbours in the matrix can be merged into one call, and no worker owns two.
        single = kernels.trapezoid and gpus > 1
        self.trailing = TrailingUpdates(layout, gpus, depth, self.update_seconds, single)
        self.done = np.zeros(gpus)  # time at which each update queue is free
        self.parts = np.zeros((gpus, len(PARTS)))  # of the chains to these times
        self.copied = np.zeros(gpus)  # time at which each copy queue is free
        self.busy = np.zeros(gpus)
        self.bytes_moved = 0
        self.arrivals: dict[int, Arrival] = {}
        self.panels: dict[int, PathTime] = {}  # time at which a panel queue is free
        self.slowed: dict[int, list[PanelSpan]] = {}
        # On the owner of the next panel: the time at which that panel's column is up to date, and
        # the rest of the update that has done so, in seconds.
        self.column, self.rest = BEGINNING, 0.0

    def seconds(self, calls: Sequence[Call]) -> float:
        """Return the time of calls one after the other, alone on a GPU."""
        gpu = self.machine.gpu
        return sum(gpu.kernel_seconds(call.kind, call.shapes, self.dtype) for call in calls)

    def update_seconds(self, k: int, j: int, width: int) -> float:
        """Return the time of step `k` on `width` columns from tile column `j` on."""
        above = self.layout.row(j) - self.layout.row(k + 1)
        return self.seconds(self.kernels.update(self.tiles[k], width, above))

    def finish(self) -> ScaledRun:
        """Go through all phases, and return the predicted run."""
        for phase in range(-self.depth, self.kt):
            if phase + self.depth < self.kt:
                self.factor(phase)
            if phase >= 0:
                self.update(phase)
                del self.arrivals[phase]
        for owner, panel in self.panels.items():
            if panel.time > self.done[owner]:
                self.done[owner], self.parts[owner] = panel
        self.close()
        last = int(np.argmax(self.done))
        named = dict(zip(PARTS, self.parts[last].tolist(), strict=True))
        return ScaledRun(float(self.done[last]), named, self.busy, self.bytes_moved)

    def factor(self, phase: int) -> None:
        """Advance the panel queue of the worker that owns the panel of a phase."""
        c = phase + self.depth
        owner = c % len(self.team)
        now = max(self.panels.get(owner, BEGINNING), self.column, key=lambda free: free.time)
        work, waits = self.panel_work(c, owner, now.time)
        updates = [UpdateCall(self.column.time, self.rest)]
        # Updates that may run beside it once the column is ready: on several GPUs they wait for it.
        for p in range(max(phase, 0), c if len(self.team) == 1 else 0):
            ready = max(self.column.time, float(self.arrivals[p].times[owner]))
            updates.append(UpdateCall(ready, float(self.trailing.worker_seconds(p)[owner])))
        spans = panel_spans(work, updates)
        for call, before, span in zip(work, waits, spans, strict=True):
            if before is not None and before.time > now.time:
                now = before
            now = now.after(span.stop - now.time, PANEL if before is None else AHEAD)
            self.busy[owner] += call.seconds
        self.panels[owner] = now
        self.slow_down(owner, spans)
        others = min(len(self.team) - 1, self.nt - 1 - c)
        nbytes = self.kernels.message_bytes(self.tiles[c], self.dtype) if others else 0
        self.send(c, owner, now, others, nbytes)

    def panel_work(
        self, c: int, owner: int, begin: float
    ) -> tuple[list[PanelCall], list[PathTime | None]]:
        """Return the calls that update column `c` and factor it, and the panels they wait for."""
        work: list[PanelCall] = []
        waits: list[PathTime | None] = []
        width = self.layout.column_width(c)
        for k in range(max(c - self.depth, 0), c):
            waits.append(there := self.arrivals[k].on_worker(owner))
            work.append(PanelCall(max(begin, there.time), self.update_seconds(k, c, width)))
        for call in self.kernels.panel(self.tiles[c]):
            waits.append(None)
            overlap = self.machine.gpu.overlap(call.kind, width)
            work.append(PanelCall(begin, self.seconds([call]), overlap))
        return work, waits

    def slow_down(self, owner: int, spans: list[PanelSpan]) -> None:
        """Let the panel's calls take their share of the GPU from the owner's updates."""
        earlier = self.slowed.get(owner, [])
        self.slowed[owner] = [*earlier, *spans]
        if self.rest:
            self.run_update(owner, self.column, self.rest)

    def run_update(self, worker: int, start: PathTime, seconds: float) -> None:
        """Run an update of a worker whose panel queue may be busy too."""
        stop = update_end(start.time, seconds, self.slowed.get(worker, ()))
        alone = start.after(seconds, UPDATE)
        self.done[worker], self.parts[worker] = alone.after(stop - alone.time, PANEL)

    def send(self, k: int, owner: int, sent: PathTime, others: int, nbytes: int) -> None:
        """Send a message of step `k` to the workers that need it."""
        times, share = np.full(len(self.team), sent.time), np.zeros(len(self.team))
        if others:
            lag, hold, share = self.machine.broadcast_times(nbytes, owner, others, self.team)
            times = np.maximum(sent.time + lag, self.copied) + hold
            times[owner] = sent.time
            self.copied = np.maximum(times, self.copied)
            self.bytes_moved += others * nbytes
        self.arrivals[k] = Arrival(sent, times, share)

    def wait(self, arrival: Arrival, who: np.ndarray) -> None:
        """Let the update queues of some workers wait for a message."""
        late = who & (arrival.times > self.done)
        self.parts[late] = arrival.sent.parts
        waited = arrival.times[late] - arrival.sent.time
        self.parts[late, NETWORK] += waited * arrival.network_share[late]
        self.parts[late, LINKS] += waited * (1 - arrival.network_share[late])
        self.done = np.where(late, arrival.times, self.done)

    def wait_for_panel(self, c: int) -> None:
        """Let the update queue of a panel's owner wait for it, as others need it first."""
        owner = c % len(self.team)
        if len(self.team) > 1 and c < self.kt and self.panels[owner].time > self.done[owner]:
            self.done[owner], self.parts[owner] = self.panels[owner]

    def update(self, phase: int) -> None:
        """Apply the step of a phase on the update queues of all workers."""
        seconds, arrival = self.trailing.worker_seconds(phase), self.arrivals[phase]
        self.wait(arrival, seconds > 0)
        self.wait_for_panel(phase + self.depth)
        start, before = self.done, self.parts.copy()
        self.parts[:, UPDATE] += seconds
        self.done = start + seconds
        self.busy += seconds
        following = (phase + self.depth + 1) % len(self.team)
        for worker in self.slowed:
            begin = PathTime(float(start[worker]), before[worker])
            self.run_update(worker, begin, float(seconds[worker]))
        first = self.trailing.first_column_seconds(phase, following)
        self.run_update(following, PathTime(float(start[following]), before[following]), first)
        self.column = PathTime(float(self.done[following]), self.parts[following].copy())
        self.rest = float(seconds[following]) - first
        self.run_update(following, self.column, self.rest)
        self.forget_slowed(following, self.arrivals.get(phase + 1, arrival).sent.time)

    def forget_slowed(self, following: int, since: float) -> None:
        """Drop the panels' calls that end before any later update begins.

        Updates begin at `since` or later; on the owner of the next panel, the rest of the update
        begins when the panel's column is up to date.
        """
        self.slowed = {
            worker: kept
            for worker, spans in self.slowed.items()
            for begin in [self.column.time if worker == following else since]
            if (kept := [span for span in spans if span.stop > begin])
        }

    def close(self) -> None:
        """Add the calls after the last step."""
        ends, team = [self.kernels.closing(tile) for tile in self.tiles], len(self.team)
        columns = [calls for _, calls in ends]
        while columns and not columns[-1]:
            columns.pop()
        if any(chain for chain, _ in ends):
            owner = (self.kt - 1) % team
            seconds = sum(self.seconds(chain) for chain, _ in ends)
            nbytes = sum(self.kernels.closing_bytes(tile, self.dtype) for tile in self.tiles)
            sent = PathTime(float(self.done[owner]), self.parts[owner]).after(seconds, END)
            self.send(self.kt, owner, sent, min(team - 1, len(columns)), nbytes)
            self.wait(self.arrivals[self.kt], self.team < len(columns))
            self.busy[owner] += seconds
        for j, calls in enumerate(columns):
            self.busy[j % team] += (seconds := self.seconds(calls))
            self.done[j % team] += seconds
            self.parts[j % team, END] += seconds
