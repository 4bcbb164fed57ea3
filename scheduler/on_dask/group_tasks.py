"""Groups of workers as Dask sees them: how tasks join one, and end together."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from hetero_la.scheduler.cluster.devices import current_worker, device_of
from hetero_la.scheduler.exchange.communicators import Contact
from hetero_la.scheduler.exchange.group import RunGroup
from hetero_la.scheduler.exchange.message_order import Exchange
from hetero_la.scheduler.on_dask.dask_messages import accept_messages, tell
from hetero_la.scheduler.on_dask.wait import NOTICE_SECONDS, thread_given_up, wanted_by_dask
from hetero_la.tiles.arrays.errors import LinkLostError, RunAbortedError
from hetero_la.tiles.kernels.device import Device

#: Seconds between looks at whether Dask still wants a task that waits for other workers.
_LOOK_INTERVAL = 0.25


def new_group(run: str, worker: int, device: Device, order: Sequence[Exchange] = ()) -> RunGroup:
    """Return the group of a run's workers, as the Dask worker of this task sees it."""
    here = current_worker()
    if here is not None:
        accept_messages(here)
    address = "" if here is None else here.address
    lasting = here is not None and device_of(here) is device
    send = functools.partial(tell, here)
    return RunGroup(run, worker, device, address, send, order, lasting=lasting)


@contextlib.contextmanager
def in_group(group: RunGroup | None, contacts: Sequence[Contact]) -> Iterator[None]:
    """Work in the block beside the other workers of a run, on its turn."""
    if group is None:
        yield
        return
    ended, wanted = threading.Event(), wanted_by_dask()
    watching = threading.Thread(target=_watch, args=(group, wanted, ended), daemon=True)
    # Who waits for a turn must not keep others from starting.
    with thread_given_up(back=False), ending_together(group):
        watching.start()
        try:
            group.join(contacts)
            yield
        finally:
            ended.set()
            watching.join()


@contextlib.contextmanager
def ending_together(group: RunGroup | None) -> Iterator[None]:
    """End the run for all of its workers if the block fails, and raise what ended it first."""
    wanted, failure = wanted_by_dask(), None
    try:
        yield
    except BaseException as error:
        if group is None:
            raise
        group.abort(error)
        failure = group.inbox.error
        group.close()
        until = time.monotonic() + NOTICE_SECONDS
        while isinstance(failure, LinkLostError) and wanted() and time.monotonic() < until:
            time.sleep(_LOOK_INTERVAL)  # Dask begins again if it learns of the loss first
        if failure is error:
            failure = None
            raise
        error.__cause__ = None  # or the two would be each other's cause, and not be pickled
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # which would keep this frame, and so the shard, alive


def _watch(group: RunGroup, wanted: Callable[[], bool], ended: threading.Event) -> None:
    while not ended.wait(_LOOK_INTERVAL):
        if not wanted():
            group.abort(RunAbortedError("the run was cancelled"))
            return
