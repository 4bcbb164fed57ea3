"""Profile of a machine, as `hetero-la probe` measures it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.model import (
    NOMINAL_CLUSTER_DASK,
    NOMINAL_DASK,
    NOMINAL_LINKS,
    DaskCosts,
    LinkModel,
)
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.storage.tile_sizes import TileSizes, tiles_texts

#: On an idle machine samples differ by 3 to 15 %, on one whose cores were shared by 50 to 150 %.
_MOST_SPREAD = 0.4


class MeasuredDevice(NamedTuple):
    """Measured figures of one kind of worker.

    Attributes
    ----------
    name : str
        The GPU's; empty for the CPU.
    threads : int
        BLAS threads of a CPU worker.
    beside : int
        Number of such workers that were busy at once while they were measured.
    model : DeviceModel
        The model of one of them.
    figures : dict
        Figures that the model does not use, such as the time of a synchronous launch.
    """

    name: str
    threads: int
    beside: int
    model: DeviceModel
    figures: dict[str, float]

    def __repr__(self) -> str:
        disturbed = "the machine was busy" if self.disturbed else ""
        kernels = counted(len(self.model.rates.tables), "kernel")
        return one_line("MeasuredDevice", self.title, self.model.dtype, kernels, disturbed)

    @property
    def title(self) -> str:
        """What was measured: a GPU's name, or so many threads."""
        return self.name or f"{self.beside} x {self.threads} CPU threads, side by side"

    @property
    def disturbed(self) -> bool:
        """Whether the machine was so busy with other work that choices would suffer."""
        return self.model.rates.spread > _MOST_SPREAD


class Tuning(NamedTuple):
    """The fastest tile size, or sizes, look-ahead and two-level blocking found for a problem."""

    routine: str
    workers: str
    dtype: str
    m: int
    n: int
    nrhs: int
    nb: TileSizes
    lookahead: int
    seconds: float
    coarse: int | None = None

    def __repr__(self) -> str:
        return one_line(
            "Tuning", f"{self.routine} of {self.m} x {self.n} {self.dtype}",
            f"{counted(self.nrhs, 'right-hand side')}" if self.nrhs else "", self.workers,
            *tiles_texts(self.nb, self.coarse, self.lookahead), in_seconds(self.seconds),
        )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """Measured figures of a machine.

    Attributes
    ----------
    machine : dict
        Its hardware and the versions of its libraries, see `machine_identity`.
    measured : str
        Time of measurement, in ISO 8601.
    devices : tuple of MeasuredDevice
        Its workers, by kind and element type.
    links : dict of str to LinkModel
        ``"host_to_gpu"``, ``"gpu_to_host"`` (pinned memory), ``"pageable_to_gpu"``,
        ``"gpu_to_pageable"``, ``"gpu_to_new"`` (memory that nobody has written to),
        ``"pinning"``, ``"pinning_new"`` (pinning pageable memory, and letting it go),
        ``"gpu_to_gpu"``, and those of `NOMINAL_LINKS` between processes, as far as they were
        measured.
    dask, cluster_dask : DaskCosts
        Dask's overhead in a process, and on the cluster of other processes that was measured.
    tunings : tuple of Tuning
        Results of `hetero-la tune`.
    """

    machine: dict[str, Any]
    measured: str
    devices: tuple[MeasuredDevice, ...]
    links: dict[str, LinkModel] = field(default_factory=dict)
    dask: DaskCosts = NOMINAL_DASK
    cluster_dask: DaskCosts = NOMINAL_CLUSTER_DASK
    tunings: tuple[Tuning, ...] = ()

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return one_line(
            "Profile", f"measured {self.measured}", counted(len(self.devices), "device"),
            counted(len(self.links), "link"), counted(len(self.tunings), "tuning"),
        )  # fmt: skip

    def device(self, name: str, threads: int, dtype: Any) -> DeviceModel | None:
        """Return the model of a worker, if need be for another dtype; None if there is none.

        What was measured on a busy machine is as good as none.
        """
        usable = [d for d in self.devices if not d.disturbed]
        found = [d for d in usable if (d.name, d.threads) == (name, threads)]
        own = [d for d in found if d.model.dtype == np.dtype(dtype).name]
        return (own or found)[0].model if found else None

    def figures(self, name: str, threads: int, dtype: Any) -> dict[str, float]:
        """Return the further figures of a worker, measured in exactly this dtype."""
        kind = name, threads, np.dtype(dtype).name
        found = [d for d in self.devices if (d.name, d.threads, d.model.dtype) == kind]
        return found[0].figures if found else {}

    def with_tunings(self, tunings: Iterable[Tuning]) -> Profile:
        """Return a copy with more tunings, which replace those for the same problems."""
        new = tuple(tunings)
        problems = {tuning[:6] for tuning in new}
        others = [old for old in self.tunings if old[:6] not in problems]
        return dataclasses.replace(self, tunings=(*others, *new))

    def merged(self, newer: Profile) -> Profile:
        """Return a copy with the results of a later probe of the machine, without tunings.

        They replace earlier ones of the same workers, unless only these are undisturbed.
        """
        devices = {(d.name, d.threads, d.model.dtype): d for d in newer.devices}
        for old in self.devices:
            key = (old.name, old.threads, old.model.dtype)
            if key not in devices or (devices[key].disturbed and not old.disturbed):
                devices[key] = old
        return dataclasses.replace(
            newer,
            devices=tuple(devices.values()),
            links={**self.links, **newer.links},
            cluster_dask=self.cluster_dask,
        )

    def with_cluster(self, links: Mapping[str, LinkModel], dask: DaskCosts) -> Profile:
        """Return a copy with what was measured on a cluster of other processes, the last one."""
        kept = {name: link for name, link in self.links.items() if name not in NOMINAL_LINKS}
        return dataclasses.replace(self, links={**kept, **links}, cluster_dask=dask)
