"""Timing of kernels and copies on one device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.tiles.kernels.cpu.blas_threads import blas_threads
from hetero_la.tiles.kernels.device import Array, Device, DeviceKind, KernelOptions, Queue


@dataclass(frozen=True)
class ProbeSizes:
    """Sizes of the probes: each takes milliseconds, much longer than a call's fixed cost."""

    edge: int
    inner: tuple[int, int]
    narrow: int
    panel: tuple[int, int, int]
    orders: tuple[int, int]
    rows: int
    columns: int
    repeats: int


_SIZES = {
    "cpu": ProbeSizes(512, (256, 32), 32, (384, 2048, 192), (64, 192), 4096, 512, 1),
    "gpu": ProbeSizes(4096, (512, 128), 256, (4096, 32768, 256), (128, 512), 16384, 2048, 8),
}


#: Calls longer than this, in seconds, are likely to be interrupted on a machine in use.
_INTERRUPTED = 1e-3


@dataclass
class Probe:
    """Timing of kernels on one device, on random data: zeros draw less power and run faster."""

    device: Device
    dtype: np.dtype
    options: KernelOptions = field(default_factory=KernelOptions)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(0)
        # A CPU in the role of a GPU runs its calls itself.
        self.kind: DeviceKind = "gpu" if self.device.index >= 0 else "cpu"
        self.sizes = _SIZES[self.kind]
        #: Whether a call runs in one thread, so that thread time can replace wall time.
        self.alone = self.kind == "cpu" and blas_threads() == 1

    def array(
        self, rows: int, columns: int, diagonal: float | None = None, scale: float = 1.0
    ) -> Array:
        """Return a random matrix; with a `diagonal`, one whose triangles are well conditioned."""
        # Random numbers are slow to make: 64 columns are repeated where there is no diagonal.
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
        """Return the median time of one of `repeats` calls in a row, each row after `before`."""
        samples = [self.sample(work, repeats, before) for _ in range(4)]
        return statistics.median(samples[1:])  # the first sample is a warm-up

    def sample(
        self,
        work: Callable[[], None],
        repeats: int = 1,
        before: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> float:
        """Return one sample of the time of one of `repeats` calls in a row after `before`."""
        if before is not None:
            before()
            self.device.synchronize()
        start = clock()
        for _ in range(repeats):
            work()
        self.device.synchronize()
        return max(clock() - start, 1e-9) / repeats

    def clock(self, seconds: float) -> Callable[[], float]:
        """Return the clock for calls that take about `seconds`.

        Thread time leaves out interruptions by other processes, to which long calls are exposed;
        it also leaves out waits for the interpreter lock, which belong to the time of short calls.
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
        """Return the time of a kernel beyond the fixed cost of a call."""
        seconds = self.kernel(kind, *arrays, repeats=self.sizes.repeats)
        return max(seconds - model.call_seconds, 1e-9)

    def call(self, kind: str, *arrays: Array) -> None:
        self.device.call(kind, Queue.PANEL, arrays, self.options)
