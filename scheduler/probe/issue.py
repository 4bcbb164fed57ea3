"""Probe of the time that a worker's thread takes from one kernel's call to the next."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, cast

from hetero_la.scheduler.exchange.enqueuer import enqueuer_of
from hetero_la.scheduler.exchange.in_process import ThreadPort
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.kernels import sample_together
from hetero_la.scheduler.program.instructions import CallKernel, Instruction, Program
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.runner import Runner
from hetero_la.tiles.kernels.device import Array, Device, KernelOptions, Queue
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage

#: Order and number of the products.  They are large enough to evict the interpreter from a core's
#: caches, as in a run, where it is slower than in a loop that does nothing else.
_ORDER, _CALLS = 256, 24


class _TimedDevice:
    """A device that records when its calls began and returned."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.calls: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        began = time.perf_counter()
        self._device.call(kernel, queue, arrays, options)
        self.calls.append((began, time.perf_counter()))


def measure_issue(probes: Sequence[Probe]) -> float:
    """Return the seconds from the return of one kernel's call to the next one in a program.

    Parameters
    ----------
    probes : sequence of Probe
        One for each device; all run at once.  Threads of several wait for their turn, as in a run.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la.tiles.kernels.cpu.device import CpuDevice
    >>> 0 < measure_issue([Probe(CpuDevice(), np.dtype(float))]) < 1e-2
    True
    """
    (gaps,) = sample_together(probes, _program_and_array, _gaps, [len(probes)])
    return statistics.median(gaps)


def _program_and_array(probe: Probe) -> tuple[Probe, Program, Array]:
    product = (Region("A", 0, 1, 2), Region("A", 1, 0, 1), Region("A", 1, 1, 2))
    calls: list[Instruction] = [CallKernel(step, 1, 1, "gemm", product) for step in range(_CALLS)]
    return probe, Program(0, [0, 1], calls), probe.array(2 * _ORDER, 2 * _ORDER)


def _gaps(prepared: tuple[Probe, Program, Array], devices: int) -> list[float]:
    """Return the times between calls in a run of one of the devices, without its first calls."""
    probe, program, array = prepared
    watched = _TimedDevice(probe.device)
    layout = TileLayout(2 * _ORDER, 2 * _ORDER, _ORDER)
    job = Job("gemm", [program], {}, (), layout, probe.dtype, probe.options, 1)
    storage = ArrayStorage(array, array)
    device = cast(Device, watched)
    table = WaitTable()
    port = ThreadPort(table, enqueuer_of(table, devices), 0, device)
    runner = Runner(job, 0, device, storage, port)
    runner.run(0, _CALLS)
    runner.finish()
    ends = [end for _, end in watched.calls]
    starts = [start for start, _ in watched.calls]
    return [start - end for end, start in zip(ends[2:-1], starts[3:], strict=True)]
