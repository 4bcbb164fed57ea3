"""Tasks of a Dask graph that belong to one worker, whatever becomes of the graph and of workers.

Dask keeps `workers` and `priority` as annotations of a graph's layers, and drops them
when `dask.array` turns the layers into one dictionary (dask/dask#7036).  So a task says itself
where it belongs, and a plugin of the scheduler looks there.

The plugin also begins a run again that has lost a worker.  Dask makes lost results anew, but
takes those that are left as they are, and a shard has moved on since the lost worker's first
slice: so all that is left of such a run is let go, and Dask makes what is wanted of it anew,
from input that it still has or can make again.
"""

from __future__ import annotations

import graphlib
import itertools
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dask._task_spec import Task
from distributed import Client, Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState

from hetero_la.tiles.arrays.errors import RunAbortedError

#: Panels and what leads to them come before what else is ready on a worker.
PRIORITY = 1

_log = logging.getLogger(__name__)


class RunTask(Task):  # type: ignore[misc]
    """A task of the run `run`, for the worker at `address`, or for any if that is empty."""

    __slots__ = ("address", "run")

    def __init__(
        self, key: Any, func: Callable[..., Any], /, *args: Any, run: str, address: str = ""
    ) -> None:
        self.run, self.address = run, address
        super().__init__(key, func, *args)

    @property
    def block_fusion(self) -> bool:
        """Fused with others, it would no longer be seen."""
        return True

    def copy(self) -> RunTask:
        """Copy with what the base class does not know of."""
        return RunTask(self.key, self.func, *self.args, run=self.run, address=self.address)


def annotations_of(tasks: Iterable[RunTask]) -> dict[str, Any]:
    """What Dask is told of the tasks of a layer where its optimization leaves the layer alone."""
    homes = {task.key: [task.address] for task in tasks if task.address}
    if not homes:
        return {}
    return {
        "workers": homes.get,
        "priority": dict.fromkeys(homes, PRIORITY).get,
        "retries": dict.fromkeys(homes, 0).get,
    }


#: Of the work of a run: its name, and the worker for which it was planned, if for one.
Share = tuple[str, str]


class KeepPlacement(SchedulerPlugin):  # type: ignore[misc]
    """Sends each `RunTask` to its worker, and begins runs again that have lost one.

    What belonged to a lost worker then belongs to another: one that takes no part yet if
    there is such a one, as where a nanny has restarted it.
    """

    name = "hetero-la-placement"
    idempotent = True  # a second client finds the one that knows who has moved

    def __init__(self) -> None:
        self._moved: dict[Share, str] = {}  # that of a lost worker -> who does it

    def update_graph(self, scheduler: Scheduler, *, tasks: Iterable[Any], **kwargs: Any) -> None:
        """Dask calls this when tasks have arrived, before any of them starts."""
        arrived = [task for key in tasks if _belongs_somewhere(task := scheduler.tasks[key])]
        for task in arrived:
            task.priority = (-PRIORITY, *task.priority[1:])
            task.retries = 0  # its shard is updated in place
        self._place(scheduler, arrived)
        _explain_losses(arrived)

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Dask calls this when a worker has gone, after its tasks were taken back."""
        runs = _runs_of(scheduler)
        self._moved = {key: home for key, home in self._moved.items() if key[0] in runs}
        lost = {
            run: [task for task in tasks if self._home(_share_of(task)) == worker]
            for run, tasks in runs.items()
        }
        self._place(scheduler, itertools.chain(*lost.values()))
        while True:  # one that begins again may need what another has made
            begun = [run for run, tasks in lost.items() if any(map(_is_missing, tasks))]
            if not begun:
                break
            for run in begun:
                _log.warning("run %s begins again: worker %s has left", run, worker)
                _begin_again(scheduler, runs[run], stimulus_id)
                del lost[run]

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Dask calls this when a worker has come, before it gets any task."""
        if len(scheduler.workers) == 1:  # what had nowhere to go has it now
            for tasks in _runs_of(scheduler).values():
                self._place(scheduler, filter(_belongs_somewhere, tasks))

    def _home(self, share: Share) -> str:
        return self._moved.get(share, share[1])

    def _place(self, scheduler: Scheduler, tasks: Iterable[TaskState]) -> None:
        """Tie tasks to their workers, or to those that take the place of lost ones."""
        for task in tasks:
            share = _share_of(task)
            if self._home(share) not in scheduler.workers and scheduler.workers:
                self._moved[share] = _least_busy(scheduler, self._home)
            task.host_restrictions = None
            task.worker_restrictions = {self._home(share)}


def _share_of(task: TaskState) -> Share:
    """What a task is for, if it is of a run; what has been fused, for the worker of a part."""
    shares = ((part.run, part.address) for part in _parts(task.run_spec))
    return max(shares, key=lambda share: bool(share[1]), default=("", ""))


def _parts(spec: Any) -> Iterator[RunTask]:
    """Tasks of runs that a task consists of.

    `dask.delayed` gives all tasks of an array new names, each of a task that has the old one
    for its argument; where that becomes an array again, Dask may fuse these.
    """
    if isinstance(spec, RunTask):
        yield spec
    elif type(spec) is Task:
        for part in spec.args[0].values() if spec.has_subgraph() else spec.args:
            yield from _parts(part)


def _belongs_somewhere(task: TaskState) -> bool:
    return bool(_share_of(task)[1])


def _is_missing(task: TaskState) -> bool:
    """Whether the result is wanted, and not there."""
    return task.state in ("waiting", "no-worker")


def _runs_of(scheduler: Scheduler) -> dict[str, list[TaskState]]:
    """The tasks of each run that the scheduler knows."""
    runs: dict[str, list[TaskState]] = {}
    for task in scheduler.tasks.values():
        if run := _share_of(task)[0]:
            runs.setdefault(run, []).append(task)
    return runs


def _least_busy(scheduler: Scheduler, home: Callable[[Share], str]) -> str:
    """The worker with the fewest shares of runs."""
    busy = Counter(home(share) for share in set(map(_share_of, scheduler.tasks.values())))
    able = [worker.address for worker in scheduler.running] or list(scheduler.workers)
    return min(able, key=lambda address: (busy[address], address))


def _explain_losses(tasks: Iterable[TaskState]) -> None:
    """Let Dask raise an error if it loses data without a recipe that runs are made from.

    By itself it forgets all that depends on such data, and says that it was cancelled
    (dask/distributed#3149).
    """
    waiting, seen = list(tasks), set[TaskState]()
    while waiting:
        task = waiting.pop()
        if task not in seen:
            seen.add(task)
            waiting.extend(task.dependencies)
            if task.run_spec is None and task.state == "memory":
                task.run_spec = Task(task.key, input_lost, str(task.key))
                task.priority = (-PRIORITY, 0, 0)  # data has none


def input_lost(name: str) -> None:
    """Dask task: takes the place of data that cannot be made again."""
    raise RunAbortedError(
        f"{name}, of which a run is made, was lost: its only copy was on a worker that has "
        "left the cluster, and there is no task that makes it"
    )


def _begin_again(scheduler: Scheduler, tasks: Iterable[TaskState], stimulus_id: str) -> None:
    """Let go of all results of a run; Dask then makes those that are wanted anew."""
    mine = {task.key: task for task in tasks}
    before = {key: [d.key for d in task.dependencies] for key, task in mine.items()}
    # What a task needs is let go of first: no task can start with a part of the old run.
    for key in graphlib.TopologicalSorter(before).static_order():
        task = scheduler.tasks.get(key) if key in mine else None
        if task is not None and task.state in ("memory", "processing"):
            scheduler.transitions({key: "released"}, stimulus_id)
    for key in mine:
        task = scheduler.tasks.get(key)
        if task is not None and task.state == "no-worker":
            scheduler.transitions({key: "waiting"}, stimulus_id)


_prepared: weakref.WeakSet[Client] = weakref.WeakSet()


def keep_placement(client: Client) -> None:
    """Let the client's scheduler keep `RunTask` where they belong."""
    if client not in _prepared:
        client.register_plugin(KeepPlacement())
        _prepared.add(client)
