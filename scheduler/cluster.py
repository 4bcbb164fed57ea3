"""One host's workers for Dask, and how to reach a cluster's workers as a client."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import importlib.util
import logging
import os
import platform
import re
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.config
import distributed.utils
from dask.system import CPU_COUNT
from distributed import Client, Future, SpecCluster
from distributed.core import Status

from hetero_la.configs import available_presets, load_preset
from hetero_la.scheduler.dask_plugins import (
    SETTINGS,
    DeviceWorker,
    OwnLogs,
    QuietScheduler,
    describe,
    inside_task,
    this_device,
)
from hetero_la.scheduler.workers import WorkerInfo
from hetero_la.tiles.errors import DeviceUnavailableError, RunAbortedError
from hetero_la.tiles.kernels.cpu import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.gpu import GpuDevice, gpu_count
from hetero_la.tiles.kernels.spec import Device

__all__ = [
    "Cluster",
    "ClusterSize",
    "available_presets",
    "default_blas_threads",
    "default_cpu_workers",
    "embedded_client",
    "inside_task",
    "load_preset",
    "running_client",
    "this_device",
    "wait_all",
    "worker_infos",
]

#: Seconds between looks at whether the workers of a run are still there.
_LOOK_INTERVAL = 0.25


def default_cpu_workers(cores: int) -> int:
    """CPU workers on a host without GPUs: one, whose BLAS uses all cores."""
    return 1


def default_blas_threads(cores: int, cpus: int, gpus: int, virtual_gpus: int = 0) -> int:
    """BLAS threads of each CPU worker.

    The workers share the cores.  Where GPUs are driven, the event loop and each
    GPU worker's thread keep a core: a late launch leaves a GPU idle.

    Parameters
    ----------
    cores : int
        Cores of the host.
    cpus, gpus, virtual_gpus : int
        Workers of each kind.

    Examples
    --------
    >>> default_blas_threads(cores=16, cpus=1, gpus=4)
    11
    >>> default_blas_threads(cores=8, cpus=2, gpus=0, virtual_gpus=2)
    2
    """
    reserved = 1 + gpus if gpus else 0
    return max((cores - reserved) // max(cpus + virtual_gpus, 1), 1)


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSize:
    """Workers of a cluster.

    Attributes
    ----------
    cpus, gpus, virtual_gpus : int
        Workers of each kind.
    blas_threads : int
        BLAS threads of each CPU worker.
    """

    cpus: int
    gpus: int
    virtual_gpus: int
    blas_threads: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), int(field.name == "blas_threads")
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field.name} must be an integer of at least {least}: {value!r}")
        if self.cpus + self.gpus + self.virtual_gpus == 0:
            raise ValueError("a cluster needs at least one worker: cpus, gpus or virtual_gpus")

    @classmethod
    def choose(cls, wanted: Mapping[str, Any], cores: int) -> ClusterSize:
        """Fill in what is left open (None or absent) for this machine."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(wanted) - known):
            raise ValueError(
                f"unknown cluster setting {unknown[0]!r}: choose from {', '.join(sorted(known))}"
            )
        given = {name: value for name, value in wanted.items() if value is not None}
        virtual = given.setdefault("virtual_gpus", 0)
        if "gpus" not in given:
            given["gpus"] = 0 if virtual else gpu_count()
        gpus = given["gpus"]
        given.setdefault("cpus", 1 if gpus or virtual else default_cpu_workers(cores))
        given.setdefault("blas_threads", 1)
        size = cls(**given)  # validates, so that the arithmetic below can rely on it
        if gpus > (there := gpu_count() if gpus else 0):
            raise DeviceUnavailableError(
                f"{gpus} GPUs were asked for, but this machine has {there}"
            )
        if wanted.get("blas_threads") is not None:
            return size
        threads = default_blas_threads(cores, size.cpus, gpus, virtual)
        return dataclasses.replace(size, blas_threads=threads)

    def devices(self) -> list[Device]:
        """Create the devices: GPUs first, each kind numbered from 0."""
        gpus: list[Device] = [GpuDevice(i, f"gpu{i}") for i in range(self.gpus)]
        virtual = [VirtualGpu(f"gpu{self.gpus + i}") for i in range(self.virtual_gpus)]
        cpus = [CpuDevice(f"cpu{i}", pinned=self.gpus > 0) for i in range(self.cpus)]
        return [*gpus, *virtual, *cpus]


def _layered(section: str, preset: str | None) -> dict[str, Any]:
    """The user's Dask configuration under ``hetero-la``, overlaid with a preset."""
    layers = [dask.config.get("hetero-la", None), load_preset(preset) if preset else None]
    return {
        key.replace("-", "_"): value
        for layer in layers
        for key, value in ((layer or {}).get(section) or {}).items()
    }


# Held while Dask's configuration is changed for a cluster under construction: two
# such changes that overlap would restore each other's values.
_configuration_lock = threading.Lock()
_open_clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()


class Cluster(SpecCluster):  # type: ignore[misc]
    """One host's workers for Dask, in this process: one per GPU, and CPU workers.

    A matrix tile that goes from one worker to another goes by reference.  Use it
    as any Dask cluster: ``Client(cluster)``, ``with Cluster() as cluster: ...``.
    Nothing of the user's Dask configuration is changed.

    Parameters
    ----------
    cpus : int, optional
        CPU workers.  Default: one.
    gpus : int, optional
        GPU workers.  Default: all GPUs that there are, or none with `virtual_gpus`.
    virtual_gpus : int, optional
        CPU workers that take the role of GPU workers, for machines without GPUs.
    blas_threads : int, optional
        BLAS threads of each CPU worker, bounded while its tasks run.  Default:
        the cores shared out.
    preset : str, optional
        Name of a preset (`available_presets`); explicit arguments win over it.
    dashboard_address : str, optional
        Where to show Dask's dashboard, as ``":8787"``; needs bokeh.  Default: nowhere.

    Attributes
    ----------
    size : ClusterSize
        What it consists of.
    options : dict
        Run options that the preset, or ``hetero-la.options`` in the user's Dask
        configuration, fixes.

    Raises
    ------
    DeviceUnavailableError
        If there are fewer GPUs than asked for.

    Examples
    --------
    >>> with Cluster(cpus=1, virtual_gpus=2) as cluster:
    ...     [info.name for info in worker_infos(cluster.private_client())]
    ['gpu0', 'gpu1', 'cpu0']
    """

    def __init__(
        self,
        *,
        cpus: int | None = None,
        gpus: int | None = None,
        virtual_gpus: int | None = None,
        blas_threads: int | None = None,
        preset: str | None = None,
        dashboard_address: str | None = None,
    ) -> None:
        explicit = {
            "cpus": cpus, "gpus": gpus, "virtual_gpus": virtual_gpus, "blas_threads": blas_threads
        }  # fmt: skip
        wanted = _layered("cluster", preset)
        wanted |= {name: value for name, value in explicit.items() if value is not None}
        self.size = ClusterSize.choose(wanted, CPU_COUNT)
        options = _layered("options", preset)
        self.options = {name: value for name, value in options.items() if value is not None}
        self._own_logs = OwnLogs()
        self._client: Client | None = None
        self._client_lock = threading.Lock()
        dashboard = dashboard_address is not None and _dashboard_there()
        with _configuration_lock, dask.config.set(SETTINGS):
            super().__init__(
                scheduler={
                    "cls": QuietScheduler,
                    "options": {
                        "protocol": "inproc://",
                        "dashboard": dashboard,
                        "dashboard_address": dashboard_address,
                    },
                },
                workers={device.name: self._worker(device) for device in self.size.devices()},
                name="hetero_la",
            )
        _open_clusters.add(self)

    def _worker(self, device: Device) -> dict[str, Any]:
        on_cpu = isinstance(device, CpuDevice)
        info = WorkerInfo(
            name=device.name,
            kind=device.kind,
            pid=os.getpid(),
            host=platform.node(),
            device=device.index,
            virtual=isinstance(device, VirtualGpu),
            blas_threads=self.size.blas_threads if on_cpu else 1,
        )
        options = {"protocol": "inproc://", "hetero_device": device, "hetero_info": info}
        return {"cls": DeviceWorker, "options": options}

    def private_client(self) -> Client:
        """Client that the cluster keeps for itself; nobody's default client."""
        with self._client_lock:
            if self._client is None or self._client.status != "running":
                self._client = Client(self, set_as_default=False)
            return self._client

    @property
    def healthy(self) -> bool:
        """Whether it runs with all its workers."""
        return self.status == Status.running and all(
            name in self.workers and self.workers[name].status == Status.running
            for name in self.worker_spec
        )

    async def _start(self) -> None:
        self._own_logs.install()
        await super()._start()

    async def _close(self) -> None:
        # The usual way would first move results from worker to worker, and wait
        # for running tasks.
        self._own_logs.level = logging.CRITICAL  # what is lost now is meant to be lost
        await asyncio.gather(
            *(worker.close(executor_wait=False) for worker in self.workers.values())
        )
        await super()._close()
        self._own_logs.remove()

    def close(self, timeout: float | None = None) -> Any:
        """End the workers and the scheduler; may be called twice."""
        if self.status == Status.running and self._client and not self.asynchronous:
            self._client.close()
        return super().close(timeout)


def _dashboard_there() -> bool:
    if importlib.util.find_spec("bokeh") is None:
        warnings.warn("no dashboard is shown, because bokeh is not installed", stacklevel=3)
        return False
    return True


def running_client(client: object = None) -> Client | None:
    """Client that a run uses, or None.

    Parameters
    ----------
    client : Client, Cluster or None, optional
        The user's choice; None takes the current default client.  Inside a task
        that is not taken: a task that waits for others may wait for ever.

    Raises
    ------
    TypeError
        If it is something else.
    ValueError
        If it cannot be used.
    """
    if client is None:
        return None if inside_task() else _default_client()
    if isinstance(client, Cluster):
        if client.status != Status.running:
            raise ValueError("the cluster that was given is closed")
        return client.private_client()
    if not isinstance(client, Client):
        raise TypeError(
            "client must be a dask.distributed.Client or a hetero_la.Cluster, "
            f"not {type(client).__name__}"
        )
    if client.asynchronous:
        raise ValueError("the client that was given is asynchronous: a synchronous one is needed")
    if client.status != "running":
        raise ValueError(f"the client that was given is not running: it is {client.status}")
    return client


def _default_client() -> Client | None:
    try:
        client = Client.current()
    except ValueError:
        return None
    return client if client.status == "running" and not client.asynchronous else None


_embedded_lock = threading.Lock()
_embedded: Cluster | None = None


def embedded_client() -> Client:
    """Client of the process's own cluster, which starts on first use.

    It has the default workers of `Cluster`, ends when the main thread does (Dask
    takes no work after that), and is started anew if it was closed, lost a worker,
    or the process is a fork.
    """
    global _embedded
    with _embedded_lock:
        if _embedded is None or not _embedded.healthy:
            if _embedded is not None:
                _embedded.close()
            _embedded = Cluster()
        return _embedded.private_client()


def _close_embedded() -> None:
    global _embedded
    with _embedded_lock:
        if _embedded is not None:
            _embedded.close()
            _embedded = None


def _forget_parent() -> None:
    """In a forked child: what the parent's threads did is never done here, so do not wait for it.

    Dask hands large messages to a thread pool of the whole process, which must be new too.
    """
    global _embedded, _embedded_lock, _configuration_lock
    _embedded_lock, _configuration_lock = threading.Lock(), threading.Lock()
    _embedded = None
    for cluster in list(_open_clusters):
        cluster.status = Status.closed
        if cluster._client is not None:
            cluster._client.status = "closed"
    if _open_clusters:
        distributed.utils._offload_executor = ThreadPoolExecutor(
            1, thread_name_prefix="Dask-Offload"
        )


# The event loop needs threads to close, and the interpreter takes them away before it
# runs what is registered with atexit.
getattr(threading, "_register_atexit", atexit.register)(_close_embedded)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


_infos: weakref.WeakKeyDictionary[Client, list[WorkerInfo]] = weakref.WeakKeyDictionary()


def worker_infos(client: Client, *, refresh: bool = False) -> list[WorkerInfo]:
    """Workers of a cluster, ours or not: GPUs by index, then CPUs by name.

    Parameters
    ----------
    client : Client
        Any synchronous client.
    refresh : bool, optional
        Ask the workers again (for the memory that is free now) although they are
        the same as at the last call.
    """
    addresses = set(client.scheduler_info(n_workers=-1)["workers"])
    known = _infos.get(client)
    if refresh or known is None or addresses != {info.address for info in known}:
        known = sorted(client.run(describe).values(), key=_order)
        _infos[client] = known
    return list(known)


def _order(info: WorkerInfo) -> tuple[Any, ...]:
    digits = re.split(r"(\d+)", info.name)  # so that cpu10 comes after cpu9
    name = tuple(int(part) if i % 2 else part for i, part in enumerate(digits))
    return (info.kind != "gpu", info.device, name, info.address)


class _UnfinishedError(Exception):
    """A future that will never have a result."""

    def __init__(self, future: Future) -> None:
        super().__init__(future.key)
        self.future = future


def wait_all(client: Client, futures: Sequence[Future], workers: Sequence[str]) -> None:
    """Wait until all `futures` are done, or one of them cannot be.

    Whatever ends the wait early (an error, a lost worker, Ctrl-C) also cancels
    the futures.

    Parameters
    ----------
    client : Client
        Their client.
    futures : sequence of Future
        What to wait for.
    workers : sequence of str
        Addresses of the workers that they are tied to; Dask would wait for ever
        for one that has left.

    Raises
    ------
    Exception
        What the first failing task raised.
    RunAbortedError
        If a worker has left, the futures were cancelled, or the cluster is gone.
    """
    try:
        client.sync(_settle, client, futures, workers)
    except _UnfinishedError as unfinished:
        error = _reason(unfinished.future)
        _cancel(client, futures)
        raise error from None
    except BaseException:
        _cancel(client, futures)
        raise


async def _settle(client: Client, futures: Sequence[Future], workers: Sequence[str]) -> None:
    async def finish(future: Future) -> None:
        await future._state.wait()
        if future.status != "finished":
            raise _UnfinishedError(future)

    waiting = {asyncio.ensure_future(finish(future)) for future in futures}
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=_LOOK_INTERVAL, return_when=asyncio.FIRST_EXCEPTION
            )
            errors = [error for task in done if (error := task.exception())]
            if errors:
                raise min(errors, key=_is_echo)
            if waiting:
                await _check_workers(client, workers)
    finally:
        for task in waiting:
            task.cancel()


def _is_echo(error: BaseException) -> bool:
    """Whether it only says that the run ends, and another error may say why."""
    return isinstance(error, _UnfinishedError) and isinstance(
        _reason(error.future), RunAbortedError
    )


async def _check_workers(client: Client, workers: Sequence[str]) -> None:
    try:
        present = await client.nthreads()
    except (OSError, AttributeError) as error:  # a closed client has no scheduler
        raise RunAbortedError("the connection to Dask's scheduler was lost") from error
    if lost := [address for address in workers if address not in present]:
        names = {info.address: info.name for info in _infos.get(client, ())}
        label = f"{names[lost[0]]} ({lost[0]})" if lost[0] in names else lost[0]
        raise RunAbortedError(f"worker {label} left the cluster before its work was done")


def _reason(future: Future) -> BaseException:
    if future.status == "error":
        return future._state.exception.with_traceback(future._state.traceback)
    return RunAbortedError(f"the run was cancelled: task {future.key!r} is {future.status}")


def _cancel(client: Client, futures: Sequence[Future]) -> None:
    with contextlib.suppress(Exception):
        client.cancel(list(futures), reason="hetero_la", msg="the run has ended early")
