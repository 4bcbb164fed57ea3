"""What `hetero-la probe` found out about a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.model import NOMINAL_DASK, DaskCosts, LinkModel
from hetero_la.tiles.storage.tile_sizes import TileSizes


class MeasuredDevice(NamedTuple):
    """One kind of worker.

    Attributes
    ----------
    name : str
        A GPU's; empty for the CPU.
    threads : int
        BLAS threads of a CPU worker.
    beside : int
        How many of them worked side by side when they were measured.
    model : DeviceModel
        What was measured of them.
    figures : dict
        What the model does not use, such as the time of a synchronous launch.
    """

    name: str
    threads: int
    beside: int
    model: DeviceModel
    figures: dict[str, float]


class Tuning(NamedTuple):
    """A tile size, or sizes, and look-ahead that were found to be the best of many."""

    routine: str
    workers: str
    dtype: str
    m: int
    n: int
    nrhs: int
    nb: TileSizes
    lookahead: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Profile:
    """What is known of a machine.

    Attributes
    ----------
    machine : dict
        What tells it from others, and its libraries from other versions.
    measured : str
        When, in ISO 8601.
    devices : tuple of MeasuredDevice
        Its workers, by kind and element type.
    links : dict of str to LinkModel
        ``"host_to_gpu"``, ``"gpu_to_host"`` (pinned memory), ``"pageable_to_gpu"``,
        ``"gpu_to_pageable"``, ``"gpu_to_gpu"``, as far as there are any.
    dask : DaskCosts
        What Dask takes in a process.
    tunings : tuple of Tuning
        What `hetero-la tune` has found with it.
    """

    machine: dict[str, Any]
    measured: str
    devices: tuple[MeasuredDevice, ...]
    links: dict[str, LinkModel] = field(default_factory=dict)
    dask: DaskCosts = NOMINAL_DASK
    tunings: tuple[Tuning, ...] = ()

    def device(self, name: str, threads: int, dtype: Any) -> DeviceModel | None:
        """The model of a worker; measured in another type where there is none in its own."""
        found = [d for d in self.devices if (d.name, d.threads) == (name, threads)]
        own = [d for d in found if d.model.dtype == np.dtype(dtype).name]
        return (own or found)[0].model if found else None

    def figures(self, name: str, threads: int, dtype: Any) -> dict[str, float]:
        """What else is known of a worker, measured in this very type."""
        kind = name, threads, np.dtype(dtype).name
        found = [d for d in self.devices if (d.name, d.threads, d.model.dtype) == kind]
        return found[0].figures if found else {}

    def with_tunings(self, tunings: Iterable[Tuning]) -> Profile:
        """The same, with more tunings in the place of those for the same problems."""
        new = tuple(tunings)
        problems = {tuning[:6] for tuning in new}
        others = [old for old in self.tunings if old[:6] not in problems]
        return dataclasses.replace(self, tunings=(*others, *new))

    def merged(self, newer: Profile) -> Profile:
        """With what a later probe of the same machine has found; tunings are void."""
        measured = {(d.name, d.threads, d.model.dtype) for d in newer.devices}
        kept = [
            d for d in self.devices if (d.name, d.threads, d.model.dtype) not in measured
        ]  # fmt: skip
        return dataclasses.replace(
            newer, devices=(*newer.devices, *kept), links={**self.links, **newer.links}
        )
