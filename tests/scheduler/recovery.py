"""What the tests of lost workers do inside workers, and how they start and end these.

Nothing here may import pytest: worker processes import it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, secede

ROOT = str(Path(__file__).parents[2])


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator[Client]:
    """Processes that are restarted when they end; nothing else changes their status."""
    with (
        # Some time after a worker has left, the cluster gives it up if it is away once more.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=0,
            silence_logs=logging.CRITICAL,
        ) as running,
        Client(running, set_as_default=False) as client,
    ):  # fmt: skip
        yield client


def die_at(place: str, count: int = 1, how: int = signal.SIGKILL) -> None:
    """End or stop this process in the `count`-th call of a kernel or of a task's function."""
    from hetero_la.scheduler.on_dask import run_tasks
    from hetero_la.tiles.kernels import registry

    calls = [0]

    def watched(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == count:
                os.kill(os.getpid(), how)
            return real(*args, **kwargs)

        return call

    if hasattr(run_tasks, place):
        setattr(run_tasks, place, watched(getattr(run_tasks, place)))
    else:
        kernels = registry._IMPLEMENTATIONS
        kernels.update({key: watched(kernels[key]) for key in kernels if key[1] == place})


_calls: Counter[str] = Counter()  # of kernels, by the kind of device, in this process


def count_kernels() -> None:
    """Count the calls of kernels from now on, which `calls_of_kernels` returns."""
    from hetero_la.tiles.kernels import registry

    def counted(kind: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            _calls[kind] += 1
            return real(*args, **kwargs)

        return call

    if not _calls:
        _calls.update(cpu=0, gpu=0)
        kernels = registry._IMPLEMENTATIONS
        kernels.update({key: counted(key[0], real) for key, real in kernels.items()})


def calls_of_kernels() -> Counter[str]:
    """Calls of kernels since the last question, by the kind of device."""
    found = Counter(_calls)
    _calls["cpu"] = _calls["gpu"] = 0
    return found


_real: dict[tuple[str, str], Any] = {}  # kernels that are replaced in this process


def slow_down(seconds: float) -> None:
    """Let every product take longer."""

    def slow(*arrays: Any, options: Any) -> None:
        time.sleep(seconds)
        _real["cpu", "gemm"](*arrays, options=options)

    _replace("gemm", slow)


def break_kernel(name: str) -> None:
    """Let a kernel fail."""

    def broken(*arrays: Any, options: Any) -> None:
        raise ArithmeticError("out of order")

    _replace(name, broken)


def _replace(name: str, kernel: Any) -> None:
    from hetero_la.tiles.kernels import registry

    _real.setdefault(("cpu", name), registry.implementation(name, "cpu"))
    registry._IMPLEMENTATIONS["cpu", name] = kernel


def slow_blocks(seconds: float, first: int | None = None) -> None:
    """Let blocks of results take longer, or that with the `first` column; 0: no longer."""
    from hetero_la.scheduler.on_dask import run_tasks

    real = getattr(run_tasks.block_of, "real", run_tasks.block_of)

    def slow(finished: Any, start: int, *args: Any) -> Any:
        if first in (None, start):
            secede()  # others are not kept waiting
            soon(lambda: run_tasks.block_of is not slow, seconds)
        return real(finished, start, *args)

    slow.real = real  # type: ignore[attr-defined]
    run_tasks.block_of = slow if seconds else real


def mend() -> None:
    """Put the real kernels back."""
    from hetero_la.tiles.kernels import registry

    registry._IMPLEMENTATIONS.update(_real)


def shards() -> list[Any]:
    """Shards that this process holds."""
    from hetero_la.scheduler.on_dask import held_shard

    return [held.share for held in list(held_shard._alive) if not held.empty]


def communicators() -> list[Any]:
    """Names of the communicators that this process keeps."""
    from hetero_la.scheduler.exchange.communicators import _communicators

    return [communicator.name for communicator in _communicators.values()]


def gpu_arrays() -> dict[int, tuple[int, list[str]]]:
    """Arrays on a worker's GPU, without what kernels and communicators keep for later.

    That grows with runs, and differs with a worker's place among the others.  The memory's address
    -> its bytes, and the types of what refers to the array.
    """
    import cupy

    from hetero_la.scheduler.exchange.communicators import _communicators
    from hetero_la.tiles.kernels.gpu.queue import GpuQueue

    # Devices beside the worker's own have queues, too: companions, and those of runs in one task.
    queues = [one for one in gc.get_objects() if type(one) is GpuQueue]
    kept = [array for q in queues for array in (*q._workspaces.values(), *q._outgrown)]
    kept += [array for each in _communicators.values() for array in each._packed]  # type: ignore[attr-defined]
    known = {array.data.mem.ptr for array in kept}
    found = {}
    for array in (everything := gc.get_objects()):
        if type(array) is cupy.ndarray and array.size and array.data.mem.ptr not in known:
            refer = [type(one).__name__ for one in gc.get_referrers(array) if one is not everything]
            found[int(array.data.mem.ptr)] = int(array.data.mem.size), refer
    return found


def set_status(status: str, *, dask_worker: Any) -> None:
    """Pause a worker, or let it go on, as its memory monitor does."""
    from distributed.core import Status

    dask_worker.status = Status[status]


def pause_for(seconds: float, *, dask_worker: Any) -> None:
    """Pause a worker for some time."""
    set_status("paused", dask_worker=dask_worker)
    dask_worker.loop.call_later(seconds, lambda: set_status("running", dask_worker=dask_worker))


def tasks(*, dask_scheduler: Any) -> list[str]:
    """Tasks that the scheduler knows, clients' own functions left out."""
    return [str(key) for key in dask_scheduler.tasks]


def connections(*, dask_scheduler: Any) -> int:
    """How often clients have connected: a client does it anew after an error in the scheduler."""
    events = dask_scheduler.get_events("all")
    return sum(event.get("action") == "add-client" for _, event in events)


def at_rest(client: Client, seconds: float = 10.0) -> bool:
    """Whether the workers hold no shard, and Dask no task or result, within some seconds."""

    def rest() -> bool:
        held = client.run(shards, on_error="ignore").values()
        return not any(held) and not client.run_on_scheduler(tasks)

    return soon(rest, seconds)


def soon(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether something is true within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.1)
    return False


def wait_for_workers(client: Client, count: int) -> None:
    """Wait until there are `count` workers, and all of them answer."""
    if not soon(lambda: len(client.run(os.getpid, on_error="ignore")) == count, 60):
        raise TimeoutError(f"there are not {count} workers")


def kill_later(client: Client, victim: int, seconds: float) -> threading.Timer:
    """Kill the worker process of some number after a while; to be joined."""
    pids = sorted(client.run(os.getpid).values())
    timer = threading.Timer(seconds, os.kill, (pids[victim % len(pids)], signal.SIGKILL))
    timer.start()
    return timer


class Hosts:
    """Worker processes without nannies, on addresses of the loopback network.

    Parameters
    ----------
    hosts : sequence of str
        An address for each worker.
    own : str, optional
        The scheduler's.
    """

    def __init__(self, hosts: Sequence[str], own: str = "127.0.0.1") -> None:
        environment = {**os.environ, "PYTHONPATH": ROOT}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = environment
        command = ["scheduler", "--host", own, "--port", "0", "--no-dashboard"]
        scheduler = self._start([*command], stderr=subprocess.PIPE)
        assert scheduler.stderr is not None
        self.address = ""
        for line in scheduler.stderr:
            if b"Scheduler at:" in line:
                self.address = line.split()[-1].decode()
                break
        self._log = scheduler.stderr
        self._drain = threading.Thread(target=self._log.read, daemon=True)
        self._drain.start()
        for host in hosts:
            self.add(host)

    def add(self, host: str, *arguments: str, inside: Sequence[str] = ()) -> None:
        """Start a worker, by the command `inside` if there is one."""
        self._start(
            ["worker", self.address, "--no-nanny", "--host", host, "--nthreads", "1",
             "--memory-limit", "0", "--no-dashboard", "--death-timeout", "60", *arguments],
            stderr=subprocess.DEVNULL, inside=inside,
        )  # fmt: skip

    def _start(
        self, arguments: list[str], stderr: int, inside: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*inside, sys.executable, "-m", f"distributed.cli.dask_{arguments[0]}", *arguments[1:]],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self._drain.join()
        self._log.close()
