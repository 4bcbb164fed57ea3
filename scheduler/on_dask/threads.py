"""The Dask executor for workers of one process.

Workers that are threads of this process work in windows of many steps and hand
panels over by reference, through a `WaitTable`; Dask sees one task per window.  A run that
somebody else submits is one task, with threads of its own.
`hetero_la.scheduler.on_dask.processes` runs the same programs on any other cluster.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import distributed
import numpy as np

from hetero_la.scheduler.cluster.clients import while_open
from hetero_la.scheduler.cluster.devices import device_lock, device_of
from hetero_la.scheduler.cluster.placement_plugin import task_name
from hetero_la.scheduler.on_dask.wait import thread_given_up, wait_all, wanted_by_dask
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.program.instructions import Program
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.scheduler.run.threads import ThreadedRun, run_in_threads
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.arrays.transfer import current_gpu, gpu_count
from hetero_la.tiles.kernels.cpu.blas_threads import blas_bound
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.shard import Storage

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
    number = str(next(_run_numbers))
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
                key=task_name(job.name, "run", f"{number}-{worker.name}-{start}-{stop}"),
                workers=[worker.address], allow_other_workers=False, pure=False, retries=0,
            )  # fmt: skip
            yield before


#: A GPU's device object serves one run at a time, and so do the cores.
_devices_of_this_process = ProcessLock()


def team_of(job: Job, on_gpu: bool = False) -> list[Device]:
    """Return a device for each worker of a run that is one task, like the worker's own.

    Parameters
    ----------
    job : Job
        The run.
    on_gpu : bool, optional
        Whether its columns are in GPUs' memory: then workers of the host use the current GPU.
    """
    pinned = any(info.device >= 0 for info in job.workers)

    def place(program: Program, info: WorkerInfo) -> int:
        elsewhere = on_gpu and info.device < 0 and program.columns
        return current_gpu() if elsewhere else info.device

    return [
        _device(place(program, info), info.virtual, info.name, pinned)
        for program, info in zip(job.programs, job.workers, strict=True)
    ]


def run_as_one_task(
    job: Job, storage: Storage, devices: Sequence[Device]
) -> dict[Name, np.ndarray]:
    """Do all of a run of workers of this process, in one Dask task, and return its values.

    Messages then go by reference, as in every other run inside a process, and not each through
    Dask's scheduler.  The threads are the run's own: they wait for each other, and tasks of
    Dask's workers that did so would wait for ever where two runs take the workers in different
    orders.

    Parameters
    ----------
    job : Job
        What to run.
    storage : Storage
        The input, overwritten by the result.
    devices : sequence of Device
        As `team_of` returns them.
    """
    threads = min((info.blas_threads for info in job.workers if info.device < 0), default=1)
    with _devices_of_this_process, blas_bound(threads), contextlib.ExitStack() as held:
        for device in devices:  # nobody fills memory there meanwhile
            held.enter_context(device_lock(device))
        return run_in_threads(job, storage, devices, wanted=wanted_by_dask()).values


@functools.cache
def _device(index: int, virtual: bool, name: str, pinned: bool) -> Device:
    """Return a device like the worker's, which its own tasks may be using."""
    if 0 <= index < gpu_count():
        return GpuDevice(index, name)
    return (VirtualGpu if virtual else CpuDevice)(name, pinned=pinned)
