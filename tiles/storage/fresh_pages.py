"""Pages of a new array, touched by several threads before results arrive there.

The kernel clears a page when it is touched for the first time.  A thread that copies into new
memory spends three quarters of its time on that, at the end of a run; meanwhile the cores of a
host whose GPU computes are idle.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_PAGE = 4096
_PART = 1 << 24  # bytes that one thread touches at a time


class FreshPages:
    """Threads that touch the pages of a new column-major array, from the left to the right.

    Parameters
    ----------
    array : numpy.ndarray, shape (m, n)
        The array, to which nobody has written.
    """

    def __init__(self, array: np.ndarray) -> None:
        pool = ThreadPoolExecutor(max(min((os.cpu_count() or 1) // 2, 8), 1), "hetero-la-pages")
        self._wide = max(_PART // max(len(array) * array.itemsize, 1), 1)
        self._parts = [
            pool.submit(_touch, array[:, start : start + self._wide])
            for start in range(0, array.shape[1], self._wide)
        ]
        pool.shutdown(wait=False)  # its threads end with the last part

    def hand_over(self, start: int, stop: int) -> None:
        """Let the caller write to columns: touch them no more, from now on."""
        for part in self._parts[start // self._wide : -(-stop // self._wide)]:
            if not part.cancel():
                part.result()


def _touch(columns: np.ndarray) -> None:
    """Write to each page of adjacent columns."""
    memory = columns.T.reshape(-1).view(np.uint8)
    memory[::_PAGE] = 0
    memory[-1:] = 0
