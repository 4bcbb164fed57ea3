"""Number of workers of each kind of a cluster on one host."""

from __future__ import annotations

import dataclasses
import itertools
import numbers
from collections.abc import Mapping
from typing import Any

from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.errors import DeviceUnavailableError
from hetero_la.tiles.arrays.transfer import enable_peers, gpu_count, require_cuda
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice

#: Most workers of a kind: more are a mistake, and would take hours to start.
MOST_WORKERS = 1024
#: Most virtual GPUs: they share the host's cores, and no host has more GPUs.
_MOST_VIRTUAL = 64


def memory_bytes(memory: Any, name: str = "memory") -> int:
    """Return a number of bytes that may be given as text.

    Raises
    ------
    ValueError
        If it is no positive number of bytes.

    Examples
    --------
    >>> memory_bytes("40 GB"), memory_bytes("1.5 GiB"), memory_bytes(1000)
    (40000000000, 1610612736, 1000)
    """
    try:
        if isinstance(memory, bool) or not isinstance(memory, numbers.Integral | str):
            raise ValueError
        found = parse_bytes(memory) if isinstance(memory, str) else int(memory)
        if found < 1:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} must be a positive number of bytes, or text such as '40 GB', not {memory!r}"
        ) from None
    return found


def require_few_workers(kind: str, count: int) -> None:
    """Raise ValueError if there are more workers of a kind than can be of use."""
    most = _MOST_VIRTUAL if kind == "virtual_gpus" else MOST_WORKERS
    if count > most:
        raise ValueError(f"{kind} must be at most {most}, not {count}")


def default_cpu_workers(cores: int) -> int:
    """Return the number of CPU workers on a host without GPUs: one per core.

    Look-ahead then overlaps panels with updates, and a BLAS threaded with pthreads would run
    one call at a time in a process anyway.
    """
    return min(cores, MOST_WORKERS)


def default_blas_threads(cores: int, cpus: int, gpus: int, virtual_gpus: int = 0) -> int:
    """Return the BLAS threads of each CPU worker.

    The workers share the cores.  With GPUs, one core is reserved for the event loop and one for
    each GPU worker's thread: a late launch leaves a GPU idle.

    Parameters
    ----------
    cores : int
        Cores of the host.
    cpus, gpus, virtual_gpus : int
        Workers of each kind.

    Examples
    --------
    >>> default_blas_threads(cores=16, cpus=1, gpus=4)
    11
    >>> default_blas_threads(cores=8, cpus=2, gpus=0, virtual_gpus=2)
    2
    """
    reserved = 1 + gpus if gpus else 0
    return max((cores - reserved) // max(cpus + virtual_gpus, 1), 1)


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSize:
    """Number of workers of each kind of a cluster.

    Attributes
    ----------
    cpus, gpus, virtual_gpus : int
        Workers of each kind.
    blas_threads : int
        BLAS threads of each CPU worker.
    """

    cpus: int
    gpus: int
    virtual_gpus: int
    blas_threads: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), int(field.name == "blas_threads")
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field.name} must be an integer of at least {least}: {value!r}")
            if field.name != "blas_threads":
                require_few_workers(field.name, value)
        if self.cpus + self.gpus + self.virtual_gpus == 0:
            raise ValueError("a cluster needs at least one worker: cpus, gpus or virtual_gpus")

    @classmethod
    def choose(cls, wanted: Mapping[str, Any], cores: int = CPU_COUNT) -> ClusterSize:
        """Choose the sizes that are None or absent in `wanted` for a host of `cores` cores."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(wanted) - known):
            raise ValueError(
                f"unknown cluster setting {unknown[0]!r}: choose from {', '.join(sorted(known))}"
            )
        given = {name: value for name, value in wanted.items() if value is not None}
        virtual = given.setdefault("virtual_gpus", 0)
        if "gpus" not in given:
            given["gpus"] = 0 if virtual else gpu_count()
        gpus = given["gpus"]
        given.setdefault("cpus", 1 if gpus or virtual else default_cpu_workers(cores))
        given.setdefault("blas_threads", 1)
        size = cls(**given)  # validates the values before the arithmetic below
        if size.cpus > cores:
            raise DeviceUnavailableError(
                f"this machine has {counted(cores, 'core')}, but {size.cpus} CPU workers were "
                "asked for"
            )
        if gpus:
            require_cuda()
        if gpus > (there := gpu_count() if gpus else 0):
            raise DeviceUnavailableError(
                f"this machine has {counted(there, 'GPU')}, but {gpus} were asked for"
            )
        if wanted.get("blas_threads") is not None:
            return size
        threads = default_blas_threads(cores, size.cpus, gpus, virtual)
        return dataclasses.replace(size, blas_threads=threads)

    def devices(self) -> list[Device]:
        """Create the devices: GPUs first, each kind numbered from 0.

        Access between the GPUs is enabled, for tasks on chunks of several of them.
        """
        gpus: list[Device] = [GpuDevice(i, f"gpu{i}") for i in range(self.gpus)]
        for pair in itertools.combinations(range(self.gpus), 2):
            enable_peers(*pair)
        virtual = [VirtualGpu(f"gpu{self.gpus + i}") for i in range(self.virtual_gpus)]
        cpus = [CpuDevice(f"cpu{i}", pinned=self.gpus > 0) for i in range(self.cpus)]
        return [*gpus, *virtual, *cpus]
