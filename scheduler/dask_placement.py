"""Tasks of a Dask graph that belong to one worker, whatever optimization does to the graph.

Dask keeps `workers` and `priority` as annotations of a graph's layers, and drops them
when `dask.array` turns the layers into one dictionary.  So a task says itself where it
belongs, and a plugin of the scheduler looks there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from dask._task_spec import Task
from distributed import Client, Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState

#: Panels and what leads to them come before what else is ready on a worker.
PRIORITY = 1


class PinnedTask(Task):  # type: ignore[misc]
    """A task for the worker at `address`, or for any worker if that is empty."""

    __slots__ = ("address",)

    def __init__(
        self, key: Any, func: Callable[..., Any], /, *args: Any, address: str, **kwargs: Any
    ) -> None:
        self.address = address
        super().__init__(key, func, *args, **kwargs)

    @property
    def block_fusion(self) -> bool:
        """Fused with others, it would no longer be seen."""
        return True

    def copy(self) -> PinnedTask:
        """Copy with the address, which the base class does not know of."""
        return PinnedTask(self.key, self.func, *self.args, address=self.address, **self.kwargs)


def annotations_of(tasks: Iterable[PinnedTask]) -> dict[str, Any]:
    """What Dask is told of the tasks of a layer where its optimization leaves the layer alone."""
    homes = {task.key: [task.address] for task in tasks if task.address}
    if not homes:
        return {}
    return {
        "workers": homes.get,
        "priority": dict.fromkeys(homes, PRIORITY).get,
        "retries": dict.fromkeys(homes, 0).get,
    }


class KeepPlacement(SchedulerPlugin):  # type: ignore[misc]
    """Sends each `PinnedTask` to its worker, and lets go of it when that worker is gone.

    It then runs elsewhere, and says there that it cannot: otherwise it would wait for ever.
    """

    name = "hetero-la-placement"

    def update_graph(self, scheduler: Scheduler, *, tasks: Iterable[Any], **kwargs: Any) -> None:
        """Dask calls this when tasks have arrived, before any of them starts."""
        for key in tasks:
            task = scheduler.tasks[key]
            address = _address(task)
            if not address:
                continue
            task.host_restrictions = None
            task.worker_restrictions = {address} if address in scheduler.workers else None
            task.priority = (-PRIORITY, *task.priority[1:])
            task.retries = 0  # its shard is updated in place

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Dask calls this when a worker has gone, after its tasks were taken back."""
        waiting = {}
        for task in scheduler.tasks.values():
            if _address(task) == worker:
                task.worker_restrictions = None
                if task.state == "no-worker":
                    waiting[task.key] = "waiting"
        scheduler.transitions(waiting, stimulus_id)


def _address(task: TaskState) -> str:
    return task.run_spec.address if isinstance(task.run_spec, PinnedTask) else ""


_prepared: weakref.WeakSet[Client] = weakref.WeakSet()


def keep_placement(client: Client) -> None:
    """Let the client's scheduler keep `PinnedTask` where they belong."""
    if client not in _prepared:
        client.register_plugin(KeepPlacement())
        _prepared.add(client)
