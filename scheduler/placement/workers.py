"""Description of a worker for the planner."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.kernels.device import DeviceKind


@dataclass(frozen=True, slots=True)
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
    blas_threads : int
        Threads that its BLAS may use.
    memory : int
        Bytes that it may hold; CPU workers of one host share them.
    """

    name: str
    kind: DeviceKind
    address: str = ""
    pid: int = 0
    host: str = ""
    device: int = -1
    gpu: str = ""
    virtual: bool = False
    blas_threads: int = 1
    memory: int = 0

    @property
    def label(self) -> str:
        """Name and address, for error messages."""
        return f"{self.name} ({self.address})"

    @property
    def here(self) -> bool:
        """True if it runs in this process; one of another host may have the same number."""
        return self.pid == os.getpid() and self.host in ("", platform.node())


def calling_thread() -> WorkerInfo:
    """Return the calling thread as a worker, the only one of a small problem.

    Examples
    --------
    >>> calling_thread().name
    'caller'
    """
    return WorkerInfo(
        "caller", "cpu", pid=os.getpid(), host=platform.node(), blas_threads=usable_cores()
    )


def over_processes(workers: Sequence[WorkerInfo]) -> bool:
    """Return whether some workers run in other processes than this one."""
    return not all(worker.here for worker in workers)
