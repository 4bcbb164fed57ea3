"""A header and arrays as one block of memory."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hetero_la.scheduler.links.shared_heap import aligned


class Packing:
    """What a message is in memory: a pickled description, and the arrays behind it.

    Parameters
    ----------
    topic : str
        What the message belongs to.
    header : object
        Anything small that can be pickled.
    arrays : sequence of ndarray
        Of any dtype without objects, shape and strides.  They arrive contiguous: those whose
        columns are nearer together than their rows, row by row, and all others column by column.

    Examples
    --------
    >>> packing = Packing("run 1", "panel 0", [np.eye(2)])
    >>> memory = bytearray(packing.size)
    >>> packing.write(memoryview(memory))
    >>> unpack(memoryview(memory), packing.described)[1:]
    ('panel 0', [array([[1., 0.],
           [0., 1.]])])
    """

    def __init__(self, topic: str, header: Any, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        places, end = [], 0
        for a in arrays:
            if a.dtype.hasobject:
                raise TypeError(f"an array of {a.dtype} cannot be in shared memory")
            places.append((a.shape, a.dtype, _order(a), end))
            end += aligned(a.nbytes)
        self._places = places
        self._description = pickle.dumps((topic, header, places), pickle.HIGHEST_PROTOCOL)
        self.described = len(self._description)
        self.size = aligned(self.described) + end

    def write(self, memory: memoryview) -> None:
        """Copy everything."""
        memory[: self.described] = self._description
        for target, a in zip(
            _arrays_in(memory, self.described, self._places), self._arrays, strict=True
        ):
            np.copyto(target, a)


def unpack(memory: memoryview, described: int) -> tuple[str, Any, list[np.ndarray]]:
    """Return the topic, the header and the arrays of a message; these are views of the memory."""
    topic, header, places = pickle.loads(memory[:described])
    return topic, header, _arrays_in(memory, described, places)


def _arrays_in(memory: memoryview, described: int, places: list[Any]) -> list[np.ndarray]:
    first = aligned(described)
    return [
        np.ndarray(shape, dtype, memory, first + at, order=order)
        for shape, dtype, order, at in places
    ]


def _order(a: np.ndarray) -> Literal["C", "F"]:
    """Return the order in which a copy need not turn the array."""
    return "F" if a.ndim < 2 or abs(a.strides[0]) <= abs(a.strides[-1]) else "C"
