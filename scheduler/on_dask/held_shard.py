"""Shards as results of Dask tasks, which stay on the worker that made them."""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

from distributed import Worker, get_worker

from hetero_la.scheduler.cluster.devices import turn_on
from hetero_la.scheduler.on_dask.team import Team
from hetero_la.scheduler.run.runner import Runner
from hetero_la.tiles.arrays.errors import StaleShardError
from hetero_la.tiles.arrays.forks import in_forked_child


class HeldShard:
    """A worker's state of a run, which never leaves its process.

    A copy that has travelled is empty.  Only where Dask has written the result to disk for
    want of memory, and reads it again in the same process, is the shard still there.

    Parameters
    ----------
    runner : Runner or Team
        The state.
    attempt : str
        The attempt at the run to which it belongs: nothing of another may get into it.
    share : hashable
        The run and the worker's number in it, whatever the attempt.
    """

    def __init__(self, runner: Runner | Team, attempt: str, share: Hashable) -> None:
        self.runner: Runner | Team | None = runner
        self.attempt, self.share = attempt, share
        self.filled: set[int] = set()
        self.name = uuid.uuid4().hex
        self._worker, self._key = None, None
        if (worker := current_worker()) is not None:
            self._worker, self._key = weakref.ref(worker), worker.get_current_task()

    def here(self) -> Runner | Team:
        """Return the state, on the worker that holds it.

        Raises
        ------
        StaleShardError
            On any other worker.
        """
        worker, home = current_worker(), self._worker() if self._worker else None
        if self.runner is None or worker is not home:
            raise StaleShardError(
                "a slice of a factorization ran on a worker that does not hold its shard, "
                f"{worker.address if worker else 'no worker of a cluster'}: Dask did not keep "
                "the tasks where the plan has put them; build it again for this cluster"
            )
        return self.runner

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Runner | Team]:
        """Yield the state to a task, and mark the share as in use meanwhile."""
        runner = self.here()
        with _changed:
            _working[self.share] += 1
        try:
            with turn_on(runner.device):
                yield runner
        finally:
            with _changed:
                _working[self.share] -= 1
                if not _working[self.share]:
                    del _working[self.share]
                _changed.notify_all()

    def let_go(self) -> None:
        """Release the state, of which only the finished result remains."""
        self.runner = None
        _written.pop(self.name, None)

    @property
    def wanted(self) -> bool:
        """True if Dask still holds it."""
        worker = self._worker() if self._worker else None
        return worker is not None and self._key in worker.data

    def __reduce__(self) -> tuple[Any, ...]:
        if self.runner is not None:
            _written[self.name] = self
        return _read, (self.name,)


#: Number of tasks of each share of a run that run in this process.
_working: Counter[Hashable] = Counter()
_changed = threading.Condition()


@in_forked_child
def _forget_work() -> None:
    global _changed
    _working.clear()
    _changed = threading.Condition()


def let_old_work_end(share: Hashable) -> None:
    """Wait for the running tasks of an attempt that was given up.

    Dask would take the end of such a task for that of the same task in the new attempt.
    It waits for nothing but its kernels, and so ends.
    """
    with _changed:
        _changed.wait_for(lambda: share not in _working)


#: Shards whose result was written, and may be read again in this process.
_written: dict[str, HeldShard] = {}


def _read(name: str) -> HeldShard:
    if name in _written:
        return _written.pop(name)
    elsewhere = HeldShard.__new__(HeldShard)
    elsewhere.runner = elsewhere._worker = elsewhere._key = None
    elsewhere.attempt = elsewhere.share = ""
    return elsewhere


def forget_unwanted() -> None:
    """Release shards that were written to disk and then dropped by Dask."""
    for name, held in list(_written.items()):
        if not held.wanted:
            _written.pop(name, None)


def current_worker() -> Worker | None:
    """Return the Dask worker whose task runs in this thread; None in local schedulers."""
    try:
        return get_worker()
    except ValueError:
        return None
