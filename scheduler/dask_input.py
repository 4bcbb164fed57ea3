"""How the chunks of Dask arrays come into the memory in which a run is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from dask.sizeof import sizeof

from hetero_la.scheduler.dask_held import current_worker
from hetero_la.scheduler.job import Job
from hetero_la.scheduler.local_storage import Span
from hetero_la.tiles.errors import InsufficientMemoryError, StaleShardError
from hetero_la.tiles.finite import require_finite
from hetero_la.tiles.kernels.cpu import copy_on_host
from hetero_la.tiles.kernels.spec import Array, Device
from hetero_la.tiles.transfer import array_module, is_device_array, settle, to_host


class Piece(NamedTuple):
    """Where the columns of one array go: rows from `row` on, spans of it to spans of a shard.

    `finite` is what the array is called whose numbers must be finite; if it is empty, nobody
    looks at them.
    """

    row: int
    moves: tuple[tuple[Span, Span], ...]
    finite: str = ""


def cut(chunk: Array, spans: Sequence[Span]) -> Array:
    """Dask task: the columns of a chunk that go to one worker."""
    return array_module(chunk).concatenate([chunk[:, slice(*span)] for span in spans], axis=1)


def new_array(job: Job, width: int, device: Device, on_gpu: bool) -> Array:
    """Column-major memory for some columns, on the GPU of `device` or on the host."""
    shape = (job.layout.m, width)
    needed, free = math.prod(shape) * np.dtype(job.dtype).itemsize, device.free_bytes()
    worker = current_worker()
    if worker is not None and worker.nanny and device.index < 0:  # which ends it where it has more
        free = min(free, worker.memory_manager.memory_limit or free)
    if needed > free:
        raise InsufficientMemoryError(
            f"{job.name} of a {job.layout.m} x {job.layout.n} matrix needs {needed:,} bytes on "
            f"worker {device.name}, which has {free:,}"
        )
    with device.activate():
        return device.empty(shape, job.dtype) if on_gpu else np.empty(shape, job.dtype, order="F")


def fill(
    array: Array, device: Device, pieces: Sequence[Piece], arrays: Sequence[Array],
    threads: int = 1,
) -> None:  # fmt: skip
    """Copy to `array`, which `device` can reach, what goes there.

    Raises
    ------
    ValueError
        If there is a NaN or an infinity where none may be.
    """

    def copy(piece: Piece, source: Array) -> None:
        if piece.finite:  # here, because the copy then finds the numbers in cache
            require_finite(source, piece.finite)
        rows = slice(piece.row, piece.row + source.shape[0])
        onboard = is_device_array(array)
        given = source if onboard else to_host(source)
        for origin, target in piece.moves:
            if onboard:
                array[rows, slice(*target)] = given[:, slice(*origin)]
            else:
                copy_on_host(array[rows, slice(*target)], given[:, slice(*origin)])

    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(copy, pieces, arrays))
        return
    with device.activate():
        for piece, source in zip(pieces, arrays, strict=True):
            copy(piece, source)
        settle(array)


class Room:
    """Memory of a run that is one task, in which other tasks put its input one after the other.

    Each hands it on to the next, so that Dask may take it elsewhere in between.

    Parameters
    ----------
    array : array, shape (m, width)
        The memory.
    threads : int
        How many may copy to it at a time.
    """

    def __init__(self, array: Array, threads: int) -> None:
        self.array, self.threads, self._begun = array, threads, False

    def begin(self) -> Array:
        """The array, of which the caller makes something else.

        Raises
        ------
        StaleShardError
            If somebody has done so before.
        """
        if self._begun:
            raise StaleShardError("work on the input has begun: compute again")
        self._begun = True
        return self.array


# Dask places the task that uses it by what it would cost to send it.
sizeof.register(Room, lambda room: room.array.nbytes)
