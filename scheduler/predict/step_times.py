"""When each worker does its part of each step in a run on many GPUs, as `at_scale` predicts it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hetero_la.scheduler.graph.step_kernels import StepKernels
from hetero_la.scheduler.machine.cluster_model import ClusterModel
from hetero_la.scheduler.predict.at_scale import Recurrence
from hetero_la.scheduler.predict.path_time import Arrival, PathTime
from hetero_la.scheduler.predict.sharing import PanelSpan
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.storage.layout import TileLayout


@dataclass(eq=False, repr=False)
class StepTimes:
    """Begin and end of each worker's part of each step, in seconds.

    Attributes
    ----------
    makespan : float
        Time at which the last worker ends.
    panels : list of list of (float, float)
        For each step, on the panel's owner: the updates of the panel's column by the steps before,
        one for each step of the look-ahead, and the calls that factor the panel.
    sent : list of float
        For each step, time at which its panel is sent; then that of the message after the last
        step, if there is one.
    arrived : list of numpy.ndarray
        For each of these messages, time of arrival on each worker.
    updates : list of (numpy.ndarray, numpy.ndarray)
        For each step, begin and end of the trailing update on each worker.
    columns : list of float
        For each step, time at which the update of the first column has ended, on its owner.
    chain : (float, float)
        Calls after the last step for all columns, on the last panel's owner.
    closing : (numpy.ndarray, numpy.ndarray)
        Calls after the last step for the columns of each worker.
    """

    makespan: float = 0.0
    panels: list[list[tuple[float, float]]] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    arrived: list[np.ndarray] = field(default_factory=list)
    updates: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    columns: list[float] = field(default_factory=list)
    chain: tuple[float, float] = (0.0, 0.0)
    closing: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))

    def __repr__(self) -> str:
        return one_line("StepTimes", counted(len(self.panels), "step"), in_seconds(self.makespan))


def step_times(
    kernels: StepKernels,
    layout: TileLayout,
    machine: ClusterModel,
    gpus: int,
    depth: int,
    dtype: np.dtype,
) -> StepTimes:
    """Predict a run as `at_scale.simulate_at_scale` does, and keep the times of its steps.

    Examples
    --------
    >>> from hetero_la.algorithms.cholesky import cholesky_tasks
    >>> from hetero_la.predict.scaling import read_machine
    >>> layout = TileLayout(16384, 16384, 1024)
    >>> kernels, machine = StepKernels.of(cholesky_tasks), read_machine("dgx-h200")
    >>> times = step_times(kernels, layout, machine, 4, 1, np.dtype("f8"))
    >>> len(times.updates), times.sent == sorted(times.sent), times.sent[-1] < times.makespan
    (16, True, False)
    """
    recurrence = _TimedRecurrence(kernels, layout, machine, gpus, depth, dtype)
    makespan = recurrence.finish().makespan
    found = recurrence.times
    found.makespan = makespan
    # An update ends when the queue is free for the next one, or for what follows the last step.
    before, begun = recurrence.before, recurrence.begun
    found.updates = list(zip(begun[: layout.kt], before[1 : layout.kt + 1], strict=True))
    return found


class _TimedRecurrence(Recurrence):
    """The recurrence, which notes its times on the way."""

    def __init__(
        self, kernels: StepKernels, layout: TileLayout, machine: ClusterModel, gpus: int,
        depth: int, dtype: np.dtype,
    ) -> None:  # fmt: skip
        super().__init__(kernels, layout, machine, gpus, depth, dtype)
        self.times = StepTimes()
        # Before and after each wait for a panel: times at which the update queues are free.
        self.before: list[np.ndarray] = []
        self.begun: list[np.ndarray] = []

    def wait(self, arrival: Arrival, who: np.ndarray) -> None:
        """Let the update queues wait, and note from when to when."""
        self.before.append(self.done.copy())
        super().wait(arrival, who)
        self.begun.append(self.done.copy())

    def slow_down(self, owner: int, spans: list[PanelSpan]) -> None:
        """Note the spans of the panel's calls."""
        super().slow_down(owner, spans)
        self.times.panels.append([(span.start, span.stop) for span in spans])

    def send(self, k: int, owner: int, sent: PathTime, others: int, nbytes: int) -> None:
        """Note when a message is sent and arrives."""
        super().send(k, owner, sent, others, nbytes)
        self.times.sent.append(self.arrivals[k].sent.time)
        self.times.arrived.append(self.arrivals[k].times)

    def update(self, phase: int) -> None:
        """Note when the first column is up to date."""
        super().update(phase)
        self.times.columns.append(self.column.time)

    def close(self) -> None:
        """Note the times of the calls after the last step."""
        ended = self.done.copy()
        super().close()
        begun = self.begun[self.kt] if len(self.begun) > self.kt else ended
        if len(self.before) == self.kt:
            self.before.append(ended)
        owner = (self.kt - 1) % len(self.team)
        chained = self.times.sent[self.kt] if len(self.times.sent) > self.kt else ended[owner]
        self.times.chain = float(ended[owner]), float(chained)
        self.times.closing = begun, self.done.copy()
