"""Virtual GPUs of different speeds, and plans that know of them as from a profile."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hetero_la.planning import planner, teams
from hetero_la.scheduler.cluster import sizing
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.machine.device import CORE, Chain, DeviceModel
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Array, KernelOptions, Queue


class SlowCpu(CpuDevice):
    """A CPU whose kernels take some times as long: it sleeps after each of them."""

    def __init__(self, name: str, slowdown: float, **options: Any) -> None:
        super().__init__(name, **options)
        self._slowdown = slowdown

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        began = time.perf_counter()
        super().call(kernel, queue, arrays, options)
        time.sleep((self._slowdown - 1) * (time.perf_counter() - began))


class SlowGpu(SlowCpu, VirtualGpu):
    """The same in the role of a GPU."""


def slower(device: DeviceModel, slowdown: float) -> DeviceModel:
    """The model of a device whose kernels take some times as long."""

    def chain(steps: Chain) -> Chain:
        return Chain(steps.column * slowdown, steps.element * slowdown)

    seconds = ("call_seconds", "factor_column", "index_seconds", "swap_seconds", "gather_seconds")
    return replace(
        device, gemm_rate=device.gemm_rate / slowdown, panel=chain(device.panel),
        inverse=chain(device.inverse),
        **{name: slowdown * getattr(device, name) for name in seconds},
    )  # fmt: skip


#: A core as a profile might have it; the nominal one is of no machine in particular.
MEASURED = replace(CORE, gemm_rate=50e9)


@contextlib.contextmanager
def known(devices: Mapping[str, DeviceModel], **links: Any) -> Iterator[None]:
    """Let plans have measured models of the workers of these names, and of links."""

    def machine_model(workers: Sequence[WorkerInfo], *_: Any, **__: Any) -> MachineModel:
        nominal = MachineModel.nominal(workers)
        models = [
            devices.get(w.name, model) for w, model in zip(workers, nominal.devices, strict=True)
        ]
        return replace(nominal, devices=tuple(models), **links)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teams, "machine_model", machine_model)
        planner._cached_plan.cache_clear()
        yield
    planner._cached_plan.cache_clear()


@contextlib.contextmanager
def everybody_owns_columns() -> Iterator[None]:
    """Let plans think that more owners are always faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teams._Choice, "_estimate", lambda self, _, __, ___, own, at: 1 / len(own))
        planner._cached_plan.cache_clear()
        yield
    planner._cached_plan.cache_clear()


@contextlib.contextmanager
def cluster_of(
    gpus: Sequence[float], cpu: float = 1.0, core: DeviceModel = MEASURED
) -> Iterator[Cluster]:
    """A cluster of virtual GPUs and a CPU worker that are so much slower than a core.

    Plans know it, with a model of that core.
    """
    speeds = {f"gpu{i}": slowdown for i, slowdown in enumerate(gpus)}
    devices = {
        name: replace(slower(core, slowdown), by_reference=False)
        for name, slowdown in speeds.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizing, "VirtualGpu", lambda name: SlowGpu(name, speeds[name]))
        patch.setattr(sizing, "CpuDevice", functools.partial(SlowCpu, slowdown=cpu))
        running = Cluster(cpus=1, gpus=0, virtual_gpus=len(gpus), blas_threads=1)
    with running, known({**devices, "cpu0": slower(core, cpu)}):
        yield running
