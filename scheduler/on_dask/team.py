"""Workers of one process that execute a run together, as one Dask task.

Messages then go by reference, as in every other run inside a process, and not each through
Dask's scheduler.  The threads are the run's own: they wait for each other, and tasks of Dask's
workers that did so would wait for ever where two runs take the workers in different orders.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import get_worker

from hetero_la.scheduler.cluster.plugins import blas_bound
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.local_storage import LocalStorage
from hetero_la.scheduler.run.runner import Payload
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.tiles.arrays.device import Array, Device
from hetero_la.tiles.arrays.errors import StaleShardError
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.shard import ArrayStorage

#: A GPU's device object serves one run at a time, and so do the cores.
_turn = ProcessLock()


class Team:
    """The state of a run of several workers of one process, used as a `Runner` is.

    Its program has one instruction: all of the run.

    Parameters
    ----------
    job : Job
        What to run.
    array : array, shape (m, n + nrhs)
        Of the host, column-major; filled by the caller, and overwritten by the result.
    """

    def __init__(self, job: Job, array: Array) -> None:
        spans = map(job.layout.columns, range(job.layout.nt + job.layout.rt))
        self.job, self.layout, self.device = job, job.layout, CpuDevice("team")
        self.storage = LocalStorage(array, {span[0]: span for span in spans})
        self.position: int | None = 0
        self.inbox: dict[MessageKey, Payload] = {}
        self.outbox: Payload | None = None
        self._values: dict[Name, np.ndarray] = {}

    def run(self, start: int, stop: int) -> None:
        """Run the whole job."""
        if self.position != 0:
            raise StaleShardError("the run has begun: its array cannot be updated again")
        self.position = None
        storage = ArrayStorage(self.storage.array, self.storage.array)
        with _turn, blas_bound(_blas_threads(self.job.workers)):
            pinned = any(info.device >= 0 for info in self.job.workers)
            devices = [
                _device(info.device, info.virtual, info.name, pinned) for info in self.job.workers
            ]
            outcome = run_in_threads(self.job, storage, devices, wanted=_wanted())
        self._values = outcome.values
        self.position = stop

    def finish(self) -> dict[Name, np.ndarray]:
        """Return the run's results besides the array."""
        return self._values


def _blas_threads(workers: Sequence[WorkerInfo]) -> int:
    return min((info.blas_threads for info in workers if info.device < 0), default=1)


@functools.cache
def _device(index: int, virtual: bool, name: str, pinned: bool) -> Device:
    """Return a device like a worker's, whose own may be in use by the worker's tasks."""
    if 0 <= index < gpu_count():
        return GpuDevice(index, name)
    return (VirtualGpu if virtual else CpuDevice)(name, pinned=pinned)


def _wanted() -> Any:
    """Return a function that tells whether Dask still wants the task of this thread."""
    try:
        worker = get_worker()
    except ValueError:  # nobody can cancel it in Dask's local schedulers
        return lambda: True
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled"

    return wanted
