"""Pages of a new array, touched by several threads before results arrive there.

The kernel clears a page when it is touched for the first time.  A thread that copies into new
memory spends three quarters of its time on that, at the end of a run; meanwhile the cores of a
host whose GPU computes are idle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

_PAGE = 4096
_PART = 1 << 24  # bytes that one thread touches at a time
_ROWS = 1 << 12  # rows of these, as results may come in parts


class FreshPages:
    """Threads that touch the pages of parts of a new array, in order.

    Parameters
    ----------
    columns : mapping
        Key -> column-major array to which nobody has written, and which of its rows to touch.
    """

    def __init__(self, columns: Mapping[int, tuple[np.ndarray, slice]]) -> None:
        pool = ThreadPoolExecutor(max(min((os.cpu_count() or 1) // 2, 8), 1), "hetero-la-pages")
        self._touching: dict[int, list[tuple[int, int, Future[None]]]] = {}
        for key, (array, rows) in columns.items():
            first, last, _ = rows.indices(len(array))
            wide = max(_PART // (_ROWS * array.itemsize), 1)
            self._touching[key] = [
                (row, min(row + _ROWS, last), pool.submit(_touch, array[row:last], wide, column))
                for row in range(first, last, _ROWS)
                for column in range(0, array.shape[1], wide)
            ]
        pool.shutdown(wait=False)  # its threads end with the last part

    def hand_over(self, key: int, rows: slice) -> None:
        """Let the caller write to rows of an array: touch them no more, from now on."""
        for start, stop, touching in self._touching.get(key, ()):
            overlaps = (rows.stop is None or start < rows.stop) and stop > (rows.start or 0)
            if overlaps and not touching.cancel():
                touching.result()

    def stop(self) -> None:
        """Touch nothing any more."""
        for key in self._touching:
            self.hand_over(key, slice(None))


def _touch(array: np.ndarray, wide: int, column: int) -> None:
    """Write to each page of the first rows of some columns."""
    array[: _ROWS : _PAGE // array.itemsize, column : column + wide] = 0
