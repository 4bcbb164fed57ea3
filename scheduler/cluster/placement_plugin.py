"""Dask tasks tied to workers, and the scheduler plugin that keeps them there.

Dask keeps `workers` and `priority` as annotations of a graph's layers, and drops them
when `dask.array` turns the layers into one dictionary (dask/dask#7036).  So a task says itself
where it belongs, and a plugin of the scheduler looks there.

The plugin also restarts a run that has lost a worker.  Dask computes lost results again, but keeps
those that are left, and the shards have been updated since the lost worker's first slice: so all
results of such a run are released, and Dask computes those that are wanted again, from input that
it still has or can compute again.

To Dask, all copies of a result are alike, however often its task has run.  But a worker may have
fetched results of an earlier attempt at a run without the scheduler having heard of it: so every
worker is told to free all of them.  What is on its way at that time may still arrive as the result
of a new attempt.  That would be its name, which all of its tasks wait for: so the scheduler makes
the names, and puts them into the tasks.
"""

from __future__ import annotations

import graphlib
import itertools
import logging
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from dask._task_spec import Task
from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState

from hetero_la.tiles.arrays.errors import RunAbortedError

#: Dask priority of a run's tasks, above that of other tasks on a worker.
PRIORITY = 1
#: That of tasks that belong to no worker: what checks a run comes before the blocks of its result,
#: some of which wait for it.
CHECK_PRIORITY = 2
#: What a run's first task does, whose result is the name of an attempt.
BEGIN = "begin"
#: What tasks do that run programs.
RUN = "run"
#: What tasks do that hold input where it is, and seconds that one takes.  Dask would expect
#: half a second, and rather bring the input to a worker with fewer of them.
HOLD, _HOLD_SECONDS = "hold", 1e-3

#: Why a run begins again although no worker has left.
_PARTLY_RELEASED = "part of its result was released"

_log = logging.getLogger(__name__)


def task_name(routine: str, what: str, rest: str) -> str:
    """Return the name of a Dask task, of which Dask's dashboard shows the first two parts.

    Tasks that have these in common are of one colour there, and one row.

    Parameters
    ----------
    routine : str
        What texts call the routine of which it is a part.
    what : str
        What it does, as "load".
    rest : str
        What tells it from others; it begins with a digit, or is a hexadecimal number.

    Examples
    --------
    >>> from dask.utils import key_split
    >>> name = task_name("lu", "run", "7-gpu0-0-120")
    >>> name, key_split(name)
    ('lu-run-7-gpu0-0-120', 'lu-run')
    >>> key_split(task_name("qr with Q", "load", "01f2"))
    'qr_with_Q-load'
    """
    # A hyphen in it would end Dask's prefix: parts after the first may have letters only.
    return f"{re.sub(r'[^A-Za-z0-9]', '_', routine)}-{what}-{rest}"


class RunTask(Task):  # type: ignore[misc]
    """A Dask task of the run `run`, for a worker at one of the addresses `homes`, or for any.

    What is `given` for a task's key takes the place of that task's result.
    """

    __slots__ = ("given", "homes", "run")

    def __init__(
        self, key: Any, func: Callable[..., Any], /, *args: Any, run: str,
        homes: tuple[str, ...] = (), given: tuple[tuple[Any, Any], ...] = (),
    ) -> None:  # fmt: skip
        self.run, self.homes, self.given = run, homes, given
        super().__init__(key, func, *args)

    def __call__(self, values: Any = ()) -> Any:
        """Call the function with its arguments, some of which are results of other tasks."""
        return super().__call__(dict(values) | dict(self.given))

    @property
    def block_fusion(self) -> bool:
        """True: a task fused into another could no longer be recognized."""
        return True

    def copy(self) -> RunTask:
        """Copy the task with its run and homes, which the base class does not know."""
        return self.with_given(*self.given)

    def with_given(self, *given: tuple[Any, Any]) -> RunTask:
        """Copy the task, with other keys and what takes the place of their tasks' results."""
        return RunTask(self.key, self.func, *self.args, run=self.run, homes=self.homes, given=given)


def annotations_of(tasks: Iterable[Task]) -> dict[str, Any]:
    """Return Dask annotations of tasks, for layers that Dask's optimization leaves alone."""
    homes = {task.key: [*home] for task in tasks if (home := getattr(task, "homes", ()))}
    if not homes:
        return {}
    return {
        "workers": homes.get,
        "priority": dict.fromkeys(homes, PRIORITY).get,
        "retries": dict.fromkeys(homes, 0).get,
    }


#: A worker's share of a run: name of the run, and address of the worker that it was planned for.
RunShare = tuple[str, str]


class KeepPlacement(SchedulerPlugin):  # type: ignore[misc]
    """Scheduler plugin that ties each `RunTask` to its worker, and restarts runs that lost one.

    The tasks of a lost worker go to another: if possible to one that has no tasks of runs, such
    as one that a nanny has just restarted.
    """

    name = "hetero-la-placement"
    idempotent = True  # a second client uses the plugin that knows the moved shares

    def __init__(self) -> None:
        self._moved: dict[RunShare, str] = {}  # share of a lost worker -> its new address

    async def start(self, scheduler: Scheduler) -> None:
        """Keep the scheduler, of which `transition` is not told."""
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Name an attempt at a run that is to begin; Dask calls this for each task's new state."""
        if (start, finish) == ("released", "waiting"):
            task = self._scheduler.tasks[key]
            if _does(task, BEGIN):
                name = uuid.uuid4().hex
                for other in task.dependents:
                    if isinstance(other.run_spec, RunTask):
                        other.run_spec = other.run_spec.with_given((key, name))

    def update_graph(
        self, scheduler: Scheduler, *, tasks: Iterable[Any], keys: Iterable[Any],
        stimulus_id: str, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Tie new tasks to their workers; Dask calls this before any of them starts."""
        mine = [task for key in tasks if _run_of(task := scheduler.tasks[key])]
        arrived = list(filter(_belongs_somewhere, mine))
        for task in mine:
            priority = PRIORITY if _belongs_somewhere(task) else CHECK_PRIORITY
            task.priority = (-priority, *task.priority[1:])  # Dask starts with the least
        for task in arrived:
            task.retries = 0  # its shard is updated in place
        self._place(scheduler, arrived)
        _explain_losses(arrived)
        for prefix in {task.prefix for task in mine if _does(task, HOLD)}:
            if prefix.duration_average < 0:
                prefix.duration_average = _HOLD_SECONDS
        wanted = _released_and_wanted(scheduler.tasks[key] for key in keys)
        partly = [run for run, tasks in _runs_of(mine).items() if _partly_released(tasks, wanted)]
        if partly:
            runs = _runs_of(scheduler.tasks.values())
            for run in partly:
                _log.info("run %s begins again: %s", run, _PARTLY_RELEASED)
                _begin_again(scheduler, runs[run], stimulus_id)

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Restart runs that have lost results; Dask calls this once a worker has left."""
        runs = _runs_of(scheduler.tasks.values())
        self._moved = {key: home for key, home in self._moved.items() if key[0] in runs}
        lost = {
            run: [task for task in tasks if worker in map(self._home, _shares_of(task))]
            for run, tasks in runs.items()
        }
        self._place(scheduler, itertools.chain(*lost.values()))
        while True:  # a restarted run may need results of another one
            missing = ("waiting", "no-worker")  # wanted, and not there
            begun = {run: _PARTLY_RELEASED for run in lost if _partly_released(runs[run])}
            for run, tasks in lost.items():
                if any(task.state in missing for task in tasks):
                    begun[run] = f"worker {worker} has left the cluster"
            if not begun:
                break
            for run, reason in begun.items():
                _log.warning("run %s begins again: %s", run, reason)
                _begin_again(scheduler, runs[run], stimulus_id)
                del lost[run]

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Tie waiting tasks to the first worker; Dask calls this before it gets any task."""
        if len(scheduler.workers) == 1:  # there was none for them before
            for tasks in _runs_of(scheduler.tasks.values()).values():
                self._place(scheduler, filter(_belongs_somewhere, tasks))

    def _home(self, share: RunShare) -> str:
        return self._moved.get(share, share[1])

    def _place(self, scheduler: Scheduler, tasks: Iterable[TaskState]) -> None:
        """Tie tasks to their workers, or to those that replace lost ones."""
        for task in tasks:
            shares = _shares_of(task)
            for share in shares:
                if self._home(share) not in scheduler.workers and scheduler.workers:
                    self._moved[share] = _least_busy(scheduler, self._home)
            task.host_restrictions = None
            task.worker_restrictions = set(map(self._home, shares))


def _shares_of(task: TaskState) -> list[RunShare]:
    """Return the shares of a run to which a task, or a part of a fused task, may belong."""
    parts = [part for part in _parts(task.run_spec) if part.homes]
    part = min(parts, key=lambda part: len(part.homes), default=None)
    return [] if part is None else [(part.run, home) for home in part.homes]


def _run_of(task: TaskState) -> str:
    return next((part.run for part in _parts(task.run_spec)), "")


def _parts(spec: Any) -> Iterator[RunTask]:
    """Yield the tasks of runs of which a task consists.

    `dask.delayed` wraps each task of an array in a task of a new name; if the result becomes an
    array again, Dask may fuse such tasks.
    """
    if isinstance(spec, RunTask):
        yield spec
    elif type(spec) is Task:
        for part in spec.args[0].values() if spec.has_subgraph() else spec.args:
            yield from _parts(part)


def _belongs_somewhere(task: TaskState) -> bool:
    return bool(_shares_of(task))


def _does(task: TaskState, what: str) -> bool:
    """Return whether a task of a run does what `task_name` was told."""
    return isinstance(task.run_spec, RunTask) and bool(task.prefix.name.endswith(f"-{what}"))


def _released_and_wanted(wanted: Iterable[TaskState]) -> set[TaskState]:
    """Return what Dask is about to compute for tasks that are wanted."""
    found, waiting = set[TaskState](), list(wanted)
    while waiting:
        task = waiting.pop()
        if task.state == "released" and task not in found:
            found.add(task)
            waiting.extend(task.dependencies)
    return found


def _partly_released(tasks: Iterable[TaskState], wanted: Container[TaskState] = ()) -> bool:
    """Return whether some workers' programs of a run, but not all, are to run.

    What a worker has made goes once nobody wants it, although others' is still there; but the
    workers go through their programs together.  Those that wait for input are to run, and those
    among what is released and `wanted`.
    """
    found = [task.state == "waiting" or task in wanted for task in tasks if _does(task, RUN)]
    return any(found) and not all(found)


def _runs_of(tasks: Iterable[TaskState]) -> dict[str, list[TaskState]]:
    """Return the tasks of each run among some."""
    runs = defaultdict[str, list[TaskState]](list)
    for task in tasks:
        if run := _run_of(task):
            runs[run].append(task)
    return runs


def _least_busy(scheduler: Scheduler, home: Callable[[RunShare], str]) -> str:
    """Return the worker with the fewest shares of runs."""
    shares = set(itertools.chain.from_iterable(map(_shares_of, scheduler.tasks.values())))
    busy = Counter(map(home, shares))
    able = [worker.address for worker in scheduler.running] or list(scheduler.workers)
    return min(able, key=lambda address: (busy[address], address))


def _explain_losses(tasks: Iterable[TaskState]) -> None:
    """Let Dask raise an error if it loses data that runs read and no task can compute again.

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
                task.priority = (-PRIORITY, 0, 0)  # scattered data has no priority


def input_lost(name: str) -> None:
    """Dask task: raise RunAbortedError in the place of data that cannot be computed again."""
    raise RunAbortedError(
        f"{name}, which a run needs, was lost: its only copy was on a worker that has left "
        "the cluster, and no task can compute it again"
    )


def _begin_again(scheduler: Scheduler, tasks: Iterable[TaskState], stimulus_id: str) -> None:
    """Release all results of a run; Dask then computes those that are wanted again."""
    mine = {task.key: task for task in tasks}
    for worker in scheduler.workers:  # by itself, Dask tells those of whose copies it knows
        message = {"op": "free-keys", "keys": [*mine], "stimulus_id": stimulus_id}
        scheduler.worker_send(worker, message)
    before = {key: [d.key for d in task.dependencies] for key, task in mine.items()}
    # Dependencies are released first: no task can start with results of the old run.
    for key in graphlib.TopologicalSorter(before).static_order():
        task = scheduler.tasks.get(key) if key in mine else None
        if task is not None and task.state in ("memory", "processing"):
            scheduler.transitions({key: "released"}, stimulus_id)
    for key in mine:
        task = scheduler.tasks.get(key)
        if task is not None and task.state == "no-worker":
            scheduler.transitions({key: "waiting"}, stimulus_id)
