"""Columns of the input that workers of a run request from each other before its programs begin."""

from __future__ import annotations

import contextlib
import itertools
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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

#: Bytes that a worker sends to all others together at a time, and takes from them.
_ROUND = 2**30
#: Columns begin at multiples of so many bytes.
_ALIGNMENT = 256


class HeldChunk(NamedTuple):
    """A chunk of the input that a worker of a run holds for all of them.

    Attributes
    ----------
    worker : int
        Index of the worker in the run.
    name : str
        Under which it finds the chunk.
    rows : int
        Number of its rows.
    dtype : dtype
        Their type.
    column_major : bool
        Order in which its columns are sent.
    gapless : bool
        Whether adjacent columns follow each other in memory.
    """

    worker: int
    name: str
    rows: int
    dtype: np.dtype[Any]
    column_major: bool
    gapless: bool


class HeldColumns(NamedTuple):
    """Spans of the columns of a chunk, side by side."""

    chunk: HeldChunk
    spans: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.chunk.rows, sum(stop - start for start, stop in self.spans)

    @property
    def nbytes(self) -> int:
        """Bytes to send."""
        return math.prod(self.shape) * self.chunk.dtype.itemsize


def hold(group: RunGroup, chunk: Array) -> HeldChunk:
    """Hold a chunk for the workers of a run until it begins."""
    name = uuid.uuid4().hex
    group.held[name] = chunk
    gapless = bool(chunk.flags.f_contiguous)
    return HeldChunk(group.worker, name, len(chunk), chunk.dtype, is_column_major(chunk), gapless)


def exchange_columns(
    group: RunGroup, wanted: Sequence[HeldColumns], into: Mapping[HeldColumns, Sequence[Array]],
    take: Callable[[Sequence[tuple[HeldColumns, Array]]], None],
) -> None:  # fmt: skip
    """Send the other workers what they request, and take what this one does.

    What workers of this process hold, it has copied before.  All workers of a run call it at the
    same place.  Columns that need no change go at once to where they belong.  With others the
    workers go on by rounds: what is sent in one has been taken before the next, so that no worker
    needs memory for more.

    Parameters
    ----------
    group : RunGroup
        The workers, which have met.
    wanted : sequence of HeldColumns
        What others hold for this worker.
    into : mapping
        Memory for the spans of some of it, which come from GPU to GPU as they are.
    take : callable
        Called with some of the rest, and the arrays, which it has copied at its return.
    """
    others = [worker for worker in range(group.size) if worker != group.worker]
    most = _ROUND // max(len(others), 1)
    mine = {w: [held for held in wanted if held.chunk.worker == w] for w in others}
    direct = {w: [held for held in some if held in into] for w, some in mine.items()}
    packed = {
        w: list(_rounds([held for held in some if held not in into], most))
        for w, some in mine.items()
    }
    for w in others:
        group.post(w, ("wanted", group.worker), value=(direct[w], packed[w]))
    theirs = {w: group.inbox.take(("wanted", w)) for w in others}
    try:
        _send_direct(group, {w: found[0] for w, found in theirs.items()}, direct, into)
        rounds = {w: found[1] for w, found in theirs.items()}
        for k in range(max(map(len, [*packed.values(), *rounds.values()]), default=0)):
            _one_round(group, k, _rounds_at(rounds, k), _rounds_at(packed, k), take)
    except BaseException as error:
        group.abort(error)  # or what has been enqueued would not end
        with contextlib.suppress(Exception):
            group.device.synchronize()  # its memory is free then
        raise
    group.held.clear()  # workers of this process have copied before they said what they want


def _send_direct(
    group: RunGroup, theirs: dict[int, list[HeldColumns]], mine: dict[int, list[HeldColumns]],
    into: Mapping[HeldColumns, Sequence[Array]],
) -> None:  # fmt: skip
    """Send and receive columns that go as they are."""
    outgoing = {
        worker: [part for held in helds for part in _spans_of(group, held)]
        for worker, helds in theirs.items() if helds
    }  # fmt: skip
    incoming = {
        worker: [part for held in helds for part in into[held]]
        for worker, helds in mine.items() if helds
    }  # fmt: skip
    if outgoing or incoming:
        _swap(group, outgoing, incoming)


def _swap(
    group: RunGroup, outgoing: dict[int, list[Array]], incoming: dict[int, list[Array]]
) -> None:
    """Send and receive arrays by the channels to other workers, and wait for all of it."""
    # In one order of all pairs, and of the two ways of each, as messages of programs are.
    for pair in itertools.combinations(range(group.size), 2):
        for sender, receiver in (pair, pair[::-1]):
            if sender == group.worker and receiver in outgoing:
                group.call(partial(group.channels[receiver].send, outgoing[receiver]))
            elif receiver == group.worker and sender in incoming:
                group.call(partial(group.channels[sender].receive_in, incoming[sender]))
    group.device.synchronize()
    for worker in outgoing:
        group.call(group.channels[worker].flush)
    group.inbox.check()  # what a run that was aborted has received are no columns


def _rounds(wanted: Sequence[HeldColumns], most: int) -> Iterator[list[HeldColumns]]:
    """Yield parts of at most so many bytes, if no columns alone have more."""
    some, size = list[HeldColumns](), 0
    for held in wanted:
        if some and size + held.nbytes > most:
            yield some
            some, size = [], 0
        some.append(held)
        size += held.nbytes
    if some:
        yield some


def _rounds_at(rounds: dict[int, list[list[HeldColumns]]], k: int) -> dict[int, list[HeldColumns]]:
    return {worker: parts[k] for worker, parts in rounds.items() if k < len(parts)}


def _one_round(
    group: RunGroup, k: int, theirs: dict[int, list[HeldColumns]],
    mine: dict[int, list[HeldColumns]],
    take: Callable[[Sequence[tuple[HeldColumns, Array]]], None],
) -> None:  # fmt: skip
    """Send and receive one message to and from each worker, and take what has come."""
    channels, device = group.channels, group.device
    # All memory is there before anything is enqueued that waits for others: to get more, CUDA may
    # wait for all that has been.
    packed = {worker: _packed(group, helds) for worker, helds in theirs.items()}
    memory = {
        worker: device.empty((_places(helds)[-1],), np.uint8)
        for worker, helds in mine.items() if worker in channels
    }  # fmt: skip
    for array in packed.values():
        wait_for_writes(array)
    for worker, array in packed.items():
        if worker not in channels:
            group.post(worker, ("columns", k, group.worker), [to_host(array)])
    outgoing = {worker: [array] for worker, array in packed.items() if worker in channels}
    packed.clear()
    _swap(group, outgoing, {worker: [array] for worker, array in memory.items()})
    outgoing.clear()
    for worker, helds in mine.items():
        if worker in channels:
            take(_unpacked(memory.pop(worker), helds))
        else:
            arrived = group.inbox.take(("columns", k, worker))
            take(_unpacked(arrived.arrays[0], helds))
            arrived.release()


def _places(helds: Sequence[HeldColumns]) -> list[int]:
    """Return where columns begin in a message, and its size in bytes."""
    sizes = (-(-held.nbytes // _ALIGNMENT) * _ALIGNMENT for held in helds)
    return list(itertools.accumulate(sizes, initial=0))


def _unpacked(memory: Array, helds: Sequence[HeldColumns]) -> list[tuple[HeldColumns, Array]]:
    """Return views of the columns of a message."""
    found = []
    for held, start in zip(helds, _places(helds), strict=False):
        part = memory[start : start + held.nbytes].view(held.chunk.dtype)
        order = "F" if held.chunk.column_major else "C"
        found.append((held, part.reshape(held.shape, order=order)))
    return found


def _packed(group: RunGroup, helds: Sequence[HeldColumns]) -> Array:
    """Return a message with columns that this worker holds."""
    like = held_by(group, helds[0].chunk)
    with on_device_of(like):
        memory = array_module(like).empty(_places(helds)[-1], np.uint8)
        for held, target in _unpacked(memory, helds):
            first = 0
            for part in _spans_of(group, held):
                last = first + part.shape[1]
                target[:, first:last] = part
                first = last
    return memory


def _spans_of(group: RunGroup, held: HeldColumns) -> list[Array]:
    """Return views of columns that this worker holds."""
    chunk = held_by(group, held.chunk)
    return [chunk[:, start:stop] for start, stop in held.spans]


def held_by(group: RunGroup, chunk: HeldChunk) -> Array:
    """Return a chunk that a worker of this process holds."""
    try:
        return group.held[chunk.name]
    except KeyError:
        raise StaleShardError("a chunk of the input is no longer held: compute again") from None
