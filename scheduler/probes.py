"""Measures devices and links with a few short kernels and copies."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from hetero_la.scheduler.costs import LinkModel, MachineModel
from hetero_la.scheduler.device_model import DeviceModel
from hetero_la.scheduler.fits import fit_device
from hetero_la.scheduler.known_machine import profiled
from hetero_la.scheduler.workers import WorkerInfo
from hetero_la.tiles.forks import ProcessLock
from hetero_la.tiles.kernels.cpu import CpuDevice
from hetero_la.tiles.kernels.gpu import GpuDevice, gpu_count
from hetero_la.tiles.kernels.spec import Array, Device, DeviceKind, KernelOptions, Queue
from hetero_la.tiles.transfer import pinned_empty


@dataclass(frozen=True)
class Sizes:
    """Sizes of the probes: milliseconds each, and beyond the fixed costs."""

    edge: int
    inner: tuple[int, int]
    narrow: int
    panel: tuple[int, int, int]
    orders: tuple[int, int]
    rows: int
    columns: int
    repeats: int


_SIZES = {
    "cpu": Sizes(512, (256, 32), 32, (384, 2048, 192), (64, 192), 4096, 512, 1),
    "gpu": Sizes(4096, (512, 128), 256, (4096, 32768, 256), (128, 512), 16384, 2048, 8),
}


#: Elements of the long transfer that a link's bandwidth is found by.
_TRANSFER = 2**21

#: Calls longer than this, in seconds, are likely to be interrupted on a machine in use.
_INTERRUPTED = 1e-3


@dataclass
class Probe:
    """Times kernels on one device, on random data: zeros draw less power and run faster."""

    device: Device
    dtype: np.dtype
    options: KernelOptions = field(default_factory=KernelOptions)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(0)
        # A CPU in the role of a GPU runs its calls itself.
        self.kind: DeviceKind = "gpu" if self.device.index >= 0 else "cpu"
        self.sizes = _SIZES[self.kind]
        #: Whether one thread does all, so that its own time is the time of a call.
        self.alone = self.kind == "cpu" and _blas_threads() == 1

    def array(
        self, rows: int, columns: int, diagonal: float | None = None, scale: float = 1.0
    ) -> Array:
        """A random matrix; with a diagonal, a triangle of it is well conditioned."""
        # Random numbers are slow to make: 64 columns, over and over, unless few are asked for.
        few = min(columns, 64) if diagonal is None else columns
        host = np.asfortranarray(self.rng.random((few, rows), np.float32).T.astype(self.dtype))
        host = (host - self.dtype.type(0.5)) * self.dtype.type(scale)
        if diagonal is not None:
            host /= rows
            np.fill_diagonal(host, diagonal)
        array = self.device.empty((rows, columns), self.dtype)
        for first in range(0, columns, few):
            part = array[:, first : first + few]
            self.device.copy(part, host[:, : part.shape[1]], Queue.PANEL)
        self.device.synchronize()
        return array

    def integers(self, values: np.ndarray) -> Array:
        host = np.asfortranarray(values.astype(np.int32))
        array = self.device.empty(host.shape, host.dtype)
        self.device.copy(array, host, Queue.PANEL)
        self.device.synchronize()
        return array

    def seconds(
        self, work: Callable[[], None], repeats: int = 1, before: Callable[[], None] | None = None
    ) -> float:
        """Median time of one of `repeats` calls in a row, each row after `before`."""
        samples = [self.sample(work, repeats, before) for _ in range(4)]
        return statistics.median(samples[1:])  # the first one warms up

    def sample(
        self,
        work: Callable[[], None],
        repeats: int = 1,
        before: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> float:
        """Time of one of `repeats` calls in a row after `before`, once."""
        if before is not None:
            before()
            self.device.synchronize()
        start = clock()
        for _ in range(repeats):
            work()
        self.device.synchronize()
        return max(clock() - start, 1e-9) / repeats

    def clock(self, seconds: float) -> Callable[[], float]:
        """What to time calls of so many seconds with.

        A long call may be interrupted by other processes: its thread's own time leaves that
        out.  But also waiting for the interpreter's lock, which counts in short ones.
        """
        own = self.alone and seconds > _INTERRUPTED
        return time.thread_time if own else time.perf_counter

    def kernel(
        self,
        kind: str,
        *arrays: Array,
        repeats: int = 1,
        before: Callable[[], None] | None = None,
    ) -> float:
        return self.seconds(lambda: self.call(kind, *arrays), repeats, before)

    def excess(self, model: DeviceModel, kind: str, *arrays: Array) -> float:
        """Time of a kernel beyond the fixed cost of a call."""
        seconds = self.kernel(kind, *arrays, repeats=self.sizes.repeats)
        return max(seconds - model.call_seconds, 1e-9)

    def call(self, kind: str, *arrays: Array) -> None:
        self.device.call(kind, Queue.PANEL, arrays, self.options)


_measured: dict[tuple[Any, ...], Any] = {}
_measuring = ProcessLock()  # two at once would measure each other


def machine_model(
    workers: Sequence[WorkerInfo], dtype: Any = np.float64, *, measure: bool = True
) -> MachineModel:
    """The model of a team of workers, measured where this process can reach their devices.

    What this machine's profile says goes before both measuring and nominal figures.

    Parameters
    ----------
    workers : sequence of WorkerInfo
        The team.  Those of other processes or absent GPUs are taken as nominal.
    dtype : dtype, optional
        Element type of the run.
    measure : bool, optional
        False measures nothing, and so costs nothing.

    Examples
    --------
    >>> from hetero_la.scheduler.device_model import H200
    >>> machine_model([WorkerInfo("gpu0", "gpu", device=0)], measure=False).devices[0] is H200
    True
    """
    model, known = profiled(MachineModel.nominal(workers), workers, dtype)
    if not measure or all(known):
        return model
    try:
        with _measuring:
            return _measured_model(model, workers, known, dtype)
    except MemoryError:  # a GPU full of the user's data can still run in place
        return model


def _measured_model(
    model: MachineModel, workers: Sequence[WorkerInfo], known: Sequence[bool], dtype: Any
) -> MachineModel:
    devices = list(model.devices)
    host_link = model.host_link
    for place, worker in enumerate(workers):
        if known[place] or not worker.here:
            continue
        if worker.kind == "cpu" or worker.virtual:
            with threadpool_limits(worker.blas_threads, "blas"):
                measured = measure_device(CpuDevice(), dtype)
            devices[place] = replace(measured, by_reference=not worker.virtual)
        elif worker.device < gpu_count():
            device = GpuDevice(worker.device)
            devices[place] = measure_device(device, dtype)
            host_link = measure_link(device)
    return replace(model, devices=tuple(devices), host_link=host_link)


def _blas_threads() -> int:
    return max((e["num_threads"] for e in threadpool_info() if e["user_api"] == "blas"), default=1)


def measure_device(device: Device, dtype: Any = np.float64) -> DeviceModel:
    """Measure a device with a few short kernels, once per process.

    Takes about 0.1 s on CPU cores and 0.2 s on a GPU whose libraries are loaded.  The
    result belongs to the device's name, the number of BLAS threads and the dtype; a
    second call with these returns it at once.

    Parameters
    ----------
    device : Device
        What to measure; it must be idle.
    dtype : dtype, optional
        Element type to measure with.
    """
    dtype = np.dtype(dtype)
    key = (device.kind, device.name, device.index, _blas_threads(), dtype.name)
    if key not in _measured:
        with device.activate():
            _measured[key] = fit_device(Probe(device, dtype))
    return _measured[key]


def measure_link(device: Device) -> LinkModel:
    """Measure copies from the host to a device, from pinned memory where there is any.

    Takes a few milliseconds, once per process and device.
    """
    key = ("link", device.kind, device.name, device.index)
    if key not in _measured:
        with device.activate():
            _measured[key] = _measure_link(Probe(device, np.dtype(np.float64)))
    return _measured[key]


def _measure_link(probe: Probe) -> LinkModel:
    seconds = []
    for size in (1, _TRANSFER):
        host = pinned_empty((size, 1), probe.dtype)
        host[...] = 1.0
        array = probe.device.empty(host.shape, probe.dtype)
        seconds.append(probe.seconds(functools.partial(probe.device.copy, array, host, Queue.COPY)))
    latency, long = seconds
    return LinkModel(latency, 8 * _TRANSFER / max(long - latency, 1e-9))
