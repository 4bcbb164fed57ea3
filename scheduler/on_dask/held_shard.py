"""Shards as results of Dask tasks, which stay on the worker that made them."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from hetero_la.scheduler.cluster.devices import current_worker, device_lock
from hetero_la.scheduler.exchange.group import RunGroup
from hetero_la.scheduler.links.endpoint import endpoint
from hetero_la.scheduler.on_dask.inputs import InputBuffer
from hetero_la.scheduler.run.runner import Runner
from hetero_la.tiles.arrays.errors import RunAbortedError, StaleShardError
from hetero_la.tiles.arrays.forks import ProcessLock, in_forked_child
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Device

_log = logging.getLogger(__name__)


class HeldShard:
    """A worker's state of a run, which never leaves its process.

    It is the result of the task that has made it, and all later tasks of that worker refer to
    it: Dask frees it with the last of them, however the run ends.  A copy that has travelled is
    empty.  Only where Dask has written the result to disk for want of memory, and reads it
    again in the same process, is the shard still there.

    Parameters
    ----------
    device : Device
        What works on it.
    attempt : str
        The attempt at the run to which it belongs: nothing of another may get into it.
    share : hashable
        The run and the worker's number in it, whatever the attempt.
    state : tuple of Runner and InputBuffer, optional
        What works, and where other tasks put its input; none in a copy, which is empty.
    group : RunGroup, optional
        The workers of the run, if there are several.
    """

    def __init__(
        self, device: Device, attempt: str, share: Hashable,
        state: tuple[Runner, InputBuffer] | None = None, group: RunGroup | None = None,
    ) -> None:  # fmt: skip
        self.device, self.attempt, self.share, self._state = device, attempt, share, state
        self.group = group
        self.name = uuid.uuid4().hex
        _dropper()
        with _changed:
            _alive.add(self)
        worker = current_worker()
        self._worker = weakref.ref(worker) if worker else lambda: None
        self._key = worker.get_current_task() if worker else None

    @property
    def empty(self) -> bool:
        """Whether the state is not here, or no more."""
        return self._state is None

    @property
    def position(self) -> int | None:
        """Place in the program that the worker has reached; None without a state."""
        return None if self._state is None else self._state[0].position

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come of the state: a slice has failed, or the run."""
        failed = self.group is not None and self.group.inbox.error is not None
        return failed or self.position is None

    @property
    def length(self) -> int:
        """Number of instructions of the program."""
        return 0 if self._state is None else len(self._state[0].program.instructions)

    @contextlib.contextmanager
    def in_task(self) -> Iterator[None]:
        """Let tasks of a later attempt wait for the block, also while it waits."""
        with _changed:
            _working[self.share] += 1
        try:
            yield
        finally:
            with _changed:
                _working[self.share] -= 1
                if not _working[self.share]:
                    del _working[self.share]
                _changed.notify_all()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[tuple[Runner, InputBuffer]]:
        """Work on the state in the block, as one task of those that may want to.

        Raises
        ------
        StaleShardError
            If the state is not here, or belongs to another worker of this process.
        """
        with self.in_task(), device_lock(self.device):
            worker, state = current_worker(), self._state
            if state is None or worker is not self._worker():
                raise StaleShardError(
                    "a slice of a factorization ran on a worker that does not hold its shard, "
                    f"{worker.address if worker else 'no worker of a cluster'}: Dask did not "
                    "keep the tasks where the plan has put them; build it again for this "
                    "cluster"
                )
            yield state

    def let_go(self) -> None:
        """End of the state: only what it was finished to is left."""
        self._state = None
        if self.group is not None:
            self.group.close()
        _written.pop(self.name, None)

    def drop(self) -> None:
        """End of a state that is not finished; a slice that works on it waits for the device."""
        state = self._state
        if self.group is not None:
            self.group.abort(RunAbortedError("the run was cancelled"))
        self._state = None
        # At 0, nothing has been enqueued: who exchanges input waits for that itself.
        if state is not None and state[0].position:
            with device_lock(self.device):
                state[0].come_to_rest()
        self.let_go()

    def __del__(self) -> None:
        # Garbage is collected at any place, where this thread may hold locks that `drop` takes.
        if not self.empty:
            _unwanted.append(self)
            _dropper().put(None)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.empty:
            _written[self.name] = self
        return _read, (self.name,)


#: Shards that are to be dropped, which their last reference has left to others.
_unwanted: deque[HeldShard] = deque()
_dropping = ProcessLock()


@functools.cache
def _dropper() -> SimpleQueue[None]:
    """Return what wakes the thread that drops shards."""
    wake = SimpleQueue[None]()

    def drop() -> None:
        while True:
            wake.get()
            _drop_unwanted()

    threading.Thread(target=drop, name="hetero-la shards", daemon=True).start()
    return wake


def _drop_unwanted() -> None:
    with _dropping:  # another thread that has taken one off has dropped it by then
        while _unwanted:
            _drop(_unwanted.popleft())


def _drop(held: HeldShard) -> None:
    try:
        held.drop()
    except Exception:
        _log.exception("a shard that is no longer needed could not be freed")


in_forked_child(_unwanted.clear)
in_forked_child(_dropper.cache_clear)
#: Shards of this process, for those that end a run.
_alive: weakref.WeakSet[HeldShard] = weakref.WeakSet()
#: How many tasks of each share of a run work in this process.
_working: Counter[Hashable] = Counter()
_changed = threading.Condition()


@in_forked_child
def _forget_work() -> None:
    global _changed
    _working.clear()
    _changed = threading.Condition()


def let_old_work_end(share: Hashable) -> None:
    """Wait for the running tasks of an attempt that was given up.

    Dask would take the end of such a task for that of the same task in the new attempt
    (dask/distributed#7356).  Its waits end as that attempt has ended.
    """
    with _changed:
        _changed.wait_for(lambda: share not in _working)


def shards_of(attempt: str) -> list[HeldShard]:
    """Return the shards of an attempt in this process."""
    with _changed:
        return [held for held in _alive if held.attempt == attempt]


def drop_shards(attempt: str, topics: Sequence[str] = ()) -> None:
    """Forget what an attempt that was given up has left in this process, and messages to it."""
    for topic in topics:
        endpoint().unsubscribe(topic)
    for held in shards_of(attempt):
        held.drop()


#: Shards whose result was written, and may be read again in this process.
_written: dict[str, HeldShard] = {}


def _read(name: str) -> HeldShard:
    if name in _written:
        return _written.pop(name)
    return HeldShard(CpuDevice(), "", "")


def forget_unwanted() -> None:
    """Release shards that Dask has dropped, those that it had written to disk included."""
    for name in [name for name, held in list(_written.items()) if not _in_dask(held)]:
        _written.pop(name, None)  # what nobody else refers to is unwanted then
    _drop_unwanted()


def _in_dask(held: HeldShard) -> bool:
    worker = held._worker()
    return worker is not None and held._key in worker.data
