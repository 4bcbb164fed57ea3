"""The machine model: devices, the links between them, and Dask's overhead."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.device import H200, DeviceModel, cores
from hetero_la.scheduler.placement.workers import (
    Transport,
    WorkerInfo,
    over_processes,
    transport_of,
)
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.kernels.device import Products


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Latency and bandwidth of a link: b bytes take ``latency + b / bandwidth`` seconds.

    Examples
    --------
    >>> LinkModel(1e-5, 50e9).seconds(50_000_000)
    0.00101
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def seconds(self, nbytes: float) -> float:
        """Return the time of one transfer."""
        return self.latency + nbytes / self.bandwidth


#: An H200 with the time that Python takes for an instruction, on the hosts of those measured.
_H200 = replace(H200, issue_seconds=5e-5)
#: Links between workers of different processes, by name.  NCCL on one host: measured on two H200
#: joined by NVLink; over the network: one adapter of 400 Gbit/s.  Shared memory: two copies.
NOMINAL_LINKS: Mapping[str, LinkModel] = {
    "NCCL": LinkModel(1e-5, 356e9),
    "NCCL over the network": LinkModel(1.5e-5, 50e9),
    "shared memory": LinkModel(1e-4, 4e9),
    "Dask's messages": LinkModel(2e-3, 1e9),
}


def link_name(first: WorkerInfo, second: WorkerInfo) -> str:
    """Return the name of the link between two workers: their transport, of which NCCL has two.

    Examples
    --------
    >>> here, there = (WorkerInfo("gpu0", "gpu", host=host) for host in "ab")
    >>> link_name(here, there)
    'NCCL over the network'
    """
    transport = transport_of(first, second)
    far = transport is Transport.NCCL and first.host != second.host
    return f"{transport} over the network" if far else transport.value


#: Memory order of the user's array; "in place": the result overwrites it; "pinned": it does, in
#: pinned memory, where a GPU itself copies from and to.
Source = Literal["row-major", "column-major", "in place", "pinned"]


#: How many times as long a copy of a streamed run takes by the host's threads, on an H200's host:
#: others go the other way at once, and the thread that enqueues waits for it.
_BOTH_WAYS = 2.5


class DaskCosts(NamedTuple):
    """Dask's overhead in a run, in seconds.

    Attributes
    ----------
    start : float
        Overhead of a run: until the first worker has begun, and from the end of the last
        worker until the client knows of it.
    hop : float
        From the end of one task until the next one on the same worker begins.
    """

    start: float
    hop: float


NOMINAL_DASK = DaskCosts(5e-3, 2e-3)  #: in a process with cores to spare
NOMINAL_CLUSTER_DASK = DaskCosts(1e-2, 6e-3)  #: over processes, with Dask's own settings
#: Tasks one after the other that a run over processes has more for Dask arrays: one that names it,
#: one that holds a block of the input, one that knows of all ends, one for a block of the result.
_ARRAY_TASKS = 4
#: Of `DaskCosts.hop`, what a task takes that waits for no other (measured: 1.2 of 5.7 ms).
_QUEUED = 0.2
#: Largest part of a run that all its Dask tasks together may take.
_DASK_SHARE = 0.03


@dataclass(frozen=True, slots=True, repr=False)
class MachineModel:
    """Devices of all workers, and the links between them.

    Attributes
    ----------
    devices : tuple of DeviceModel
        One per worker.
    workers : tuple of WorkerInfo
        The workers of these devices; empty: all are in one process.
    host_link, peer_link : LinkModel
        Between pinned memory and a GPU, and two GPUs of one process.
    load_link, store_link : LinkModel
        From pageable memory to a GPU and back, by threads and pinned buffers.
    new_link : LinkModel
        From a GPU to pageable memory to whose pages nobody has written: the kernel clears them.
    pinning : LinkModel
        Of pinning pageable memory that has been written to, and of letting it go.
    pinning_new : LinkModel
        The same, of memory to whose pages nobody has written: threads write to each before.
    links : dict of str to LinkModel
        Between workers of different processes, by `link_name`.
    dask : DaskCosts
        Dask's overhead.
    measured : str
        Time at which the profile was made from which the model is; empty if from none.
    name : str
        Name of a described machine; empty for this one, or a cluster.

    Examples
    --------
    >>> from hetero_la.scheduler.machine.device import CORE, H200
    >>> machine = MachineModel((CORE, H200, H200))
    >>> [round(1e3 * machine.transfer_seconds(396_000_000, 1, to), 1) for to in (0, 1, 2)]
    [7.2, 0.0, 1.0]
    """

    devices: tuple[DeviceModel, ...]
    workers: tuple[WorkerInfo, ...] = ()
    host_link: LinkModel = LinkModel(1e-5, 55e9)
    load_link: LinkModel = LinkModel(1e-4, 40e9)
    store_link: LinkModel = LinkModel(1e-4, 40e9)
    new_link: LinkModel = LinkModel(2.5e-4, 20e9)
    pinning: LinkModel = LinkModel(1e-4, 22e9)
    pinning_new: LinkModel = LinkModel(1e-4, 15e9)
    peer_link: LinkModel = LinkModel(1e-5, 396e9)
    links: Mapping[str, LinkModel] = field(default_factory=lambda: NOMINAL_LINKS)
    dask: DaskCosts = NOMINAL_DASK
    measured: str = ""
    name: str = ""

    _repr_html_ = as_html

    def __repr__(self) -> str:
        source = f"measured {self.measured}" if self.measured else "nominal figures"
        return one_line("MachineModel", counted(len(self.devices), "worker"), source)

    @classmethod
    def nominal(cls, workers: Sequence[WorkerInfo]) -> MachineModel:
        """Return a model that needs no measuring: every GPU an H200, every core `CORE`."""
        return cls(
            tuple(
                _H200
                if worker.has_gpu
                else cores(worker.blas_threads, by_reference=not worker.virtual)
                for worker in workers
            ),
            tuple(workers),
            dask=NOMINAL_CLUSTER_DASK if over_processes(workers) else NOMINAL_DASK,
        )

    def computing(self, products: Products) -> MachineModel:
        """Return the model of runs that compute large products in another way; see `Options`."""
        devices = (replace(device, products=products) for device in self.devices)
        return self if products == "native" else replace(self, devices=tuple(devices))

    @property
    def unmeasured(self) -> list[int]:
        """Indices of the devices whose kernels no profile has measured."""
        return [place for place, d in enumerate(self.devices) if not d.rates.tables]

    def host_threads(self) -> list[list[int]]:
        """Return the workers of each host thread: the GPUs of a process, or one CPU worker."""
        infos = self.workers or [None] * len(self.devices)
        teams: dict[object, list[int]] = {}
        for w, (device, info) in enumerate(zip(self.devices, infos, strict=True)):
            process = (info.host, info.pid) if info else None
            teams.setdefault(process if device.kind == "gpu" else w, []).append(w)
        return list(teams.values())

    def link(self, source: int, target: int) -> str:
        """Return the name of the link between two workers, given by their indices."""
        if not self.workers:
            return Transport.ONE_PROCESS.value
        return link_name(self.workers[source], self.workers[target])

    def for_blocks(self, given: int, made: int, nbytes: float) -> MachineModel:
        """Return the model of runs over processes on Dask arrays, which begin and end later.

        Parameters
        ----------
        given, made : int
            Number of blocks of the input, and of the result.
        nbytes : float
            Size of the input, which lies evenly with the workers and goes to others as evenly.
        """
        workers = len(self.workers)
        tasks = _ARRAY_TASKS + _QUEUED * (given + made) / workers
        part = nbytes / workers**2
        brought = sum(self.transfer_seconds(part, other, 0) for other in range(1, workers))
        start = self.dask.start + tasks * self.dask.hop + brought
        return replace(self, dask=self.dask._replace(start=start))

    def host_seconds(
        self, nbytes: float, worker: int, *, store: bool = False, source: Source = "row-major",
        streamed: bool = False,
    ) -> float:  # fmt: skip
        """Return the time to move bytes between the user's array and a worker's memory.

        Parameters
        ----------
        nbytes : float
            Number of bytes.
        worker : int
            Index of the worker.
        store : bool, optional
            Whether they go to the user's array; a CPU worker that works there stores nothing.
        source : {"row-major", "column-major", "in place", "pinned"}, optional
            Memory order of the user's array, or where it is.
        streamed : bool, optional
            Whether the worker has memory for some of the columns only.  Pageable memory is then
            read and written at once, and by all GPUs, at one rate of the host.
        """
        device = self.devices[worker]
        if device.kind == "gpu":
            link = self._host_link(store, source)
            if streamed and source != "pinned":
                nbytes *= _BOTH_WAYS * sum(other.kind == "gpu" for other in self.devices)
            return link.seconds(nbytes)
        if device.by_reference and not streamed and (store or source in ("in place", "pinned")):
            return 0.0
        if store:
            return nbytes / device.bandwidth
        turned = source == "row-major"
        return nbytes / (device.turn_bandwidth if turned else device.load_bandwidth)

    def _host_link(self, store: bool, source: Source) -> LinkModel:
        """Return the link between a GPU and the user's array, or the result's."""
        if source == "pinned":
            return self.host_link
        if not store:
            return self.load_link
        return self.store_link if source == "in place" else self.new_link

    def transfer_seconds(
        self, nbytes: float, source: int, target: int, *, private: bool = False, receivers: int = 1
    ) -> float:
        """Return the time to move bytes from one worker to another.

        Parameters
        ----------
        nbytes : float
            Number of bytes.
        source, target : int
            Indices of the workers.
        private : bool, optional
            Whether the target needs a copy even where it could read in place.
        receivers : int, optional
            To how many workers the source sends these bytes at once by the same link between
            processes, whose bandwidth they share.
        """
        if source == target:
            return 0.0
        sender, receiver = self.devices[source], self.devices[target]
        gpus = [d for d in (sender, receiver) if d.kind == "gpu"]
        if (link := self.link(source, target)) != Transport.ONE_PROCESS:
            # All but NCCL lead from the host memory of one process to that of another.
            copies = 0 if link.startswith(Transport.NCCL) else len(gpus)
            sent = self.links[link].seconds(receivers * nbytes)
            return sent + copies * self.host_link.seconds(nbytes)
        if len(gpus) == 2:
            return self.peer_link.seconds(nbytes)
        if gpus:
            return self.host_link.seconds(nbytes)
        return nbytes / receiver.bandwidth if private or not receiver.by_reference else 0.0


def graph_seconds(
    graph: TaskGraph, placement: Sequence[int], model: MachineModel, dtype: Any
) -> np.ndarray:
    """Return the time of each task of a placed graph on its worker, shape (tasks,), in seconds.

    Each task is a call of its own; programs merge adjacent columns, and are faster.
    """
    known: dict[tuple[Any, ...], float] = {}
    shape_of = functools.cache(graph.shape)
    seconds = np.empty(len(graph))
    for task, worker in zip(graph.tasks, placement, strict=True):
        shapes = [shape_of(region) for region in task.accesses]
        key = (worker, task.kind, *shapes)
        if key not in known:
            known[key] = model.devices[worker].kernel_seconds(task.kind, shapes, dtype)
        seconds[task.index] = known[key]
    return seconds


def window_steps(
    predicted_seconds: float,
    steps: int,
    workers: int,
    *,
    task_seconds: float = 2e-3,
) -> int:
    """Return the steps per Dask task: the smallest window that keeps Dask's share small.

    Parameters
    ----------
    predicted_seconds : float
        Of the whole run.
    steps, workers : int
        Steps of the factorization; each window of them is one task per worker.
    task_seconds : float, optional
        Time of Dask's event loop for one task, whatever the number of workers.

    Returns
    -------
    int
        Between 1 and `steps`; all steps for one worker, or where no window is
        large enough.

    Examples
    --------
    >>> window_steps(1.25, 64, 4), window_steps(60.0, 64, 4), window_steps(0.1, 64, 4)
    (16, 1, 64)
    """
    windows = int(_DASK_SHARE * predicted_seconds / (task_seconds * workers))
    if workers == 1 or windows < 1:
        return max(steps, 1)
    return max(math.ceil(steps / windows), 1)
