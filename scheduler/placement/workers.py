"""Description of a worker for the planner, and how data travels between two workers."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.kernels.device import DeviceKind


@dataclass(frozen=True, slots=True, repr=False)
class WorkerInfo:
    """One Dask worker, or the calling thread.

    Attributes
    ----------
    name : str
        Readable name: ``cpu0``, ``gpu0``.
    kind : {"cpu", "gpu"}
        Kind of its device.
    address : str
        Dask address; empty for the calling thread.
    pid : int
        Process in which it runs.
    host : str
        Host on which it runs.
    device : int
        GPU index in its process, or -1.
    gpu : str
        PCI address of the GPU, which identifies it where each process numbers its own; or empty.
    virtual : bool
        Whether it is a CPU in the role of a GPU.
    link : str
        Name of the endpoint that its process has for others of the host; empty if none.
    no_nccl : str
        Why a GPU's process cannot use NCCL; empty if it can.
    blas_threads : int
        Threads that its BLAS may use.
    memory : int
        Bytes that it may hold; CPU workers of one host share them.

    Examples
    --------
    >>> import hetero_la
    >>> gpus = [WorkerInfo(f"gpu{i}", "gpu", device=i) for i in range(2)]
    >>> plan = hetero_la.plan("lu", (20000, 20000), workers=gpus)  # for GPUs that need not exist
    >>> [worker.name for worker in plan.workers]
    ['gpu0', 'gpu1']
    """

    name: str
    kind: DeviceKind
    address: str = ""
    pid: int = 0
    host: str = ""
    device: int = -1
    gpu: str = ""
    virtual: bool = False
    link: str = ""
    no_nccl: str = ""
    blas_threads: int = 1
    memory: int = 0

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return one_line("WorkerInfo", self.name, self.role, self.place)

    @property
    def role(self) -> str:
        """What it computes on, in words."""
        if self.has_gpu:
            return f"GPU {self.device}" if self.device >= 0 else "a GPU"
        cpu = f"{counted(self.blas_threads, 'BLAS thread')}"
        return f"virtual GPU with {cpu}" if self.virtual else cpu

    @property
    def place(self) -> str:
        """Where it runs, in words."""
        if not self.address:
            return "the calling thread"
        process = "this process" if self.here else f"process {self.pid}"
        return process if self.here or not self.host else f"{process} of {self.host}"

    @property
    def label(self) -> str:
        """Name and address, for error messages."""
        return f"{self.name} ({self.address})"

    @property
    def here(self) -> bool:
        """True if it runs in this process; one of another host may have the same number."""
        return self.pid == os.getpid() and self.host in ("", platform.node())

    @property
    def has_gpu(self) -> bool:
        """True if it computes on a GPU, rather than on a CPU in the role of one."""
        return self.kind == "gpu" and not self.virtual

    @property
    def kind_text(self) -> str:
        """Kind of its device for texts, where a CPU in the role of a GPU must not pass for one."""
        return "virtual gpu" if self.virtual else self.kind


def kinds_text(gpus: int, virtual_gpus: int, cpus: int) -> str:
    """Return numbers of workers in words, without those that are 0.

    Examples
    --------
    >>> kinds_text(0, 2, 1)
    '2 virtual GPUs and 1 CPU worker'
    """
    numbers = (gpus, "GPU"), (virtual_gpus, "virtual GPU"), (cpus, "CPU worker")
    return " and ".join(counted(number, kind) for number, kind in numbers if number)


def workers_text(workers: Sequence[WorkerInfo]) -> str:
    """Return in words which workers these are.

    Examples
    --------
    >>> workers_text([WorkerInfo("gpu0", "gpu", "inproc://0"), WorkerInfo("cpu0", "cpu", "tcp://1")])
    '1 GPU and 1 CPU worker'
    >>> workers_text([calling_thread()])
    'the calling thread'
    """
    if len(workers) == 1 and not workers[0].address:
        return f"GPU {workers[0].device}" if workers[0].has_gpu else "the calling thread"
    gpus = sum(worker.has_gpu for worker in workers)
    virtual = sum(worker.virtual for worker in workers)
    return kinds_text(gpus, virtual, len(workers) - gpus - virtual)


class Transport(StrEnum):
    """How data travels from one worker to another."""

    ONE_PROCESS = "one process"
    NCCL = "NCCL"
    SHARED_MEMORY = "shared memory"
    DASK = "Dask's messages"


def transport_of(first: WorkerInfo, second: WorkerInfo) -> Transport:
    """Return the fastest transport that two workers have.

    NCCL joins different GPUs: two processes that use the same one exchange data as CPU workers do.

    Examples
    --------
    >>> first = WorkerInfo("gpu0", "gpu", pid=1, host="a", gpu="0000:18:00.0")
    >>> second = WorkerInfo("gpu1", "gpu", pid=2, host="a", gpu="0000:2A:00.0")
    >>> transport_of(first, second).value
    'NCCL'
    >>> transport_of(first, WorkerInfo("cpu0", "cpu", pid=3, host="a")).value
    'shared memory'
    """
    one_host = first.host == second.host
    if one_host and first.pid == second.pid:
        return Transport.ONE_PROCESS
    one_gpu = one_host and first.gpu != "" and first.gpu == second.gpu
    able = all(worker.has_gpu and not worker.no_nccl for worker in (first, second))
    if able and not one_gpu:
        return Transport.NCCL
    return Transport.SHARED_MEMORY if one_host else Transport.DASK


def calling_thread(*, gpu: int | None = None) -> WorkerInfo:
    """Return the calling thread as a worker, on the host's cores or on a GPU.

    Examples
    --------
    >>> calling_thread().name
    'caller'
    """
    place: dict[str, Any] = {"kind": "cpu"} if gpu is None else {"kind": "gpu", "device": gpu}
    return WorkerInfo(
        "caller", **place, pid=os.getpid(), host=platform.node(), blas_threads=usable_cores()
    )


def over_processes(workers: Sequence[WorkerInfo]) -> bool:
    """Return whether some workers run in other processes than this one."""
    return not all(worker.here for worker in workers)
