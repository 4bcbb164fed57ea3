"""Copies to column-major arrays on the host, from arrays of any memory order."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from hetero_la.tiles.arrays.host_threads import PARALLEL_BYTES, copy_threads, thread_count
from hetero_la.tiles.arrays.transfer import is_column_major

#: Rows that are transposed at a time, and bytes of these if there are more such rows.
_ROWS, _BYTES = 64, 1 << 17
#: Bytes up to which a row-major array stays in cache as a whole, unless its rows are so many bytes
#: apart: then they share a few places of the cache.
_AT_ONCE, _CACHE_SET = 1 << 21, 1024


def copy_on_host(target: np.ndarray, source: np.ndarray) -> None:
    """Copy into a column-major array.

    Examples
    --------
    >>> target = np.empty((2, 3), order="F")
    >>> copy_on_host(target, np.arange(6.0).reshape(2, 3))
    >>> target
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    at_once = source.nbytes < _AT_ONCE and source.strides[0] % _CACHE_SET
    if at_once or source.ndim != 2 or is_column_major(source):
        np.copyto(target, source)
        return
    # Row-major: rows in blocks that stay in cache while they are transposed.
    step = max(_ROWS, _BYTES // max(source.shape[1] * source.itemsize, 1))
    for row in range(0, len(source), step):
        rows = slice(row, row + step)
        np.copyto(target[rows], source[rows])


def copies_on_host(target: np.ndarray, source: np.ndarray) -> list[Future[None]]:
    """Let several threads copy to a column-major array; return what ends with each."""
    turned = not is_column_major(source)
    length = target.shape[0 if turned else 1]
    pieces = min(target.nbytes // PARALLEL_BYTES, length, thread_count())
    if pieces < 2:
        copy_on_host(target, source)
        return []
    edges = [slice(length * i // pieces, length * (i + 1) // pieces) for i in range(pieces)]
    parts = edges if turned else [(slice(None), edge) for edge in edges]
    return [copy_threads().submit(copy_on_host, target[part], source[part]) for part in parts]
