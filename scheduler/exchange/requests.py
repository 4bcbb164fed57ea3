"""Columns that workers of a run request from each other before its programs begin."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.exchange.group import RunGroup
from hetero_la.tiles.arrays.errors import StaleShardError
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_column_major,
    on_device_of,
    to_host,
    wait_for_writes,
)
from hetero_la.tiles.kernels.device import Array

#: Bytes that a worker takes from another one at a time.
_ROUND = 2**30


class HeldColumns(NamedTuple):
    """Columns that a worker of a run holds for another one.

    Attributes
    ----------
    worker : int
        Index of the worker in the run.
    name : str
        Under which it finds them.
    shape : tuple of int
        Rows and columns.
    dtype : dtype
        Their type.
    column_major : bool
        Order in which they are sent.
    """

    worker: int
    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    column_major: bool

    @property
    def nbytes(self) -> int:
        """Bytes to send."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


def hold(group: RunGroup, views: Sequence[Array]) -> HeldColumns:
    """Hold columns, side by side in `views`, for the other workers of a run until it begins."""
    name, first = uuid.uuid4().hex, views[0]
    group.held[name] = views
    shape = first.shape[0], sum(view.shape[1] for view in views)
    return HeldColumns(group.worker, name, shape, first.dtype, is_column_major(first))


def exchange_columns(
    group: RunGroup, wanted: Sequence[HeldColumns],
    take: Callable[[Sequence[tuple[HeldColumns, Array]]], None],
) -> None:  # fmt: skip
    """Send the other workers what they request, and take what this one does.

    All workers of a run call it at the same place.  They take turns by rounds: what is sent in
    one has been taken before the next, so that no worker needs memory for more.

    Parameters
    ----------
    group : RunGroup
        The workers, which have met.
    wanted : sequence of HeldColumns
        What others hold for this worker.
    take : callable
        Called with some of it, and the arrays, which it has copied at its return.
    """
    others = [worker for worker in range(group.size) if worker != group.worker]
    mine = {w: list(_rounds([held for held in wanted if held.worker == w])) for w in others}
    for w in others:
        group.post(w, ("wanted", group.worker), value=mine[w])
    theirs = {w: group.inbox.take(("wanted", w)) for w in others}
    for k in range(max(map(len, [*mine.values(), *theirs.values()]), default=0)):
        sent = [_send(group, w, held) for w in others for held in _at(theirs[w], k)]
        received = [_receive(group, held) for w in others for held in _at(mine[w], k)]
        group.device.synchronize()
        group.inbox.check()  # what a run that was aborted has received are no columns
        take([(held, array) for held, array, _ in received])
        for _, _, release in received:
            release()
        for w in others:
            if w in group.channels:
                group.call(group.channels[w].flush)
        del sent, received
    group.held.clear()


def _rounds(wanted: Sequence[HeldColumns]) -> Iterator[list[HeldColumns]]:
    """Yield parts that are one round each."""
    some: list[HeldColumns] = []
    for held in wanted:
        if some and sum(each.nbytes for each in some) + held.nbytes > _ROUND:
            yield some
            some = []
        some.append(held)
    if some:
        yield some


def _at(rounds: Sequence[Sequence[Any]], k: int) -> Sequence[Any]:
    return rounds[k] if k < len(rounds) else ()


def held_here(group: RunGroup, name: str) -> Array:
    """Return columns that this worker holds, and hold them no longer."""
    views = group.held.pop(name, None)
    if views is None:
        raise StaleShardError("columns of the input are not held any more: compute again")
    if len(views) == 1:
        return views[0]
    xp = array_module(views[0])
    with on_device_of(views[0]):
        if is_column_major(views[0]):
            return xp.concatenate([view.T for view in views]).T
        return xp.concatenate(views, axis=1)


def _send(group: RunGroup, worker: int, held: HeldColumns) -> Array:
    """Send columns; return the memory that is read until the end of the round."""
    columns = held_here(group, held.name)
    with on_device_of(columns):
        turned = columns.T if held.column_major else columns
        flat = array_module(columns).ascontiguousarray(turned).reshape(-1)
    wait_for_writes(flat)
    if worker in group.channels:
        group.call(partial(group.channels[worker].send, flat))
    else:
        group.post(worker, ("columns", held.name), [to_host(flat)])
    return flat


def _receive(group: RunGroup, held: HeldColumns) -> tuple[HeldColumns, Array, Callable[[], None]]:
    """Receive columns; return them with what gives back their memory."""
    rows, columns = held.shape
    if held.worker in group.channels:
        flat, release = group.device.empty((rows * columns,), held.dtype), lambda: None
        group.call(partial(group.channels[held.worker].receive_in, flat))
    else:
        arrived = group.inbox.take(("columns", held.name))
        flat, release = arrived.arrays[0], arrived.release
    if held.column_major:
        return held, flat.reshape(columns, rows).T, release
    return held, flat.reshape(rows, columns), release
