"""A run: the input of every executor, and its outcome."""

from __future__ import annotations

import functools
import os
import pickle
import platform
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from hetero_la.scheduler.exchange.message_order import Exchange, exchange_orders
from hetero_la.scheduler.placement.workers import WorkerInfo, workers_text
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    Program,
    SaveRegion,
)
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.scheduler.run.trace import LogEntry, WorkerTrace
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import Shard


def this_process() -> str:
    """Return a name for this process, which another host has not."""
    return f"process {os.getpid()} of {platform.node()}"


@dataclass(repr=False)
class Job:
    """Description of a run, the same for all executors.

    Attributes
    ----------
    name : str
        What texts call the routine, for readable task names.
    programs : list of Program
        One per worker.
    messages : dict
        The messages between the programs.
    workers : sequence of WorkerInfo
        The workers.
    layout : TileLayout
        How the matrix is cut.
    dtype : dtype
        Element type.
    options : KernelOptions
        Options of the kernels.
    window : int
        Steps in one Dask task, where the workers share this process.
    kept : dict
        Worker index -> columns that an earlier run has left with it; they are neither loaded
        nor stored.
    given : dict
        (name, step) -> per-step value of an earlier run, on any device.
    keeps : tuple of str
        Names of per-step values that stay with the workers, if these are threads of this process.
    absent : int
        Number of leading columns (n or 0) whose result nobody wants.
    traced : bool
        Whether the workers record the times of their instructions.
    flops : float
        Operations of the routine.
    seconds : float
        Estimated time of the run; 0 if nobody has estimated it.
    title : str
        What is computed, in words.
    owner : str
        The process that has planned the run, in words.
    order : sequence of (MessageKey, int)
        Of what was sent to a worker: the messages that it exchanges, see `exchange_orders`.
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
    absent: int = 0
    traced: bool = False
    flops: float = 0.0
    seconds: float = 0.0
    title: str = ""
    owner: str = field(default_factory=this_process)
    order: Sequence[Exchange] = ()

    def __repr__(self) -> str:
        return one_line("Job", self.name, workers_text(self.workers))

    @property
    def checkpoints(self) -> list[int]:
        """Steps before which the programs save the matrix."""
        return sorted({save.step for p in self.programs for save in p.select(SaveRegion)})

    def only(self, worker: int) -> Job:
        """Return the part of the job that `worker` needs, to be sent there."""
        programs = [p if p.worker == worker else Program(p.worker, []) for p in self.programs]
        messages = {
            key: message
            for key, message in self.messages.items()
            if key.source == worker or worker in message.consumers
        }
        return replace(
            self, programs=programs, messages=messages, given=self.given_to(worker),
            order=self._orders[worker],
        )  # fmt: skip

    @functools.cached_property
    def _orders(self) -> list[list[Exchange]]:
        return exchange_orders(self.programs, self.messages)

    def given_to(self, worker: int) -> dict[Name, Array]:
        """Return the given values that a worker's program uses."""
        if not self.given:
            return {}
        touched = {r[:2] for call in self.programs[worker].select(CallKernel) for r in call.regions}
        return {name: value for name, value in self.given.items() if name in touched}


class PackedJob:
    """A job that is pickled once, and unpickled only where it is used, and once there.

    Its programs are thousands of objects, and every run on Dask arrays sends them to Dask's
    scheduler, which has no use for them, and on to workers, which may be in the same process.

    Parameters
    ----------
    job : Job
        The job, which nobody changes.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._keep(uuid.uuid4().hex)

    def _keep(self, name: str) -> None:
        self._name = name
        _packed[name] = self

    @functools.cached_property
    def job(self) -> Job:
        """The job."""
        return cast(Job, pickle.loads(self._bytes))

    @functools.cached_property
    def _bytes(self) -> bytes:
        return pickle.dumps(self.job)

    @functools.cached_property
    def _parts(self) -> list[PackedJob]:
        return [PackedJob(self.job.only(worker)) for worker in range(len(self.job.programs))]

    # A method, and not the cached list itself: what walks through public attributes would make the
    # list, and go on into the parts, and into theirs, without an end.
    def each(self) -> list[PackedJob]:
        """Return what each of its workers needs of it, which is packed once."""
        return self._parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self._name, self._bytes)


#: Those of this process, by name.
_packed: weakref.WeakValueDictionary[str, PackedJob] = weakref.WeakValueDictionary()
#: The last ones that came from other processes: the next run of a plan needs the same.
_arrived: deque[PackedJob] = deque(maxlen=4)


def _unpacked(name: str, pickled: bytes) -> PackedJob:
    found = _packed.get(name)
    if found is None:
        found = PackedJob.__new__(PackedJob)
        found._bytes = pickled
        found._keep(name)
        _arrived.append(found)
    return found


class Loss(NamedTuple):
    """Loss of a worker during a run, and how the run went on.

    Attributes
    ----------
    reason : str
        How the loss was noticed.
    step : int
        Step from which the run went on: that of a checkpoint, or 0.
    workers : tuple of str
        Names of the workers that went on.
    """

    reason: str
    step: int
    workers: tuple[str, ...]


@dataclass
class Outcome:
    """Results of a run besides the columns that it stored.

    Attributes
    ----------
    values : dict
        (name, step) -> per-step vector, on the host.
    logs : dict
        Worker index -> its log.
    shards : dict
        Worker index -> its columns, where the workers are threads of this process.
    kept : dict
        (name, step) -> per-step value that the job keeps, on the device of its worker.
    losses : list of Loss
        Workers that were lost, and how the run went on.
    traces : dict
        Worker index -> a function that returns its trace, if the run is traced; evaluating it
        takes a while, which does not belong to the run.
    """

    values: dict[Name, np.ndarray] = field(default_factory=dict)
    logs: dict[int, list[LogEntry]] = field(default_factory=dict)
    shards: dict[int, Shard] = field(default_factory=dict)
    kept: dict[Name, Array] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    traces: dict[int, Callable[[], WorkerTrace]] = field(default_factory=dict)
