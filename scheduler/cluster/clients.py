"""Clients by which a run reaches a cluster's workers: the user's, or that of our own cluster."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dask.utils import natural_sort_key
from distributed import Client, Scheduler, Security, Worker, rpc
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.cluster.devices import current_worker, describe
from hetero_la.scheduler.cluster.run_page import WatchRuns, page_link
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.arrays.errors import DeviceUnavailableError, RunAbortedError
from hetero_la.tiles.arrays.forks import ProcessLock, in_forked_child

#: Seconds that a client may take to connect to its scheduler.
_CONNECT_SECONDS = 30.0
#: Seconds in which a scheduler that is there answers.
_ANSWER_SECONDS = 5.0
#: Types of the argument `client` of public functions.
ClientLike = Client | Cluster | None


def running_client(client: object = None) -> Client | None:
    """Return the client that a run uses, or None.

    Parameters
    ----------
    client : Client, Cluster or None, optional
        The user's choice; None takes the current default client, except inside a task: a
        task that waits for others may wait for ever.

    Raises
    ------
    TypeError
        If `client` is neither a Client nor a Cluster.
    ValueError
        If it is closed, asynchronous, not connected, or of a parent process.
    """
    if client is None:
        return _default_client() if Client._instances and not current_worker() else None
    if isinstance(client, Cluster):
        if client.status != Status.running:
            raise ValueError("the cluster that was given is closed")
        return client.private_client()
    if not isinstance(client, Client):
        raise TypeError(
            "client must be a dask.distributed.Client or a hetero_la.Cluster, "
            f"not {type(client).__name__}"
        )
    if client in _inherited:
        raise ValueError("the client that was given belongs to the process that forked this one")
    if client.asynchronous:
        raise ValueError("the client that was given is asynchronous: a synchronous one is needed")
    # Tasks of workers of one process that ask for a client at once may get one that is not ready.
    until = time.monotonic() + _CONNECT_SECONDS
    while client.status in ("newly-created", "connecting") and time.monotonic() < until:
        time.sleep(0.01)
    if client.status != "running":
        raise ValueError(f"the client that was given is not running: it is {client.status}")
    return client


@contextlib.contextmanager
def client_at(address: str) -> Iterator[Client]:
    """Connect to the scheduler of a running cluster, for the length of the block.

    Parameters
    ----------
    address : str
        Address of the scheduler, as ``"tcp://10.0.0.1:8786"``.

    Raises
    ------
    ConnectionError
        If no scheduler answers there within seconds.
    DeviceUnavailableError
        If it has no workers.
    """
    try:
        identity = asyncio.run(_identity(address))
        if identity["type"] != "Scheduler":
            raise ValueError(f"a {identity['type']} does")
        client = Client(address, timeout=_ANSWER_SECONDS, set_as_default=False)
    except Exception as error:  # of any kind, as whatever is there may answer anything
        said = str(error) or "it says nothing"
        raise ConnectionError(f"no Dask scheduler answers at {address!r}: {said}") from error
    with client:
        if not running_addresses(client):
            raise DeviceUnavailableError(f"the Dask cluster at {address} has no running workers")
        yield client


async def _identity(address: str) -> dict[str, Any]:
    """Ask a Dask server who it is: `Client` would wait for ever for one that says nothing."""
    security = Security().get_connection_args("client")
    async with rpc(address, timeout=_ANSWER_SECONDS, connection_args=security) as server:
        answer: dict[str, Any] = await asyncio.wait_for(server.identity(), _ANSWER_SECONDS + 1)
    return answer


def _default_client() -> Client | None:
    try:
        client = Client.current()
    except ValueError:
        return None
    usable = client not in _inherited and client.status == "running" and not client.asynchronous
    return client if usable else None


_embedded_lock = ProcessLock()
_embedded: Cluster | None = None
#: Clients of the process from which this one was forked: their event loops run there.
_inherited: weakref.WeakSet[Client] = weakref.WeakSet()


@in_forked_child
def _forget_parent() -> None:
    global _embedded
    _embedded = None
    _inherited.update(Client._instances)


def embedded_client() -> Client:
    """Return a client of the process's own cluster, which starts on first use.

    The cluster has the default workers of `Cluster`, ends with the program, and is started
    anew if it was closed, lost a worker, or the process is a fork.
    """
    global _embedded
    with _embedded_lock:
        if _embedded is None or not _embedded.healthy:
            if _embedded is not None:
                _embedded.close()
            _embedded = Cluster()
        return _embedded.private_client()


def started_client() -> Client | None:
    """Return a client of the process's own cluster if that is running, without starting it."""
    with _embedded_lock:
        return _embedded.private_client() if _embedded and _embedded.healthy else None


def embedded_can_run() -> bool:
    """Return whether the process's own cluster can run tasks.

    It cannot once the main thread has ended, when threads that are not daemons, and functions
    registered with atexit, may still run.
    """
    return threading.main_thread().is_alive()


def _close_embedded() -> None:
    global _embedded
    with _embedded_lock:
        if _embedded is not None:
            _embedded.close()
            _embedded = None


# Not in the earlier shutdown of `threading`: there distributed's `Worker.close` takes the main
# thread as alive and starts a thread to close its executor, which Python 3.12.0 and 3.12.1 refuse.
# Once the main thread has ended it starts none, and the program's other threads have ended too.
atexit.register(_close_embedded)


_installed: weakref.WeakKeyDictionary[Client, set[type]] = weakref.WeakKeyDictionary()


def install(client: Client, plugin: type[SchedulerPlugin]) -> None:
    """Install a plugin in the client's scheduler, once."""
    if plugin not in _installed.setdefault(client, set()):
        with while_open(client):
            client.register_plugin(plugin())
        _installed[client].add(plugin)


def watch_runs(client: Client) -> None:
    """Let the scheduler of a client show the runs of its workers to whoever looks.

    Our own clusters do so from their beginning, if they have an HTTP server.
    """
    if not isinstance(client.cluster, Cluster):
        install(client, WatchRuns)


def runs_link(client: Client) -> str:
    """Return the URL of the page that shows the runs of a client's cluster; empty if none does."""
    watch_runs(client)
    cluster = client.cluster
    return cluster.runs_link if isinstance(cluster, Cluster) else page_link(client.dashboard_link)


_infos: weakref.WeakKeyDictionary[Client, list[WorkerInfo]] = weakref.WeakKeyDictionary()


def worker_infos(client: Client, *, refresh: bool = False) -> list[WorkerInfo]:
    """Return the workers of any cluster: GPUs by index, then CPUs by name.

    Workers that are paused, or are just leaving, are left out.

    Parameters
    ----------
    client : Client
        Any synchronous client.
    refresh : bool, optional
        Ask the workers again (for the memory that is free now) although they are
        the same as at the last call.

    Examples
    --------
    >>> import hetero_la
    >>> with hetero_la.Cluster(cpus=1, virtual_gpus=1) as cluster, cluster.get_client() as client:
    ...     [worker.name for worker in worker_infos(client)]
    ['gpu0', 'cpu0']
    """
    addresses = running_addresses(client)
    known = _infos.get(client)
    if refresh or known is None or addresses != {info.address for info in known}:
        known = sorted(_described(client, addresses), key=_order)
        known = _infos[client] = list(_with_unique_names(known))
        _warn_without_nccl(known)
    return list(known)


def _warn_without_nccl(infos: Sequence[WorkerInfo]) -> None:
    """Warn of GPUs in several processes whose messages go through host memory."""
    gpus = [info for info in infos if info.has_gpu]
    unable = [info for info in gpus if info.no_nccl]
    if unable and len({(info.host, info.pid) for info in gpus}) > 1:
        worker = unable[0]
        warnings.warn(
            f"panels go through host memory, as worker {worker.label} has no NCCL: "
            f"{worker.no_nccl}",
            RuntimeWarning,
            stacklevel=2,
        )


def _with_unique_names(infos: list[WorkerInfo]) -> Iterator[WorkerInfo]:
    """Yield the workers with unique names, after which tasks are named."""
    count = Counter(info.name for info in infos)
    for info in infos:
        alone = count[info.name] == 1
        yield info if alone else replace(info, name=f"{info.name} at {info.address}")


def _described(client: Client, addresses: set[str]) -> list[WorkerInfo]:
    """Return descriptions of workers; those of this process directly, and not through Dask."""
    workers = getattr(client.cluster, "workers", None)  # any type in other kinds of clusters
    here = {
        worker.address: worker
        for worker in (list(workers.values()) if isinstance(workers, dict) else ())
        if isinstance(worker, Worker) and worker.status in (Status.running, Status.paused)
    }
    if addresses <= here.keys():
        return [describe(here[address]) for address in addresses]
    infos = []
    with while_open(client):
        answers = client.run(describe, apart=True, workers=list(addresses), on_error="return")
    for address, answer in answers.items():
        if isinstance(answer, WorkerInfo):
            infos.append(answer)
        elif not isinstance(answer, OSError):  # OSError: it has left meanwhile
            said = f"worker {address} could not say what it is: {answer}"
            raise RunAbortedError(said) from answer
    return infos


def running_addresses(client: Client) -> set[str]:
    """Return the addresses of the workers that take tasks: present, and not paused."""
    scheduler = getattr(client.cluster, "scheduler", None)
    if isinstance(scheduler, Scheduler) and client.status == "running":  # no message is needed
        return {state.address for state in list(scheduler.running)}
    with while_open(client):
        return set(client.sync(client.scheduler.ncores_running))


@contextlib.contextmanager
def while_open(client: Client) -> Iterator[None]:
    """Raise RunAbortedError if the client is closed, also for errors in the block due to that."""
    _require_open(client)
    try:
        yield
    except Exception:
        _require_open(client)
        raise


def _require_open(client: Client) -> None:
    if client.status != "running":
        raise RunAbortedError(f"the client of the Dask cluster is {client.status}")


def known_infos(client: Client) -> list[WorkerInfo]:
    """Return the last result of `worker_infos`, without asking the workers."""
    return list(_infos.get(client, ()))


def _order(info: WorkerInfo) -> tuple[Any, ...]:
    return (info.kind != "gpu", info.device, natural_sort_key(info.name), info.address)
