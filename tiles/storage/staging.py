"""Copies between user arrays of any memory order and shards.

Pageable host memory reaches a GPU at full speed only through pinned memory.  A small
ring of pinned buffers is filled by several threads while earlier buffers are copied to the GPU, so
neither direction needs a second copy of the matrix.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.arrays.forks import in_forked_child
from hetero_la.tiles.arrays.transfer import (
    column_major_copy,
    is_column_major,
    is_device_array,
    is_pinned,
    on_device_of,
    pinned_empty,
    wait_for_writes,
)
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue

_BUFFERS = 4
_BUFFER_BYTES = 1 << 24
_TURNED = 3  # buffers on each other GPU
_OF_ANOTHER_GPU = -1  # the buffer for its rows: the copy queue itself does not fill it too soon
_PARALLEL_BYTES = 1 << 21  # smaller host copies are not worth a second thread
_TURNED_ROWS = 64


class _Download(NamedTuple):
    """A pending copy to a pinned buffer, and the user's memory to which it goes from there."""

    slot: int
    arrived: Event
    buffer: np.ndarray
    target: np.ndarray


class Staging:
    """Copies of columns between user arrays and one device's shard.

    Parameters
    ----------
    device : Device
        Device of the shard; copies run on its copy queue.
    others : sequence of Device, optional
        Devices that turn row-major arrays of theirs, each on its own copy queue.
    """

    def __init__(self, device: Device, others: Sequence[Device] = ()) -> None:
        self._device = device
        self._others = {other.index: other for other in others}
        self._turned: dict[int, deque[tuple[Array, Event]]] = {}
        self._pinned: list[np.ndarray] = []
        self._on_device: dict[int, Array] = {}
        self._kept: list[Array] = []  # sources that are read until `flush`
        self._busy: list[Event] = []
        self._next = 0
        self._downloads: deque[_Download] = deque()

    def upload(self, target: Array, source: Array) -> None:
        """Copy `source`, of any memory order and device, to the column-major `target`."""
        if target.size == 0:
            return
        if self._device.index < 0 or (
            is_device_array(source) and source.device.id == self._device.index
        ):
            self._device.copy(target, source, Queue.COPY)
        elif is_column_major(source):
            self._upload_columns(target, source)
        elif is_column_major(source.T):
            other = self._others.get(source.device.id) if is_device_array(source) else None
            if other is None:
                self._upload_rows(target, source)
            else:
                self._upload_turned(target, source, other)
        else:
            self._kept.append(column_major_copy(source))
            self._upload_columns(target, self._kept[-1])

    def download(self, target: Array, source: Array) -> None:
        """Copy to a user's column-major `target`; complete after `flush`."""
        if target.size == 0:
            return
        if self._device.index < 0 or is_device_array(target) or is_pinned(target):
            self._device.copy(target, source, Queue.COPY)
            return
        for first, last in _chunks(target.shape, target.itemsize):
            slot, buffer = self._buffer((target.shape[0], last - first), target.dtype)
            self._device.copy(buffer, source[:, first:last], Queue.COPY)
            arrived = self._busy[slot] = self._device.record(Queue.COPY)
            self._downloads.append(_Download(slot, arrived, buffer, target[:, first:last]))

    def flush(self) -> None:
        """Wait for all downloads, and copy them to the user's memory."""
        while self._downloads:
            self._hand_over()
        self._device.synchronize()
        self._kept.clear()

    def _hand_over(self) -> None:
        download = self._downloads.popleft()
        download.arrived.synchronize()
        _copy_on_host(download.target, download.buffer)

    def _upload_columns(self, target: Array, source: Array) -> None:
        if is_device_array(source) or is_pinned(source):
            self._device.copy(target, source, Queue.COPY)
            return
        for first, last in _chunks(source.shape, source.itemsize):
            slot, buffer = self._buffer((source.shape[0], last - first), source.dtype)
            _copy_on_host(buffer, source[:, first:last])
            self._device.copy(target[:, first:last], buffer, Queue.COPY)
            self._busy[slot] = self._device.record(Queue.COPY)

    def _upload_rows(self, target: Array, source: Array) -> None:
        """Copy a row-major source: rows are copied as they are, and transposed on the device."""
        rows = source.T
        for first, last in _chunks(rows.shape, rows.itemsize):
            piece, slot = rows[:, first:last], _OF_ANOTHER_GPU
            if not is_device_array(source):
                slot, buffer = self._buffer(piece.shape, piece.dtype)
                if not is_pinned(source):
                    _copy_on_host(buffer, piece)
                    piece = buffer
            onboard = self._device_buffer(slot, piece)
            self._device.copy(onboard, piece, Queue.COPY)
            self._device.copy(target[first:last], onboard.T, Queue.COPY)
            if slot != _OF_ANOTHER_GPU:
                self._busy[slot] = self._device.record(Queue.COPY)

    def _upload_turned(self, target: Array, source: Array, other: Device) -> None:
        """Copy a row-major source of another GPU, which turns it before."""
        ring = self._turned.setdefault(other.index, deque())
        for first, last in _chunks(source.shape, source.itemsize):
            piece = source[:, first:last]
            with other.activate():
                memory, copied = ring.popleft() if len(ring) == _TURNED else (None, None)
                other.wait(Queue.COPY, copied)
                if memory is None or memory.size < piece.nbytes:
                    self._kept += [] if memory is None else [memory]
                    memory = other.empty((max(_BUFFER_BYTES, piece.nbytes),), np.uint8)
                buffer = _shaped(memory, piece.shape, piece.dtype)
                other.copy(buffer, piece, Queue.COPY)
                turned = other.record(Queue.COPY)
            self._device.wait(Queue.COPY, turned)
            self._device.copy(target[:, first:last], buffer, Queue.COPY)
            ring.append((memory, self._device.record(Queue.COPY)))

    def _buffer(self, shape: tuple[int, int], dtype: Any) -> tuple[int, np.ndarray]:
        """Return a free pinned buffer; wait for one if all are in use."""
        needed = max(_BUFFER_BYTES, shape[0] * shape[1] * np.dtype(dtype).itemsize)
        if len(self._pinned) < _BUFFERS:
            self._pinned.append(pinned_empty((needed,), np.uint8))
            self._busy.append(None)
            slot = len(self._pinned) - 1
        else:
            slot, self._next = self._next, (self._next + 1) % _BUFFERS
            while any(download.slot == slot for download in self._downloads):
                self._hand_over()
            self._busy[slot].synchronize()
            if self._pinned[slot].size < needed:
                self._pinned[slot] = pinned_empty((needed,), np.uint8)
        return slot, _shaped(self._pinned[slot], shape, dtype)

    def _device_buffer(self, slot: int, like: Array) -> Array:
        """Return the buffer on the device that belongs to a slot."""
        if slot not in self._on_device or self._on_device[slot].size < like.nbytes:
            self._kept += [self._on_device[slot]] if slot in self._on_device else []
            size = max(_BUFFER_BYTES, like.nbytes)
            self._on_device[slot] = self._device.empty((size,), np.uint8)
        return _shaped(self._on_device[slot], like.shape, like.dtype)


def _shaped(memory: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Return a column-major matrix in the first bytes of `memory`."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    return memory[:size].view(dtype).reshape(shape, order="F")


def _chunks(shape: tuple[int, int], itemsize: int) -> list[tuple[int, int]]:
    """Return ranges of columns that fit into a buffer, at least one column each."""
    step = max(_BUFFER_BYTES // max(shape[0] * itemsize, 1), 1)
    return [(j, min(j + step, shape[1])) for j in range(0, shape[1], step)]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(os.cpu_count() or 1, 8), thread_name_prefix="hetero-la-copy")


in_forked_child(_threads.cache_clear)


def copy_in_place(target: Array, source: Array) -> None:
    """Copy between two arrays of the host, or of one GPU, of any memory order."""
    if not is_device_array(target):
        _copy_on_host(target, source)
    elif target.size:
        with on_device_of(target):
            target[...] = source
        wait_for_writes(target)


def _copy_on_host(target: np.ndarray, source: np.ndarray) -> None:
    """Copy with several threads: one core cannot saturate the link."""
    turned = not is_column_major(source)
    length = target.shape[0 if turned else 1]
    pieces = min(target.nbytes // _PARALLEL_BYTES, length, os.cpu_count() or 1, 8)
    copy = _turn if turned else np.copyto
    if pieces < 2:
        copy(target, source)
        return
    edges = [slice(length * i // pieces, length * (i + 1) // pieces) for i in range(pieces)]
    parts = edges if turned else [(slice(None), edge) for edge in edges]
    done = [_threads().submit(copy, target[part], source[part]) for part in parts]
    for future in done:
        future.result()


def _turn(target: np.ndarray, source: np.ndarray) -> None:
    """Copy a row-major array by rows that stay in cache while they are transposed."""
    for row in range(0, len(source), _TURNED_ROWS):
        rows = slice(row, row + _TURNED_ROWS)
        np.copyto(target[rows], source[rows])
