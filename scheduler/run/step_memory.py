"""Memory of the per-step values that a worker makes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.device import Array, Device
from hetero_la.tiles.arrays.transfer import to_host

Name = tuple[str, int]  #: of a tile column of a matrix, or of a per-step value

_ALIGNMENT = 32  # elements


class StepMemory:
    """Per-step values, those of one name in one piece of memory.

    One allocation serves all steps, and one copy brings them to the host: on a GPU, each
    costs as much time as launching a kernel or two.

    Parameters
    ----------
    shapes : mapping
        (name, step) -> shape, and dtype or None for the run's.
    device : Device
        Where they are.
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
        """The value, whose memory comes to be when one of its name is first asked for."""
        found = self._values.get(key)
        if found is None:
            if key[0] not in self._memory:
                self._allocate(key[0])
            found = self._values[key] = self._cut(self._memory[key[0]], key)
        return found

    def made(self, names: Collection[str]) -> dict[Name, Array]:
        """Those that were asked for, where they are."""
        return {key: value for key, value in self._values.items() if key[0] in names}

    def to_host(self, names: Collection[str]) -> dict[Name, np.ndarray]:
        """Those that were asked for, once the device has finished."""
        copies = {name: to_host(self._memory[name]) for name in names if name in self._memory}
        return {key: self._cut(copies[key[0]], key) for key in self.made(names)}

    def _allocate(self, name: str) -> None:
        stop = 0
        for key, (shape, _) in self._shapes.items():
            if key[0] == name:
                self._start[key] = stop
                stop += -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT
                dtype = self._shapes[key][1] or self._dtype
        self._memory[name] = self._device.empty((stop,), dtype)

    def _cut(self, memory: Array, key: Name) -> Array:
        shape, start = self._shapes[key][0], self._start[key]
        part = memory[start : start + math.prod(shape)]
        return part if len(shape) == 1 else part.reshape(shape, order="F")
