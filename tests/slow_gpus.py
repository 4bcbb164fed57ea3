"""Virtual GPUs of different speeds, and what a profile would say of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hetero_la.planning import planner, teams
from hetero_la.scheduler.cluster import sizing
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.machine.device import CORE, DeviceModel
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.kernels.cpu.device import VirtualGpu
from hetero_la.tiles.kernels.device import Array, KernelOptions, Queue


class SlowGpu(VirtualGpu):
    """A virtual GPU whose kernels take some times as long: it sleeps after each of them."""

    def __init__(self, name: str, slowdown: float) -> None:
        super().__init__(name)
        self._slowdown = slowdown

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        began = time.perf_counter()
        super().call(kernel, queue, arrays, options)
        time.sleep((self._slowdown - 1) * (time.perf_counter() - began))


def slower(device: DeviceModel, slowdown: float) -> DeviceModel:
    """A model of the device whose kernels take some times as long."""
    return replace(
        device,
        call_seconds=device.call_seconds * slowdown,
        gemm_rate=device.gemm_rate / slowdown,
        panel=replace_chain(device.panel, slowdown),
        inverse=replace_chain(device.inverse, slowdown),
        factor_column=device.factor_column * slowdown,
        index_seconds=device.index_seconds * slowdown,
        swap_seconds=device.swap_seconds * slowdown,
        gather_seconds=device.gather_seconds * slowdown,
    )


def replace_chain(chain: Any, slowdown: float) -> Any:
    return chain._replace(column=chain.column * slowdown, element=chain.element * slowdown)


#: As a profile might have it; not the nominal model, which is of no machine in particular.
MEASURED = replace(CORE, gemm_rate=50e9)


@contextlib.contextmanager
def known_speeds(slowdowns: Mapping[str, float], core: DeviceModel = MEASURED) -> Iterator[None]:
    """Let plans know how much slower than `core` the workers of these names are."""

    def known(workers: Sequence[WorkerInfo], *args: Any, **options: Any) -> MachineModel:
        devices = [
            replace(slower(core, slowdowns.get(w.name, 1.0)), by_reference=not w.virtual)
            for w in workers
        ]
        return replace(MachineModel.nominal(workers), devices=tuple(devices), measured="now")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teams, "machine_model", known)
        planner._cached_plan.cache_clear()
        yield
    planner._cached_plan.cache_clear()


@contextlib.contextmanager
def cluster_of(slowdowns: Sequence[float], cpus: int = 1) -> Iterator[Cluster]:
    """A cluster of CPU workers beside virtual GPUs that are so much slower, and known to be."""
    names = {f"gpu{i}": slowdown for i, slowdown in enumerate(slowdowns)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizing, "VirtualGpu", lambda name: SlowGpu(name, names[name]))
        running = Cluster(cpus=cpus, gpus=0, virtual_gpus=len(slowdowns), blas_threads=1)
    with running, known_speeds(names):
        yield running
