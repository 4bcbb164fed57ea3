"""Copies between user arrays of any memory order and shards.

Pageable host memory reaches a GPU at full speed only through pinned memory.  A ring of small
pinned buffers is filled by several threads while earlier ones are copied to the GPU, and emptied
by them in the other direction, so neither needs a second copy of the matrix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.copies import copies_on_host
from hetero_la.tiles.arrays.host_threads import copy_threads
from hetero_la.tiles.arrays.transfer import (
    column_major_copy,
    is_column_major,
    is_device_array,
    is_pinned,
    on_device_index,
    on_device_of,
    pinned_empty,
    wait_for_writes,
)
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue

#: Bytes of a pinned buffer, which one thread fills: by default, and where there is most to copy.
#: Beside a run Python's lock, which each piece needs some ten times, is what limits the rate.
_PIECE, _LARGE_PIECE = 1 << 22, 1 << 24
_PIECES = 128  # into which a matrix is cut at least, so that copies overlap
_BUFFERS = 20
_AHEAD = 12  # buffers that are filled before the first of them is copied on
_TURNED, _TURNED_BYTES = 3, 1 << 24  # buffers on each other GPU

Block = tuple[slice, slice]


class Staging:
    """Copies of columns between user arrays and one device's shard.

    Parameters
    ----------
    device : Device
        Device of the shard; copies run on its copy queue.
    others : sequence of Device, optional
        Devices that turn row-major arrays of theirs, each on its own copy queue.
    nbytes : int, optional
        Bytes that are to be copied, as far as known.
    """

    def __init__(self, device: Device, others: Sequence[Device] = (), nbytes: int = 0) -> None:
        self._device = device
        self._piece = min(max(_PIECE, nbytes // _PIECES), _LARGE_PIECE)
        self._others = {other.index: other for other in others}
        self._turned: dict[int, deque[tuple[Array, Event]]] = {}
        self._pinned: list[np.ndarray] = []
        self._leave: list[Callable[[], object]] = []  # wait until each pinned buffer is free
        self._next = 0
        self._on_device: dict[int, Array] = {}
        self._kept: list[Array] = []  # sources that are read until `flush`
        self._filling: list[Future[None]] = []
        self._emptying: list[Future[None]] = []

    def upload(self, target: Array, source: Array) -> None:
        """Copy `source`, of any memory order and device, to the column-major `target`."""
        for _ in self.upload_each([(target, source)]):
            pass

    def upload_each(self, pairs: Iterable[tuple[Array, Array]]) -> Iterator[None]:
        """Copy to each target from its source; yield when the last copy of a pair is enqueued.

        Meanwhile threads fill buffers for the pairs that come next.
        """
        ahead: deque[Callable[[], None] | None] = deque()

        def enqueued(most: int) -> Iterator[None]:
            while len(ahead) > most:
                enqueue = ahead.popleft()
                if enqueue is None:
                    yield
                else:
                    enqueue()

        for target, source in pairs:
            for enqueue in self._uploads(target, source):
                ahead.append(enqueue)
                yield from enqueued(_AHEAD)
            ahead.append(None)
        yield from enqueued(0)

    def download(self, target: Array, source: Array) -> list[Future[None]]:
        """Copy to a user's column-major `target`; complete after `flush`.

        To pageable memory, `source` must be final: threads wait for its pieces, and what ends with
        each is returned.
        """
        if target.size == 0:
            return []
        if not self.by_pieces(target):
            self._device.copy(target, source, Queue.STORE)
            return []
        pieces: list[Future[None]] = []
        for block in _pieces(target.shape, target.itemsize, self._piece):
            slot, buffer = self._buffer(target[block].shape, target.dtype)
            self._device.copy(buffer, source[block], Queue.STORE)
            arrived = self._device.record(Queue.STORE)
            emptied = copy_threads().submit(self._empty, arrived, buffer, target[block])
            pieces.append(emptied)
            self._emptying.append(emptied)  # at once: the next piece may fail
            self._leave[slot] = emptied.result
        return pieces

    def by_pieces(self, target: Array) -> bool:
        """Return whether `download` to an array goes through pinned buffers."""
        return self._device.index >= 0 and not is_device_array(target) and not is_pinned(target)

    def flush(self) -> None:
        """Wait until all copies are complete, and all downloads in the user's memory."""
        for emptied in self._emptying:
            emptied.result()
        self._device.synchronize()
        self._forget()

    def abandon(self) -> None:
        """Wait until nobody reads or writes the user's memory any more, after an error."""
        for copied in (*self._emptying, *self._filling):
            if not copied.cancel():
                copied.exception()
        self._forget()

    def _forget(self) -> None:
        self._emptying.clear()
        self._filling.clear()
        self._kept.clear()

    def _empty(self, arrived: Event, buffer: np.ndarray, target: np.ndarray) -> None:
        """Wait for a piece in a pinned buffer, and copy it to the user's memory."""
        with on_device_index(self._device.index):
            arrived.synchronize()
        np.copyto(target, buffer)

    def _uploads(self, target: Array, source: Array) -> Iterator[Callable[[], None]]:
        """Yield functions that enqueue the copies."""
        if target.size == 0:
            return
        here = is_device_array(source) and source.device.id == self._device.index
        if self._device.index < 0 or here:
            yield partial(self._device.copy, target, source, Queue.COPY)
        elif is_column_major(source):
            yield from self._upload_columns(target, source)
        elif is_column_major(source.T):
            other = self._others.get(source.device.id) if is_device_array(source) else None
            if other is None:
                yield from self._upload_rows(target, source)
            else:
                yield partial(self._upload_turned, target, source, other)
        else:
            self._kept.append(column_major_copy(source))
            yield from self._upload_columns(target, self._kept[-1])

    def _upload_columns(self, target: Array, source: Array) -> Iterator[Callable[[], None]]:
        if is_device_array(source) or is_pinned(source):
            yield partial(self._device.copy, target, source, Queue.COPY)
            return
        for block in _pieces(source.shape, source.itemsize, self._piece):
            slot, buffer = self._buffer(source[block].shape, source.dtype)
            filled = self._fill(buffer, source[block])
            yield partial(self._send, slot, filled, [(target[block], buffer)])

    def _upload_rows(self, target: Array, source: Array) -> Iterator[Callable[[], None]]:
        """Copy a row-major source: rows are copied as they are, and transposed on the device."""
        for rows, columns in _pieces(source.shape[::-1], source.itemsize, self._piece):
            piece = source.T[rows, columns]
            slot, filled = -1, None  # one buffer on the device, which its queue fills in turn
            if not is_device_array(source):
                slot, buffer = self._buffer(piece.shape, piece.dtype)
                if not is_pinned(source):
                    filled = self._fill(buffer, piece)
                    piece = buffer
            onboard = self._device_buffer(slot, piece)
            yield partial(
                self._send, slot, filled, [(onboard, piece), (target[columns, rows], onboard.T)]
            )

    def _fill(self, buffer: np.ndarray, source: np.ndarray) -> Future[None]:
        """Let a thread copy to a pinned buffer."""
        self._filling.append(copy_threads().submit(np.copyto, buffer, source))
        return self._filling[-1]

    def _send(
        self, slot: int, filled: Future[None] | None, copies: list[tuple[Array, Array]]
    ) -> None:
        """Enqueue copies, the first from a pinned buffer, which is free after the last."""
        if filled is not None:
            filled.result()
        for target, source in copies:
            self._device.copy(target, source, Queue.COPY)
        if slot >= 0:
            self._leave[slot] = self._device.record(Queue.COPY).synchronize

    def _upload_turned(self, target: Array, source: Array, other: Device) -> None:
        """Copy a row-major source of another GPU, which turns it before."""
        ring = self._turned.setdefault(other.index, deque())
        for block in _pieces(source.shape, source.itemsize, _TURNED_BYTES):
            piece = source[block]
            with other.activate():
                memory, copied = ring.popleft() if len(ring) == _TURNED else (None, None)
                other.wait(Queue.COPY, copied)
                if memory is None:
                    memory = other.empty((_TURNED_BYTES,), np.uint8)
                buffer = _shaped(memory, piece.shape, piece.dtype)
                other.copy(buffer, piece, Queue.COPY)
                turned = other.record(Queue.COPY)
            self._device.wait(Queue.COPY, turned)
            self._device.copy(target[block], buffer, Queue.COPY)
            ring.append((memory, self._device.record(Queue.COPY)))

    def _buffer(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, np.ndarray]:
        """Return a free pinned buffer; wait for one if all are in use."""
        if len(self._pinned) < _BUFFERS:
            self._pinned.append(pinned_empty((self._piece,), np.uint8))
            self._leave.append(_nothing)
            slot = len(self._pinned) - 1
        else:
            slot, self._next = self._next, (self._next + 1) % _BUFFERS
            self._leave[slot]()
        return slot, _shaped(self._pinned[slot], shape, dtype)

    def _device_buffer(self, slot: int, like: Array) -> Array:
        """Return the buffer on the device that belongs to a slot."""
        if slot not in self._on_device:
            self._on_device[slot] = self._device.empty((self._piece,), np.uint8)
        return _shaped(self._on_device[slot], like.shape, like.dtype)


def _nothing() -> None:
    """Wait for nothing: a new buffer is free."""


def _shaped(memory: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a column-major matrix in the first bytes of `memory`."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    return memory[:size].view(dtype).reshape(shape, order="F")


def _pieces(shape: tuple[int, ...], itemsize: int, most: int) -> Iterator[Block]:
    """Yield blocks of columns with at most so many bytes, of parts of long columns."""
    high = min(most // itemsize, shape[0])
    wide = max(most // (high * itemsize), 1)
    for j in range(0, shape[1], wide):
        for i in range(0, shape[0], high):
            yield slice(i, min(i + high, shape[0])), slice(j, min(j + wide, shape[1]))


def copy_in_place(target: Array, source: Array) -> None:
    """Copy between two arrays of the host, or of one GPU, of any memory order."""
    if not is_device_array(target):
        for done in copies_on_host(target, source):
            done.result()
    elif target.size:
        with on_device_of(target):
            target[...] = source
        wait_for_writes(target)
