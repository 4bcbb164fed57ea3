"""A profile of this machine with made-up figures, for tests."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

from hetero_la.scheduler.machine.device import CORE, DeviceModel, cores
from hetero_la.scheduler.machine.identity import machine_identity
from hetero_la.scheduler.machine.model import DaskCosts, LinkModel
from hetero_la.scheduler.machine.profile import MeasuredDevice, Profile
from hetero_la.scheduler.machine.profile_file import write_profile
from hetero_la.scheduler.machine.rate_tables import KernelRates, RateTable, work
from hetero_la.tiles.kernels.cpu.device import usable_cores

#: Flop/s of the made-up core, whatever the sizes.
RATE = 1e9
AXES = {
    "gemm": ((64, 1024), (64, 512), (64, 2048)),
    "getrf": ((512, 4096), (32, 256)),
    "geqrf": ((512, 4096), (32, 256)),
}


def table(kind: str, rate: float = RATE, spread: float = 0.01) -> RateTable:
    """A kernel of a constant rate."""
    axes = AXES[kind]
    seconds = [work(kind, sizes) / rate for sizes in itertools.product(*axes)]
    return RateTable(kind, axes, tuple(seconds), (spread,) * len(seconds))


def measured(model: DeviceModel = CORE, threads: int = 1, spread: float = 0.01) -> MeasuredDevice:
    rates = KernelRates(tuple(table(kind, spread=spread) for kind in AXES))
    return MeasuredDevice("", threads, 2, replace(model, rates=rates), {"aligned": 1e10})


def profile(*devices: MeasuredDevice) -> Profile:
    """Of workers with one BLAS thread, unless told otherwise; and of the calling thread."""
    known = devices or (measured(), measured(cores(4), threads=usable_cores()))
    return Profile(
        machine_identity(), "2026-01-02T03:04:05+00:00", known,
        {"host_to_gpu": LinkModel(1e-5, 5e10)}, DaskCosts(0.5, 0.25),
    )  # fmt: skip


def kept(path: Path | None = None) -> Path:
    """Written where plans look for it."""
    place = path or Path(os.environ["HETERO_LA_PROFILE"])
    write_profile(profile(), place)
    return place
