"""Copies of the chunks of Dask arrays into the memory in which a run is done."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof

from hetero_la.scheduler.cluster.devices import current_worker, device_lock
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.local_storage import LocalStorage, Moves, Span, TeamStorage
from hetero_la.tiles.arrays.copies import copy_on_host
from hetero_la.tiles.arrays.counted import a_matrix
from hetero_la.tiles.arrays.errors import InsufficientMemoryError, StaleShardError
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_device_array,
    on_device_of,
    on_device_of_arrays,
    to_host,
    wait_for_writes,
)
from hetero_la.tiles.kernels.device import Array, Device
from hetero_la.tiles.kernels.gpu_libraries.finite import require_finite
from hetero_la.tiles.storage.staging import Staging


class Declared(NamedTuple):
    """A chunk as its Dask array declares it.

    Attributes
    ----------
    array : str
        What the array is called in errors.
    place : tuple of int
        Which of its chunks it is.
    shape : tuple of int
        Its shape.
    finite : bool
        Whether its numbers must be finite.
    """

    array: str
    place: tuple[int, ...]
    shape: tuple[int, ...]
    finite: bool = False

    def require(self, chunk: Any, dtype: Any = None) -> None:
        """Raise ValueError unless `chunk` is a dense array of this shape, of a kind of `dtype`.

        If it has to be, it is also checked for NaNs and infinities.  Dask does not look: what a
        function returns that was mapped over an array is taken for what the array says of it.
        """
        dense = isinstance(chunk, np.ndarray) or is_device_array(chunk)
        dense = dense and not isinstance(chunk, np.ma.MaskedArray)
        if not dense or chunk.shape != self.shape:
            found = f"has shape {getattr(chunk, 'shape', ())}"
            if not dense:
                found = f"is of type {type(chunk).__name__} and {found}"
            raise ValueError(
                f"chunk {self.place} of {self.array} {found}, "
                f"where the Dask array declares a dense array of shape {self.shape}"
            )
        if dtype is not None and not np.can_cast(chunk.dtype, dtype, "same_kind"):
            raise ValueError(
                f"chunk {self.place} of {self.array} has dtype {chunk.dtype}, "
                f"where the Dask array declares {dtype}"
            )
        if self.finite:
            require_finite(chunk, self.array)


class Piece(NamedTuple):
    """Destination of an array's columns: rows from `row` on, spans of it to spans of a shard."""

    row: int
    moves: Moves
    declared: Declared

    @property
    def spans(self) -> tuple[Span, ...]:
        """The columns of the array that go there."""
        return tuple(origin for origin, _ in self.moves)

    def targets(self, memory: Array) -> list[Array]:
        """Return views of `memory`, where all rows of the columns go."""
        return [memory[:, slice(*target)] for _, target in self.moves]

    def side_by_side(self) -> Piece:
        """Return the destination of an array that has only these columns, as `cut` puts them."""
        *starts, width = itertools.accumulate((b - a for a, b in self.spans), initial=0)
        beside = zip(starts, [*starts[1:], width], strict=True)
        moves = tuple((at, to) for at, (_, to) in zip(beside, self.moves, strict=True))
        shape = self.declared.shape[0], width
        return Piece(self.row, moves, self.declared._replace(shape=shape))


#: Arrays, each with the place to which it is copied.
Inputs = Sequence[tuple[Piece, Array]]


@on_device_of_arrays
def cut(chunk: Array, spans: Sequence[Span], declared: Declared) -> Array:
    """Dask task: return the columns of a chunk that go to one worker."""
    declared.require(chunk)
    return array_module(chunk).concatenate([chunk[:, slice(*span)] for span in spans], axis=1)


def new_array(job: Job, width: int, device: Device, on_gpu: bool) -> Array:
    """Allocate column-major memory for some columns, on the GPU of `device` or on the host."""
    shape = (job.layout.m, width)
    needed, free = math.prod(shape) * np.dtype(job.dtype).itemsize, device.free_bytes()
    worker = current_worker()
    if worker is not None and worker.nanny and device.index < 0:  # which ends it where it has more
        free = min(free, worker.memory_manager.memory_limit or free)
    if needed > free:
        raise InsufficientMemoryError(
            f"{job.name} of {a_matrix(job.layout.m, job.layout.n)} needs {needed:,} bytes on "
            f"worker {device.name}, which has {free:,}"
        )
    with device.activate():
        return device.empty(shape, job.dtype) if on_gpu else np.empty(shape, job.dtype, order="F")


class _Guarded:
    """What is filled portion by portion, and then worked on.

    Attributes
    ----------
    portions : set of int
        Those that are there.
    """

    def __init__(self) -> None:
        self.portions, self._begun = set[int](), False

    def require_portions(self, portions: Iterable[int]) -> None:
        """Let work begin on these portions.

        Raises
        ------
        StaleShardError
            If they are not all there, or others are, or if work has begun before.
        """
        self.require_untouched()
        if self.portions != set(portions):
            # Dask may take the end of a cancelled task for that of the same task submitted anew
            # (dask/distributed#7356).
            raise StaleShardError(
                f"portions {sorted(self.portions)} of the input have filled a shard that was to "
                f"hold {sorted(portions)}: compute again"
            )
        self._begun = True

    def require_untouched(self) -> None:
        """Raise StaleShardError if work has begun."""
        if self._begun:
            raise StaleShardError("work on the input has begun: compute again")


class InputBuffer(_Guarded):
    """Memory in which tasks put the input of a run, portion by portion, before it works there.

    Parameters
    ----------
    array : array, shape (m, width)
        The memory.
    threads : int, optional
        How many may copy to it at a time.
    pieces : sequence of (int, Piece), optional
        Numbers of chunks that workers of the run hold, and where they go once it begins.
    """

    def __init__(
        self, array: Array, threads: int = 1, pieces: Sequence[tuple[int, Piece]] = ()
    ) -> None:
        super().__init__()
        self.array, self.threads, self.pieces = array, threads, pieces

    def fill(self, device: Device, portion: int, inputs: Inputs) -> None:
        """Copy a portion to where it belongs, on `device` or on the host.

        Raises
        ------
        ValueError
            If a chunk is not what its Dask array declares, or if there is a NaN or an infinity
            where none may be.
        """
        self.require_untouched()
        self.copy(device, inputs)
        self.portions.add(portion)

    def copy(self, device: Device, inputs: Inputs) -> None:
        """Copy arrays to where they belong, as `fill` does."""
        whole = LocalStorage(self.array, {0: (0, self.array.shape[1])})

        def copy(given: tuple[Piece, Array]) -> None:
            piece, source = given
            source = _checked(piece, source, self.array)
            for target, columns in _parts(piece, source, self.array, whole.moves):
                copy_on_host(target, columns)

        if self.threads > 1:
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(copy, inputs))
        elif is_device_array(self.array):
            _upload([(device, whole)], inputs)
        else:
            with device_lock(device):
                for given in inputs:
                    copy(given)

    def begin(self, portions: Iterable[int]) -> Array:
        """Return the array, of which the caller makes the result; see `require_portions`."""
        self.require_portions(portions)
        return self.array


class TeamBuffer(_Guarded):
    """Memory of several workers of one process, each on its device, for the input of their run.

    It stays where it is: tasks that fill it get it by reference, and may do so in any order.

    Parameters
    ----------
    parts : sequence of tuple of Device and LocalStorage
        Each worker's device, and its columns there.
    """

    def __init__(self, parts: Sequence[tuple[Device, LocalStorage]]) -> None:
        super().__init__()
        self.parts = parts

    def fill(self, portion: int, inputs: Inputs) -> None:
        """Copy a portion, whose moves are to columns of the matrix, to their owners.

        It raises what `InputBuffer.fill` does.
        """
        self.require_untouched()
        _upload(self.parts, inputs)
        self.portions.add(portion)

    def begin(self, portions: Iterable[int]) -> TeamStorage:
        """Return the columns, which become the result; see `require_portions`."""
        self.require_portions(portions)
        return TeamStorage({device.name: part for device, part in self.parts})


def _checked(piece: Piece, source: Array, target: Array) -> Array:
    """Return a chunk as it can be copied to `target`, once it is what its Dask array declares."""
    piece.declared.require(source, target.dtype)
    if not is_device_array(target):
        source = to_host(source)
    elif source.dtype != target.dtype:
        with on_device_of(source):
            source = source.astype(target.dtype)
    wait_for_writes(source)  # the device's queues do not wait for a stream of another one
    return source


def _parts(
    piece: Piece, source: Array, array: Array, find: Callable[[Span], Moves]
) -> Iterator[tuple[Array, Array]]:
    """Yield views of an array, with the columns of a chunk that belong there."""
    rows = slice(piece.row, piece.row + source.shape[0])
    for (first, _), target in piece.moves:
        for (start, stop), place in find(target):
            yield array[rows, slice(*place)], source[:, first + start : first + stop]


def _upload(parts: Sequence[tuple[Device, LocalStorage]], inputs: Inputs) -> None:
    """Copy inputs to memory on devices, all at once, and wait for them."""
    _, like = parts[0]
    checked = [(piece, _checked(piece, source, like.array)) for piece, source in inputs]
    with contextlib.ExitStack() as held:
        for device, _ in parts:
            held.enter_context(device_lock(device))
        gpus = [device for device, _ in parts if device.index >= 0]
        stagings = [Staging(device, gpus) for device, _ in parts]  # of use until all are flushed
        for (device, part), staging in zip(parts, stagings, strict=True):
            held.callback(_flush, device, staging)  # also after an error: copies read the chunks
            find = functools.cache(part.moves)
            with device.activate():
                for piece, source in checked:
                    for target, columns in _parts(piece, source, part.array, find):
                        staging.upload(target, columns)


def _flush(device: Device, staging: Staging) -> None:
    with device.activate():
        staging.flush()


# Dask places the task that uses it by the cost of sending it.
sizeof.register(InputBuffer, lambda buffer: buffer.array.nbytes)
