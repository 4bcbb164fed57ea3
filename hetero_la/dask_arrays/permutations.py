"""Row permutations, as index vectors and as matrices."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from typing import Any

import dask.array as da
import numpy as np

from hetero_la.dask_arrays.inputs import empty_like
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_device_array,
    on_device_of_arrays,
    to_device,
)
from hetero_la.tiles.storage.pivots import permutation

#: Size, in bytes, from which NumPy asks for huge pages.
_HUGE_PAGES_FROM = 2**22


def inverse_order(piv: Any, m: int) -> np.ndarray:
    """Return for each row of A = P L U the row of L U that stands there."""
    return np.argsort(permutation(piv, m))


def row_order(piv: Any, m: int, dtype: Any, gpu: bool) -> Any:
    """Compute `inverse_order` on the host or on the GPU."""
    rows = inverse_order(piv, m).astype(dtype)
    return to_device(rows) if gpu else rows


def permutation_matrix(indices: da.Array, chunks: tuple[int, ...], dtype: Any) -> da.Array:
    """Return P in square chunks, from the column of the one in each row."""
    columns = da.arange(len(indices), chunks=(chunks,))
    return da.blockwise(
        _permutation, "ij", indices.rechunk((chunks,)), "i", columns, "j", dtype, None,
        token="permutation", dtype=dtype, meta=empty_like(indices, (0, 0), dtype),
    )  # fmt: skip


@on_device_of_arrays
def _permutation(indices: Any, columns: np.ndarray, dtype: Any) -> Any:
    """Return a block of P: some rows, with the columns of their ones, and some columns."""
    xp, start = array_module(indices), int(columns[0]) if len(columns) else 0
    (row,) = xp.nonzero((indices >= start) & (indices < start + len(columns)))
    p = sparse_zeros((len(indices), len(columns)), indices, dtype)
    p[row, indices[row] - start] = 1
    return p


def sparse_zeros(shape: tuple[int, int], like: Any, dtype: Any) -> Any:
    """Return zeros whose memory is taken page by page, where something is written.

    For arrays of 4 MiB and more NumPy asks for pages of 2 MiB, and then a few entries take as much
    memory and time as a full array.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array, which is row-major.
    like : array
        A NumPy or CuPy array; like a CuPy array, an ordinary array of zeros is returned.
    dtype : dtype
        Element type.

    Examples
    --------
    >>> import numpy as np
    >>> sparse_zeros((1, 2), np.empty(0), np.float32)
    array([[0., 0.]], dtype=float32)
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if is_device_array(like) or nbytes < _HUGE_PAGES_FROM or sys.platform != "linux":
        return array_module(like).zeros(shape, dtype)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
