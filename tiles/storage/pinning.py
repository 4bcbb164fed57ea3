"""Memory of the user's arrays that is pinned for the time of a run.

A GPU copies from and to pinned memory by itself, at the rate of its link.  Other memory takes the
host's cores, at a rate that all GPUs and both directions share.  To pin pages, and let them go,
takes about twice as long as such a copy: that pays where a matrix travels several times, and is
planned (`Plan.pins`).  Where the system refuses, threads copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from hetero_la.tiles.arrays.host_threads import copy_threads
from hetero_la.tiles.arrays.transfer import gpu_count, pin

_PAGE, _PART = 4096, 1 << 26  # bytes; one thread touches a part


@contextlib.contextmanager
def pinned(arrays: Sequence[np.ndarray], fresh: Sequence[np.ndarray] = ()) -> Iterator[None]:
    """Pin the memory of arrays on the host until the block ends, where the system allows that.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        Arrays, none of them a file that is mapped into memory.
    fresh : sequence of numpy.ndarray, optional
        Others, to whose pages nobody has written.
    """
    with contextlib.ExitStack() as until:
        if gpu_count():
            for a in fresh:
                _touch(a)
            for a in (*arrays, *fresh):
                until.callback(pin(a))
        yield


def _touch(a: np.ndarray) -> None:
    """Write to each page of a contiguous array, by several threads.

    The driver, which takes one, would need several times as long to pin new pages.
    """
    entries = a.reshape(-1, order="A")
    step = _PART // a.itemsize
    parts = [entries[first : first + step] for first in range(0, entries.size, step)]
    list(copy_threads().map(_touch_part, parts))


def _touch_part(a: np.ndarray) -> None:
    a[:: _PAGE // a.itemsize] = 0
