"""LU of matrices that the registers of a GPU hold, in one launch."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.common import ceil_div
from hetero_la.tiles.kernels.gpu.queue import block, blocks_at_once
from hetero_la.tiles.kernels.gpu.sources import Source, kernel

#: Threads of a block, and bytes of a row that a thread holds.
_THREADS, _ROW_BYTES = 256, 128
#: Bytes of the registers of a multiprocessor, and the most blocks that it runs at once.
_REGISTERS, _BLOCKS = 1 << 18, 32


@functools.cache
def strips_source(dtype: np.dtype, rows: int) -> Source:
    """Return the source of a kernel whose threads have some rows each."""
    return Source("strips", dtype, (f"WIDTH={_ROW_BYTES // dtype.itemsize}", f"ROWS={rows}"))


class _Launch(NamedTuple):
    """A compiled kernel, threads of a block, and how many blocks the GPU can run at once."""

    function: Any
    threads: int
    most: int


@functools.cache
def _launch(m: int, dtype: np.dtype, gpu: int) -> _Launch:
    """Return what factors matrices of m rows on the current GPU."""
    each = 1 << max(ceil_div(m, _THREADS) - 1, 0).bit_length()  # a power of two: fewer kernels
    threads = 32 * ceil_div(m, 32 * each)
    function = kernel("getrf_strips", strips_source(dtype, each)).kernel
    return _Launch(function, threads, blocks_at_once(function, threads) * _multiprocessors(gpu))


@functools.cache
def _multiprocessors(gpu: int) -> int:
    import cupy

    return int(cupy.cuda.Device(gpu).attributes["MultiProcessorCount"])


def most_rows(dtype: np.dtype) -> int:
    """Return the most rows: of complex128 fewer, as cuSOLVER's LU of 768 takes no longer.

    Examples
    --------
    >>> most_rows(np.dtype(np.float64)), most_rows(np.dtype(np.complex128))
    (1024, 512)
    """
    return 512 if dtype.itemsize > 8 else 1024


def _strips(columns: int, dtype: np.dtype) -> int:
    return ceil_div(columns * dtype.itemsize, _ROW_BYTES)


def is_resident(shape: tuple[int, int], dtype: np.dtype) -> bool:
    """Return whether the current GPU can factor a matrix so; it is then faster than cuSOLVER."""
    m, n = shape
    if not 0 < m <= most_rows(dtype) or not n:
        return False
    import cupy

    gpu, strips = cupy.cuda.Device().id, _strips(n, dtype)
    fits = min(_REGISTERS // (32 * ceil_div(m, 32) * _ROW_BYTES), _BLOCKS)  # at most
    if strips > fits * _multiprocessors(gpu):
        return False
    return strips <= _launch(m, dtype, gpu).most


def getrf(a: Array) -> Array:
    """Overwrite A with L and U; return the row interchanges, from 0 on, and info behind them.

    Partial pivoting chooses the rows that LAPACK's ``xGETRF`` does.

    Parameters
    ----------
    a : cupy.ndarray, shape (m, n)
        The matrix, column-major, for which `is_resident` holds.
    """
    import cupy

    A, (m, n) = block(a), a.shape
    steps, panels = min(m, n), _strips(min(m, n), a.dtype)
    found = cupy.zeros(steps + 1 + panels, np.int32)
    ipiv, info, ready = found, found[steps:], found[steps + 1 :]
    rows = cupy.empty(panels * m * _ROW_BYTES, np.uint8)
    triangles = cupy.empty(panels * _ROW_BYTES**2 // a.itemsize, np.uint8)
    positions = cupy.empty(panels * m, np.int32)
    arguments = (A.pointer, A.ld, m, n, rows, triangles, positions, ready, ipiv, info)
    launch = _launch(m, a.dtype, a.device.id)
    # Cooperative: all blocks start together or not at all.
    launch.function(
        (_strips(n, a.dtype),), (launch.threads,), arguments, enable_cooperative_groups=True
    )
    return found[: steps + 1]
