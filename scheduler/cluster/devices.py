"""Device of a Dask worker, and the worker's description."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import weakref
from typing import Any

from distributed import Worker, get_worker

from hetero_la.scheduler.links.endpoint import endpoint
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.arrays.forks import ProcessLock, in_forked_child
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.blas_threads import blas_threads
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.kernels.gpu import nccl
from hetero_la.tiles.kernels.gpu.device import GpuDevice

_devices_lock = ProcessLock()


def current_worker() -> Worker | None:
    """Return the Dask worker whose task runs in this thread; None in local schedulers.

    Examples
    --------
    >>> from hetero_la.scheduler.cluster.devices import current_worker
    >>> current_worker() is None
    True
    """
    try:
        return get_worker()
    except ValueError:
        return None


#: Dask resources by which a worker of any cluster declares that it has a GPU to itself, or that
#: it takes the role of a GPU's worker on a machine without GPUs.
GPU_RESOURCE, VIRTUAL_GPU_RESOURCE = "GPU", "virtual-GPU"


def device_of(worker: Worker) -> Device:
    """Return the device that `worker` drives.

    Workers of dask-cuda, and those with the resource "GPU", have a process and a GPU each: the
    first one that the process sees.  Others of a foreign cluster drive their host's cores.
    """
    with _devices_lock:
        if not hasattr(worker, "hetero_device"):
            worker.hetero_device = _found_device(worker)
        return worker.hetero_device


_device_locks: weakref.WeakKeyDictionary[Device, Any] = weakref.WeakKeyDictionary()
in_forked_child(_device_locks.clear)


def device_lock(device: Device) -> contextlib.AbstractContextManager[object]:
    """Return the lock that a task holds for as long as it uses a device.

    A GPU's device object serves one thread at a time; a Dask worker may have several threads, and
    slices of two runs.
    """
    if device.kind == "cpu":
        return contextlib.nullcontext()
    with _devices_lock:
        return _device_locks.setdefault(device, threading.RLock())


def _found_device(worker: Worker) -> Device:
    resources = worker.state.total_resources
    modules = {type(plugin).__module__.split(".")[0] for plugin in worker.plugins.values()}
    if (GPU_RESOURCE in resources or "dask_cuda" in modules) and gpu_count():
        return GpuDevice(0, _readable_name(worker, "gpu"))
    if VIRTUAL_GPU_RESOURCE in resources:
        return VirtualGpu(_readable_name(worker, "gpu"))
    return CpuDevice(_readable_name(worker, "cpu"))


def describe(dask_worker: Worker, *, apart: bool = False) -> WorkerInfo:
    """Return the description of a worker for the planner; `Client.run` calls it there.

    `apart` says that others may reach it from other processes, for which NCCL has to be there.
    """
    device, memory_limit = device_of(dask_worker), dask_worker.memory_manager.memory_limit
    memory = device.free_bytes()
    return WorkerInfo(
        name=device.name,
        kind=device.kind,
        address=dask_worker.address,
        pid=os.getpid(),
        host=platform.node(),
        device=device.index,
        gpu=device.pci_address if isinstance(device, GpuDevice) else "",
        virtual=isinstance(device, VirtualGpu),
        link=endpoint().name if apart else "",
        no_nccl=nccl.missing() if apart and isinstance(device, GpuDevice) else "",
        blas_threads=_blas_threads(dask_worker),
        memory=min(memory, memory_limit or memory) if device.index < 0 else memory,
    )


def _blas_threads(worker: Worker) -> int:
    """Return the threads that a worker's BLAS may use: as many as Dask's, if the process lets it.

    A nanny starts its process with ``OPENBLAS_NUM_THREADS=1`` unless it is told otherwise.
    """
    if not hasattr(worker, "blas_threads"):
        worker.blas_threads = min(worker.state.nthreads, blas_threads())
    return int(worker.blas_threads)


def _readable_name(worker: Worker, kind: str) -> str:
    """Return the worker's name, with its kind before the number that ``LocalCluster`` gives it."""
    return f"{kind}{worker.name}" if isinstance(worker.name, int) else str(worker.name)
