"""Quick probe of devices and links, by a few short kernels and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.model import LinkModel, MachineModel
from hetero_la.scheduler.machine.this_machine import with_profile
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.probe.copies import host_pairs, link
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.fit import fit_device
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.blas import blas_threads
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice

_Figures = TypeVar("_Figures")
#: Elements of the transfers to which a link is fitted.
_TRANSFERS = (1, 2**21)
#: Short kernels run at full clock.  How long an H200 keeps it, and what is left of its speed
#: on random data then, of which `measure_clock` takes too long to find out.
_BURST, _SUSTAINED = 0.1, 0.9
_measured: dict[tuple[Any, ...], Any] = {}
_measuring = ProcessLock()  # two probes at once would slow each other


def machine_model(
    workers: Sequence[WorkerInfo], dtype: Any = np.float64, *, measure: bool = True
) -> MachineModel:
    """Return the model of a team of workers, measured where this process has their devices.

    Figures of this machine's profile take precedence over measured and nominal ones.

    Parameters
    ----------
    workers : sequence of WorkerInfo
        The team.  Workers of other processes, or of absent GPUs, get nominal models.
    dtype : dtype, optional
        Element type of the run.
    measure : bool, optional
        Whether to measure devices that the profile does not have.

    Examples
    --------
    >>> from hetero_la.scheduler.machine.device import H200
    >>> machine_model([WorkerInfo("gpu0", "gpu", device=0)], measure=False).devices[0] is H200
    True
    """
    model, known = with_profile(MachineModel.nominal(workers), workers, dtype)
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


def measure_device(device: Device, dtype: Any = np.float64) -> DeviceModel:
    """Measure a device with a few short kernels, once per process.

    Takes about 0.1 s on CPU cores and 0.2 s on a GPU whose libraries are loaded.  The
    result belongs to the device's name, the number of BLAS threads and the dtype; a
    second call with these returns it at once.

    Parameters
    ----------
    device : Device
        The device, which must be idle.
    dtype : dtype, optional
        Element type to measure with.
    """
    model = _measured_once(fit_device, device, np.dtype(dtype), blas_threads())
    return replace(model, burst=_BURST, sustained=_SUSTAINED) if device.index >= 0 else model


def measure_link(device: Device) -> LinkModel:
    """Measure copies from the host to a device, from pinned memory if possible.

    Takes a few milliseconds, once per process and device.
    """
    return _measured_once(_host_link, device, np.dtype(np.float64))


def _host_link(probe: Probe) -> LinkModel:
    return link(probe, host_pairs(probe, _TRANSFERS))


def _measured_once(
    measure: Callable[[Probe], _Figures], device: Device, dtype: np.dtype, *more: Any
) -> _Figures:
    """Return what is measured on a device, for the first time or from then."""
    key = (measure, device.kind, device.name, device.index, dtype.name, *more)
    if key not in _measured:
        with device.activate():
            _measured[key] = measure(Probe(device, dtype))
    return _measured[key]
