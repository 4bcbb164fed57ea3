"""Probe of this machine: its CPU workers, its GPUs, and the links between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.identity import machine_identity
from hetero_la.scheduler.machine.model import LinkModel
from hetero_la.scheduler.machine.profile import MeasuredDevice
from hetero_la.scheduler.machine.rate_tables import KernelRates
from hetero_la.scheduler.probe.clock import measure_clock
from hetero_la.scheduler.probe.copies import measure_copies, measure_links, measure_peer_link
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.fit import enqueue_column, enqueue_seconds, fit_device, fit_library
from hetero_la.scheduler.probe.inner_blocking import measure_inner_blocking
from hetero_la.scheduler.probe.issue import measure_issue
from hetero_la.scheduler.probe.kernel_cases import grids, kernel_arrays
from hetero_la.scheduler.probe.kernels import measure_kernels
from hetero_la.scheduler.probe.overlap import fit_overlap
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.kernels.gpu.device import GpuDevice

#: Fraction of the free memory that the arrays of one kernel may take on all workers together.
_SHARE = 0.5
#: Rows and columns of the panel of QR whose launches are timed.
_PANEL = (8192, 256)


class CpuWorkers(NamedTuple):
    """CPU workers of one kind: their number, and the BLAS threads of each."""

    workers: int
    threads: int


@dataclass(frozen=True)
class ProbeSettings:
    """What all parts of a probe need to know.

    Parameters
    ----------
    dtype : dtype
        Element type.
    quick : bool
        Measure fewer sizes.
    report : callable
        Called with a text before each part.
    """

    dtype: np.dtype
    quick: bool = False
    report: Callable[[str], None] = lambda what: None

    def rates(self, probes: Sequence[Probe], free: float, label: str) -> KernelRates:
        """Measure kernels on devices that have so many free bytes for each of them."""
        nbytes, itemsize = _SHARE * free, self.dtype.itemsize
        axes = grids(probes[0].kind, quick=self.quick, nbytes=nbytes, itemsize=itemsize)
        return measure_kernels(probes, axes, lambda kind: self.report(label + kind))


def measure_cpus(team: CpuWorkers, settings: ProbeSettings) -> MeasuredDevice:
    """Measure CPU workers, all at once."""
    free = CpuDevice().free_bytes() / team.workers
    label, report = f"{team.workers} x {team.threads} CPU threads: ", settings.report
    with threadpool_limits(team.threads, "blas"):
        probes = [Probe(CpuDevice(f"cpu{i}"), settings.dtype) for i in range(team.workers)]
        report(label + "calls")
        model = replace(fit_device(probes[0]), issue_seconds=measure_issue(probes))
        report(label + "copies")
        copies = measure_copies(probes)
        rates = settings.rates(probes, free, label)
    model = replace(
        model,
        bandwidth=copies["aligned"],
        load_bandwidth=copies["loaded"],
        turn_bandwidth=copies["turned"],
        rates=rates,
    )
    return MeasuredDevice("", team.threads, team.workers, model, _copy_figures(copies))


def measure_gpu(index: int, settings: ProbeSettings) -> MeasuredDevice:
    """Measure the GPU of CUDA's number `index`."""
    device = GpuDevice(index)
    probe, free = Probe(device, settings.dtype), device.free_bytes()
    label, report = f"gpu{index}: ", settings.report
    with device.activate():
        report(label + "launches")
        model = fit_library(probe, fit_device(probe))
        model = replace(model, issue_seconds=measure_issue([probe]))
        model = replace(model, reflector_launch_seconds=_enqueue_reflector(probe, model))
        figures = _launches(probe)
        report(label + "panels beside updates")
        model = fit_overlap(probe, model)
        report(label + "clock under load")
        model = replace(model, **measure_clock(probe)._asdict())
        report(label + "inner blocking")
        figures |= measure_inner_blocking(probe)
    report(label + "copies")
    copies = measure_copies([probe])
    model = replace(model, bandwidth=copies["aligned"], rates=settings.rates([probe], free, label))
    return MeasuredDevice(
        machine_identity()["gpus"][index], 0, 1, model, figures | _copy_figures(copies)
    )


def _copy_figures(copies: dict[str, float]) -> dict[str, float]:
    return {f"{how}_copy_bandwidth": rate for how, rate in copies.items()}


def _enqueue_reflector(probe: Probe, model: DeviceModel) -> float:
    """Return the seconds to enqueue one column of a panel of QR by Householder's method."""
    by_column = replace(probe, options=KernelOptions(qr_panel="householder"))
    panel = kernel_arrays(by_column, "geqrf", *_PANEL)
    return enqueue_column(by_column, model, "geqrf", panel)


def _launches(probe: Probe) -> dict[str, float]:
    """Return the seconds to enqueue a tiny kernel, and until the host has seen its end."""
    tiny = [probe.array(1, 1) for _ in range(3)]
    return {
        "launch_seconds": enqueue_seconds(probe, "gemm", *tiny),
        "synchronous_launch_seconds": probe.kernel("gemm", *tiny),
    }


def measure_gpu_links(gpus: Sequence[int], dtype: Any = np.float64) -> dict[str, LinkModel]:
    """Return the links of the first GPU with the host, and with the second one, if any."""
    if not gpus:
        return {}
    probes = [Probe(GpuDevice(index), np.dtype(dtype)) for index in gpus[:2]]
    links = measure_links(probes[0])
    if len(probes) == 2:
        links["gpu_to_gpu"] = measure_peer_link(*probes)
    return links
