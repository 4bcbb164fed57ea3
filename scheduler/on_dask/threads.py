"""The Dask executor for workers of one process.

Workers that are threads of this process work in windows of many steps and hand
panels over by reference, through an `Exchange`; Dask sees one task per window.  A run that
somebody else submits is one task, with threads of its own.
`hetero_la.scheduler.on_dask.processes` runs the same programs on any other cluster.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import distributed
import numpy as np

from hetero_la.scheduler.cluster.clients import while_open
from hetero_la.scheduler.cluster.devices import device_of
from hetero_la.scheduler.cluster.plugins import blas_bound
from hetero_la.scheduler.on_dask.group_tasks import wanted_by_dask
from hetero_la.scheduler.on_dask.wait import thread_given_up, wait_all
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.scheduler.run.threads import ThreadedRun, run_in_threads
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Array, Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.shard import ArrayStorage, Storage

_run_numbers = itertools.count()
#: Runs whose workers are threads of this process, for the tasks that carry their number.
_runs: dict[str, ThreadedRun] = {}
#: Windows of one run wait for each other, so runs on the same workers take turns.
_threads_of_workers = ProcessLock()


def run_window(run: str, worker: int, start: int, stop: int, before: Any) -> None:
    """Dask task: run a window of a run of this process."""
    if run not in _runs:
        raise RunAbortedError(f"run {run} has ended; its windows cannot be run again")
    _runs[run].window(worker, device_of(distributed.get_worker()), start, stop)


def run_local(client: distributed.Client, job: Job, storage: Storage) -> Outcome:
    """Run on workers that are threads of this process."""
    run = ThreadedRun(job, storage)
    number = f"{job.name}-{next(_run_numbers)}"
    with thread_given_up(), _threads_of_workers:  # in this order: a thread that waits may be needed
        _runs[number] = run
        try:
            with while_open(client):
                futures = list(_submit_windows(client, job, number))
            wait_all(client, futures, [worker.address for worker in job.workers])
        except BaseException as error:
            raise run.abort(error) from None
        finally:
            del _runs[number]
    return run.outcome


def _submit_windows(client: distributed.Client, job: Job, number: str) -> Iterator[Any]:
    for program, worker in zip(job.programs, job.workers, strict=True):
        before = None
        for start, stop in program.windows(job.window):
            before = client.submit(
                run_window, number, program.worker, start, stop, before,
                key=f"{number}-{worker.name}-instructions-{start}-{stop}",
                workers=[worker.address], allow_other_workers=False, pure=False, retries=0,
            )  # fmt: skip
            yield before


#: A GPU's device object serves one run at a time, and so do the cores.
_devices_of_this_process = ProcessLock()


def run_as_one_task(job: Job, array: Array) -> dict[Name, np.ndarray]:
    """Do all of a run of several workers of this process, in one Dask task, and return its values.

    Messages then go by reference, as in every other run inside a process, and not each through
    Dask's scheduler.  The threads are the run's own: they wait for each other, and tasks of
    Dask's workers that did so would wait for ever where two runs take the workers in different
    orders.

    Parameters
    ----------
    job : Job
        What to run.
    array : array, shape (m, n + nrhs)
        The input, on the host and column-major; overwritten by the result.
    """
    pinned = any(info.device >= 0 for info in job.workers)
    threads = min((info.blas_threads for info in job.workers if info.device < 0), default=1)
    with _devices_of_this_process, blas_bound(threads):
        devices = [_device(info.device, info.virtual, info.name, pinned) for info in job.workers]
        return run_in_threads(
            job, ArrayStorage(array, array), devices, wanted=wanted_by_dask()
        ).values


@functools.cache
def _device(index: int, virtual: bool, name: str, pinned: bool) -> Device:
    """Return a device like the worker's, which its own tasks may be using."""
    if 0 <= index < gpu_count():
        return GpuDevice(index, name)
    return (VirtualGpu if virtual else CpuDevice)(name, pinned=pinned)
