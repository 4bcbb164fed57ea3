"""CPUs as devices, on which a call has ended when it returns."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.copies import copy_on_host
from hetero_la.tiles.arrays.transfer import (
    copy_and_wait,
    is_device_array,
    pinned_empty,
)
from hetero_la.tiles.kernels import vectors  # noqa: F401  (it registers)
from hetero_la.tiles.kernels.cpu import cholesky, lu, qr  # noqa: F401  (they register)
from hetero_la.tiles.kernels.device import Array, DeviceKind, Event, Interval, KernelOptions, Queue
from hetero_la.tiles.kernels.registry import implementation


class CpuDevice:
    """The host's cores; a call has ended when it returns.

    Parameters
    ----------
    name : str, optional
        Readable name.
    pinned : bool, optional
        Allocate in pinned memory, which GPUs copy from and to at full speed.
    """

    kind: DeviceKind = "cpu"
    index = -1
    enqueues = False
    nccl_address = ""
    #: Arrays of other CPU devices in the process are read without a copy.
    by_reference = True
    #: There is nothing to load: BLAS and LAPACK are there with SciPy.
    loading: Sequence[Interval] = ()

    def __init__(self, name: str = "cpu0", *, pinned: bool = False) -> None:
        self.name = name
        self._empty = pinned_empty if pinned else functools.partial(np.empty, order="F")

    @property
    def companion(self) -> CpuDevice:
        return self  # which has no queues

    def activate(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def on_wait(
        self, context: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> contextlib.AbstractContextManager[None]:
        """Return an empty context: a call does not wait."""
        return contextlib.nullcontext()

    def free_bytes(self) -> int:
        return available_memory()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._empty(shape, dtype)

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        if all(a.size for a in arrays):
            implementation(kernel, "cpu")(*arrays, options=options)

    def record(self, queue: Queue) -> Event:
        return None

    def reached(self, event: Event) -> bool:
        return event is None or bool(event.done)  # of a GPU

    def wait(self, queue: Queue, event: Event) -> None:
        if event is not None:  # of a GPU
            event.synchronize()

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        if is_device_array(source) or is_device_array(target):
            copy_and_wait(target, source)
        else:
            copy_on_host(target, source)

    def synchronize(self) -> None:
        pass

    def stopwatch(self) -> None:
        return None


class VirtualGpu(CpuDevice):
    """A CPU in the role of a GPU: its memory is separate, so panels are copied to it."""

    kind: DeviceKind = "gpu"
    by_reference = False


def available_memory() -> int:
    """Return the bytes of host memory that can be allocated without swapping."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cores() -> int:
    """Return the number of cores on which this process may run, also the default of BLAS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not on Linux
