"""Memory of the per-step values that a worker computes."""

from __future__ import annotations

import math
import pickle
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.kernels.device import Array, Device

Name = tuple[str, int]  #: name and tile column of a matrix, or name and step of a per-step value

_ALIGNMENT = 32  # elements


def elements_of(shape: tuple[int, ...]) -> int:
    """Return the elements that a value takes in memory, with what aligns the next one."""
    return -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT


class StepVectors(dict[Name, np.ndarray]):
    """Per-step vectors, which are sent as one piece: Dask would send each as a part of its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_vectors, (pickle.dumps(dict(self)),)


def _read_vectors(pickled: bytes) -> StepVectors:
    return StepVectors(pickle.loads(pickled))


class StepMemory:
    """Per-step values of a worker, all steps of one name in one allocation.

    So one copy brings all steps to the host: on a GPU, each allocation and each copy takes as long
    as launching a kernel or two.

    Parameters
    ----------
    shapes : mapping
        (name, step) -> shape, and dtype or None for the run's.
    device : Device
        Device of the values.
    dtype : dtype
        The run's element type.
    """

    def __init__(
        self, shapes: Mapping[Name, tuple[tuple[int, ...], Any]], device: Device, dtype: Any
    ) -> None:
        self._shapes, self._device, self._dtype = shapes, device, dtype
        self._memory: dict[str, Array] = {}
        self._start: dict[Name, int] = {}
        self._values: dict[Name, Array] = {}

    def __contains__(self, key: Name) -> bool:
        return key in self._shapes

    def __getitem__(self, key: Name) -> Array:
        """Return the value, allocating memory for all of its name at the first access."""
        found = self._values.get(key)
        if found is None:
            if key[0] not in self._memory:
                self._allocate(key[0])
            found = self._values[key] = self._cut(self._memory[key[0]], key)
        return found

    def made(self, names: Collection[str]) -> dict[Name, Array]:
        """Return the values of these names that were accessed, on the device."""
        return {key: value for key, value in self._values.items() if key[0] in names}

    def to_host(self, names: Collection[str]) -> dict[Name, np.ndarray]:
        """Return host copies of the accessed values of these names, once the device is done."""
        copies = {name: to_host(self._memory[name]) for name in names if name in self._memory}
        return {key: self._cut(copies[key[0]], key) for key in self.made(names)}

    def _allocate(self, name: str) -> None:
        stop = 0
        for key, (shape, _) in self._shapes.items():
            if key[0] == name:
                self._start[key] = stop
                stop += elements_of(shape)
                dtype = self._shapes[key][1] or self._dtype
        self._memory[name] = self._device.empty((stop,), dtype)

    def _cut(self, memory: Array, key: Name) -> Array:
        shape, start = self._shapes[key][0], self._start[key]
        part = memory[start : start + math.prod(shape)]
        return part if len(shape) == 1 else part.reshape(shape, order="F")
