"""A Dask cluster of one host's workers, in this process."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import dask.config
import distributed.utils
from distributed import Client, SpecCluster
from distributed.core import Status
from distributed.utils import clean_dashboard_address, format_dashboard_link

from hetero_la.configs import load_preset
from hetero_la.scheduler.cluster.placement_plugin import KeepPlacement
from hetero_la.scheduler.cluster.plugins import (
    SETTINGS,
    DeviceWorker,
    EventLoopLogFilter,
    QuietScheduler,
)
from hetero_la.scheduler.cluster.run_page import page_link
from hetero_la.scheduler.cluster.sizing import ClusterSize, memory_bytes
from hetero_la.scheduler.placement.workers import kinds_text
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.arrays.forks import ProcessLock, in_forked_child

_FIXED = "a hetero_la.Cluster keeps the workers it was started with"

#: Seconds after the end in which messages in transit may still log errors.
_CLOSING_SECONDS = 0.02


def _layered(section: str, preset: str | None) -> dict[str, Any]:
    """Return the user's Dask configuration under ``hetero-la``, overlaid with a preset."""
    layers = [dask.config.get("hetero-la", None), load_preset(preset) if preset else None]
    return {
        key.replace("-", "_"): value
        for layer in layers
        for key, value in ((layer or {}).get(section) or {}).items()
    }


# Held while Dask's configuration is changed for a cluster under construction: two
# such changes that overlap would restore each other's values.
_configuration_lock = ProcessLock()
_open_clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()


class Cluster(SpecCluster):  # type: ignore[misc]
    """One host's workers for Dask, in this process: one per GPU, and CPU workers.

    A matrix tile that goes from one worker to another goes by reference.  Use it
    as any Dask cluster: ``Client(cluster)``, ``with Cluster() as cluster: ...``.
    Nothing of the user's Dask configuration is changed.

    Parameters
    ----------
    cpus : int, optional
        CPU workers.  Default: one beside GPU workers, else one per core.
    gpus : int, optional
        GPU workers.  Default: all GPUs that there are, or none with `virtual_gpus`.
    virtual_gpus : int, optional
        CPU workers that take the role of GPU workers, for machines without GPUs.
    blas_threads : int, optional
        BLAS threads of each CPU worker, bounded while its tasks run.  Default:
        the cores shared out.
    gpu_memory : int or str, optional
        Bytes of each GPU that a run may use, also as text, as in ``"40 GB"``: see the option
        `memory` of runs.  Default: all that is free.
    preset : str, optional
        Name of a preset (`available_presets`); explicit arguments win over it.
    dashboard_address : str, optional
        Where to show Dask's dashboard and, in it, the page of runs, as ``"127.0.0.1:8787"``.
        Without a host, as in ``":8787"``, all of the network sees it.  Without bokeh there is the
        page of runs alone.  Default: nowhere.

    Attributes
    ----------
    size : ClusterSize
        Number of workers of each kind.
    options : dict
        Run options of the preset, or of ``hetero-la.options`` in the user's Dask
        configuration, and `gpu_memory`.

    Raises
    ------
    DeviceUnavailableError
        If there are fewer GPUs or cores than asked for.

    Examples
    --------
    >>> from hetero_la.scheduler.cluster.clients import worker_infos
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
        gpu_memory: int | str | None = None,
        preset: str | None = None,
        dashboard_address: str | None = None,
    ) -> None:
        explicit = {
            "cpus": cpus, "gpus": gpus, "virtual_gpus": virtual_gpus, "blas_threads": blas_threads
        }  # fmt: skip
        wanted = _layered("cluster", preset)
        wanted |= {name: value for name, value in explicit.items() if value is not None}
        self.size = ClusterSize.choose(wanted)
        options = _layered("options", preset)
        self.options = {name: value for name, value in options.items() if value is not None}
        if gpu_memory is not None:
            self.options["memory"] = memory_bytes(gpu_memory, "gpu_memory")
            if not self.size.gpus + self.size.virtual_gpus:
                raise ValueError(f"gpu_memory={gpu_memory!r} needs GPUs, and the cluster has none")
        self._own_logs = EventLoopLogFilter()
        self._client: Client | None = None
        self._client_lock = threading.Lock()
        self._dashboard_address = dashboard_address or ""
        self._has_bokeh = importlib.util.find_spec("bokeh") is not None
        own = {"protocol": "inproc://", "blas_threads": self.size.blas_threads}
        workers = {
            device.name: {"cls": DeviceWorker, "options": {**own, "hetero_device": device}}
            for device in self.size.devices()
        }
        with _configuration_lock, dask.config.set(SETTINGS):
            super().__init__(
                scheduler={
                    "cls": QuietScheduler,
                    "options": {
                        "protocol": "inproc://",
                        "dashboard": dashboard_address is not None and self._has_bokeh,
                        "dashboard_address": dashboard_address,
                    },
                },
                workers=workers,
                name="hetero_la",
            )
        _open_clusters.add(self)

    _repr_html_ = as_html
    _ipython_display_ = None  # Dask's widget would offer to scale, which this cluster refuses

    def __repr__(self) -> str:
        size = self.size
        kinds = kinds_text(size.gpus, size.virtual_gpus, size.cpus)
        threads = counted(size.blas_threads, "BLAS thread")
        return one_line(
            "Cluster", kinds, f"{threads} each", self.status.name,
            f"runs: {self.runs_link}" if self.runs_link and self.status == Status.running else "",
        )  # fmt: skip

    def private_client(self) -> Client:
        """Return a client that the cluster keeps for itself, never the default client."""
        with self._client_lock:
            if self._client is None or self._client.status != "running":
                self._client = self._unbatched(Client(self, set_as_default=False))
            return self._client

    def get_client(self) -> Client:
        """Return the current client if it is this cluster's, or else a new, default one."""
        return self._unbatched(super().get_client())

    def _unbatched(self, client: Client) -> Client:
        # A run would wait for up to 10 ms behind the batched releases of the run before
        # (dask/distributed#2345).
        client.scheduler_comm.interval = 0
        self.scheduler.client_comms[client.id].interval = 0
        return client

    def new_worker_spec(self) -> NoReturn:
        """Raise ValueError: Dask's `scale` would start a worker without a device."""
        raise ValueError(f"{_FIXED}: scale can only make it smaller")

    def adapt(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise ValueError: the workers are fixed."""
        raise ValueError(f"{_FIXED}: it cannot adapt")

    @property
    def dashboard_link(self) -> str:
        """URL of Dask's dashboard; empty if there is none, as without bokeh."""
        return self._link if self._has_bokeh else ""

    @property
    def runs_link(self) -> str:
        """URL of the page that shows runs; empty without a `dashboard_address`."""
        return page_link(self._link)

    @property
    def _link(self) -> str:
        """URL of the dashboard: at the address that was asked for, if it names a host."""
        asked_for, *_ = clean_dashboard_address(self._dashboard_address)
        if not asked_for["address"] or not super().dashboard_link:
            return str(super().dashboard_link)
        port = self.scheduler_info["services"]["dashboard"]
        return str(format_dashboard_link(asked_for["address"], port))

    @property
    def healthy(self) -> bool:
        """True if the cluster runs with all its workers."""
        return self.status == Status.running and all(
            name in self.workers and self.workers[name].status == Status.running
            for name in self.worker_spec
        )

    async def _start(self) -> None:
        self._own_logs.install()
        await super()._start()

    async def _close(self) -> None:
        # By itself `SpecCluster._close` retires the workers (`scale(0)`), which moves their results
        # to each other, and `Worker.close` waits for running tasks (distributed 2026.8).
        self._own_logs.level = logging.CRITICAL  # losses are intended now
        if self.scheduler is not None:  # else it has not even started
            self.scheduler.plugins.pop(KeepPlacement.name, None)  # no run is to start again
        await asyncio.gather(
            *(worker.close(executor_wait=False) for worker in self.workers.values())
        )
        await super()._close()
        await asyncio.sleep(_CLOSING_SECONDS)
        self._own_logs.remove()

    def close(self, timeout: float | None = None) -> Any:
        """Close the workers and the scheduler; may be called twice.

        A ``with`` block does this at its end.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which an error is raised.  Default: no limit.

        Examples
        --------
        >>> cluster = Cluster(cpus=1, gpus=0)
        >>> cluster.healthy
        True
        >>> cluster.close()
        >>> cluster.healthy
        False
        """
        if self.status == Status.running and self._client and not self.asynchronous:
            self._client.close()
        return super().close(timeout)


@in_forked_child
def _forget_parent() -> None:
    """Mark the parent's clusters as closed in a forked child, and renew Dask's thread pool.

    The threads of the parent do not exist there (dask/distributed#2249), among them that of the
    pool by which `distributed.utils.offload` packs large messages.
    """
    for cluster in list(_open_clusters):
        cluster.status = Status.closed
        if cluster._client is not None:
            cluster._client.status = "closed"
    distributed.utils._offload_executor = ThreadPoolExecutor(1, thread_name_prefix="Dask-Offload")
