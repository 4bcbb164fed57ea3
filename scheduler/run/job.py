"""One run: what every executor needs, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.program.instructions import Program
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.scheduler.run.runner import LogEntry, Runner
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.scheduler.run.trace import WorkerTrace
from hetero_la.tiles.arrays.device import Array, Device, KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import Shard, Storage


@dataclass
class Job:
    """What a run does, whoever executes it.

    Attributes
    ----------
    name : str
        Routine, for readable task names.
    programs : list of Program
        One per worker.
    messages : dict
        The messages between the programs.
    workers : sequence of WorkerInfo
        Who runs them.
    layout : TileLayout
        How the matrix is cut.
    dtype : dtype
        Element type.
    options : KernelOptions
        For the kernels.
    window : int
        Steps in one Dask task, where the workers share this process.
    kept : dict
        Worker index -> columns that an earlier run has left with it.
    given : dict
        (name, step) -> per-step value, on any device, that an earlier run has made.
    keeps : tuple of str
        Per-step values that stay with the workers, where these are threads of this process.
    traced : bool
        Whether the workers measure what they do when.
    """

    name: str
    programs: list[Program]
    messages: dict[MessageKey, Message]
    workers: Sequence[WorkerInfo]
    layout: TileLayout
    dtype: Any
    options: KernelOptions
    window: int
    kept: dict[int, Shard] = field(default_factory=dict)
    given: dict[Name, Array] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    traced: bool = False

    @property
    def checkpoints(self) -> list[int]:
        """The steps before which the programs save what they have."""
        return sorted({i.step for p in self.programs for i in p.instructions if i.op == "save"})

    def only(self, worker: int) -> Job:
        """The part that `worker` needs, for sending it there."""
        programs = [p if p.worker == worker else Program(p.worker, []) for p in self.programs]
        messages = {
            key: message
            for key, message in self.messages.items()
            if key.source == worker or worker in message.consumers
        }
        return replace(self, programs=programs, messages=messages, given=self._given_to(worker))

    def _given_to(self, worker: int) -> dict[Name, Array]:
        """What a worker's program needs of the values that are given."""
        if not self.given:
            return {}
        touched = {r[:2] for i in self.programs[worker].instructions for r in i.regions}
        return {name: value for name, value in self.given.items() if name in touched}

    def runner(self, worker: int, device: Device, storage: Storage, **shared: Any) -> Runner:
        """The state of one worker at the start."""
        return Runner(
            self.programs[worker], self.layout, self.messages, device, self.dtype, self.options,
            storage, kept=self.kept.get(worker), given=self._given_to(worker),
            traced=self.traced, **shared,
        )  # fmt: skip


class Loss(NamedTuple):
    """A worker that was lost during a run, and how the run went on.

    Attributes
    ----------
    reason : str
        What was found.
    step : int
        At which the run was taken up again: that of a checkpoint, or 0.
    workers : tuple of str
        Names of those who went on.
    """

    reason: str
    step: int
    workers: tuple[str, ...]


@dataclass
class Outcome:
    """What a run leaves behind, besides what it stored.

    Attributes
    ----------
    values : dict
        (name, step) -> per-step vector, on the host.
    logs : dict
        Worker index -> its log.
    shards : dict
        Worker index -> its columns, where the workers are threads of this process.
    kept : dict
        (name, step) -> per-step value that the job keeps, where it was made.
    losses : list of Loss
        Workers that were lost on the way, and how the run went on.
    traces : dict
        Worker index -> a function that gives its trace, of a run that is traced; it takes a
        moment, for which nobody need wait before the run is over.
    """

    values: dict[Name, np.ndarray] = field(default_factory=dict)
    logs: dict[int, list[LogEntry]] = field(default_factory=dict)
    shards: dict[int, Shard] = field(default_factory=dict)
    kept: dict[Name, Array] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    traces: dict[int, Callable[[], WorkerTrace]] = field(default_factory=dict)

    def keep_record(self, worker: int, runner: Runner) -> None:
        """Keep the log of a worker whose run is over, and what gives its trace."""
        self.logs[worker] = runner.log
        if runner.recorder is not None:
            self.traces[worker] = runner.recorder.trace
