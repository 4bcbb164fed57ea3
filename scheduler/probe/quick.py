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
from hetero_la.tiles.kernels.cpu.blas_threads import blas_threads
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice

_Figures = TypeVar("_Figures")
#: Elements of the transfers to which a link is fitted.
_TRANSFERS = (1, 2**21)
#: Sizes of the product, and by which factor it may be faster or slower than that of a nominal GPU,
#: for a GPU to be taken for one.
_PRODUCT, _ALIKE = (4096, 4096, 512), 1.5
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
    >>> machine_model([WorkerInfo("gpu0", "gpu", device=0)], measure=False).devices[0]
    DeviceModel(gpu, float64, 5.4e+04 Gflop/s in products)
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
    here = [place for place, worker in enumerate(workers) if worker.here and not known[place]]
    gpus = {
        place: GpuDevice(workers[place].device)
        for place in here
        if workers[place].kind == "gpu" and 0 <= workers[place].device < gpu_count()
    }
    for gpu in gpus.values():
        link = measure_link(gpu)
        staged = replace(model.load_link, bandwidth=min(model.load_link.bandwidth, link.bandwidth))
        new = replace(model.new_link, bandwidth=min(model.new_link.bandwidth, link.bandwidth))
        model = replace(model, host_link=link, load_link=staged, store_link=staged, new_link=new)
    # Beside GPUs as fast as the nominal one it makes no difference what cores can do.
    if gpus and all(_is_nominal(gpu, model.devices[place], dtype) for place, gpu in gpus.items()):
        return model
    devices = list(model.devices)
    for place in here:
        worker = workers[place]
        if place in gpus:
            devices[place] = measure_device(gpus[place], dtype)
        elif worker.kind == "cpu" or worker.virtual:
            with threadpool_limits(worker.blas_threads, "blas"):
                measured = measure_device(CpuDevice(), dtype)
            devices[place] = replace(measured, by_reference=not worker.virtual)
    return replace(model, devices=tuple(devices))


def _is_nominal(device: Device, model: DeviceModel, dtype: Any) -> bool:
    """Return whether a device multiplies about as fast as its model says: a few milliseconds.

    What a run takes first is what it loads anyway.
    """
    m, n, k = _PRODUCT
    found = _measured_once(_product_seconds, device, np.dtype(dtype))
    expected = model.kernel_seconds("gemm", [(m, k), (k, n), (m, n)], dtype)
    return 1 / _ALIKE < found / expected < _ALIKE


def _product_seconds(probe: Probe) -> float:
    m, n, k = _PRODUCT
    return probe.kernel("gemm", probe.array(m, k), probe.array(k, n), probe.array(m, n), repeats=4)


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
    return _measured_once(fit_device, device, np.dtype(dtype), blas_threads())


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
