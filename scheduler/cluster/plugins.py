"""Workers, scheduler, plugins and settings of our own Dask clusters."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from distributed import Scheduler, Status, Worker
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.threadpoolexecutor import ThreadPoolExecutor

from hetero_la.scheduler.cluster.run_page import WatchRuns
from hetero_la.tiles.arrays.transfer import wait_for_gpus
from hetero_la.tiles.kernels.cpu.blas_threads import blas_bound
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice

#: Dask configuration of our own clusters; the user's is not changed.
SETTINGS: dict[str, Any] = {
    # Tasks are placed by us: stealing and rebalancing would only look for work.
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    # A task that is tied to a worker that has left fails instead of waiting for ever.
    "distributed.scheduler.no-workers-timeout": "60s",
    # Sampling all threads every 10 ms takes the interpreter lock from the event loop.
    "distributed.worker.profile.enabled": False,
    # Checking every 20 ms that an event loop responds takes 3 % of a core of a small machine.
    "distributed.admin.tick.interval": "500ms",
    # The scheduler and each worker would look at the load of the machine twice a second, in the
    # event loop, which reads files of the system that can take tens of milliseconds.
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.http.routes": [],
}


class SendAtOnce(SchedulerPlugin):  # type: ignore[misc]
    """Messages to workers leave at once: waiting to batch them costs 4 ms a dependent task.

    distributed's `BatchedSend` waits 2 to 10 ms between messages, which no setting changes
    (dask/distributed#2345).
    """

    name = "hetero-la-send-at-once"

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        scheduler.stream_comms[worker].interval = 0


class QuietScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler that opens no port unless a dashboard is asked for.

    In distributed 2026.8 `Scheduler.__init__` and `Worker.start_unsafe` call `start_http_server`
    whether or not there is a dashboard.
    """

    def __init__(self, *, dashboard_address: str | None, **kwargs: Any) -> None:
        self._serves = dashboard_address is not None
        plugins = [SendAtOnce(), *[WatchRuns()] * self._serves]
        super().__init__(dashboard_address=dashboard_address, plugins=plugins, **kwargs)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        if self._serves:
            super().start_http_server(*args, **kwargs)


class DeviceWorker(Worker):  # type: ignore[misc]
    """A worker that drives one device.

    Parameters
    ----------
    scheduler : str
        Address.
    hetero_device : Device
        Its device.
    blas_threads : int
        Bound on the BLAS threads of its tasks, if the device is a CPU.
    """

    def __init__(
        self, scheduler: str, *, hetero_device: Device, blas_threads: int, **kwargs: Any
    ) -> None:
        self.hetero_device = hetero_device
        if isinstance(hetero_device, GpuDevice):
            context = hetero_device.at_task
        else:
            self.blas_threads = blas_threads
            context = functools.partial(_cpu_task, blas_threads)
        name = f"{hetero_device.name}-Dask-Default-Threads"
        # No limit: with one, each of the workers compares the whole process with it, as if it were
        # alone there (dask/distributed#4833).
        super().__init__(
            scheduler,
            nthreads=1,
            memory_limit=0,
            executor=ContextThreadPoolExecutor(name, context),
            **kwargs,
        )
        self.batched_stream.interval = 0

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Open no port: the scheduler's dashboard shows the workers too."""

    async def heartbeat(self) -> None:
        """Say that this worker is alive."""
        try:
            await super().heartbeat()
        except RuntimeError:  # connections are closed: no error to be logged while it ends
            if self.status not in (Status.closing, Status.closed):
                raise


@contextlib.contextmanager
def _cpu_task(threads: int) -> Iterator[None]:
    """Bound the BLAS threads of a task, and complete what it has enqueued on GPUs."""
    with blas_bound(threads):
        yield
        wait_for_gpus()


class ContextThreadPoolExecutor(ThreadPoolExecutor):  # type: ignore[misc]
    """Executor of one thread, which runs each task inside a context that `context` makes."""

    def __init__(self, name: str, context: Callable[[], Any]) -> None:
        super().__init__(1, thread_name_prefix=name)
        self._context = context

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return super().submit(self._context()(function), *args, **kwargs)


class EventLoopLogFilter(logging.Filter):
    """Filter for the log records of one event loop below `level`; other clusters' are kept.

    Dask logs the ends of connections as errors when a cluster is closed
    (dask/distributed#7192).
    """

    def __init__(self) -> None:
        super().__init__()
        self.level = logging.WARNING
        self._thread = 0
        self._handlers: list[logging.Handler] = []

    def install(self) -> None:
        """Begin to filter; called from the event loop's thread."""
        self._thread = threading.get_ident()
        loggers = (logging.getLogger(name) for name in (None, "distributed", "distributed.client"))
        self._handlers = [handler for logger in loggers for handler in logger.handlers]
        for handler in self._handlers:
            handler.addFilter(self)

    def remove(self) -> None:
        """Stop filtering; may be called twice."""
        for handler in self._handlers:
            handler.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        ours = record.thread == self._thread and record.name.startswith("distributed")
        return record.levelno >= self.level or not ours
