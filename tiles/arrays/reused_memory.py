"""Memory of results on the host that is used again once nobody has them.

The operating system clears each page of new memory when it is touched first, which can take longer
than the copy of a result from a GPU; and freed arrays of some MB may go back to it at once.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.forks import ProcessLock

#: Bytes of the smallest array whose memory is kept, and of all that is kept.
_LEAST, _KEPT = 1 << 20, 1 << 28


class ReusedMemory:
    """Arrays whose memory is kept for later ones of about the same size.

    Examples
    --------
    >>> memory = ReusedMemory()
    >>> a = memory.empty((1000, 300), "float64", order="F")
    >>> address = a.ctypes.data
    >>> del a
    >>> memory.empty((400, 700), "float64").ctypes.data == address
    True
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # in the order in which they were freed
        self._taking = ProcessLock()

    def empty(self, shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray:
        """Return an array like `numpy.empty`; views of it hold its memory, too."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if not _LEAST <= nbytes <= _KEPT:
            return np.empty(shape, dtype, order)
        memory = self._take(nbytes)
        # NumPy lets views refer to the last array whose base is not one: to `owner`.
        owner = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(owner, self._give_back, memory).atexit = False
        return np.ndarray(shape, dtype, buffer=owner, order=order)

    def _take(self, nbytes: int) -> np.ndarray:
        """Return free memory of at most a third more bytes.

        If there is none, return new memory, and free the oldest.
        """
        with self._taking:
            for place in reversed(range(len(self._free))):
                if nbytes <= self._free[place].nbytes <= nbytes * 4 // 3:
                    return self._free.pop(place)
            del self._free[:1]
        return np.empty(nbytes, np.uint8)

    def _give_back(self, memory: np.ndarray) -> None:
        """Keep memory that nobody has any more.

        The garbage collection may call this in any thread and at any time, also within `_take`: it
        takes no lock, and only appends.
        """
        if memory.nbytes + sum(kept.nbytes for kept in self._free) <= _KEPT:
            self._free.append(memory)
