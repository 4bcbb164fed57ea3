"""Norms of matrices on a GPU and backward errors of solutions, each by few kernels.

Results are arrays of the GPU without dimensions: kernels are only enqueued, until one is read.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import is_column_major
from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.common import ceil_div, source
from hetero_la.tiles.kernels.gpu.queue import Block, block, cublas_handle, element_strides, gemm
from hetero_la.tiles.kernels.gpu.sources import module

_WARPS = 8  # of the kernels' blocks
_MOST_BLOCKS = 1024
#: Columns that a block of threads goes through.
_COLUMNS_OF_A_BLOCK = 128
#: Columns of a Hermitian matrix that are completed at once.
_COLUMNS = 1024


@functools.cache
def _function(name: str, dtype: np.dtype) -> Any:
    return module(source("norms", dtype)).get_function(name)


def _launch(name: str, dtype: np.dtype, grid: tuple[int, ...], *arguments: Any) -> None:
    """Launch a kernel of norms.cu on the current stream."""
    _function(name, dtype)(grid, (32, _WARPS), arguments)


def by_columns(a: Array) -> Array:
    """Return a matrix itself if it is column-major, and else such a copy."""
    return a if is_column_major(a) else a.copy(order="F")


def _zero() -> Array:
    import cupy

    return cupy.zeros((), np.float64)


@functools.cache
def _largest() -> Any:
    import cupy

    combine = ("max(a, b)", "y = a", "0")
    return cupy.ReductionKernel("T x", "float64 y", "abs(x)", *combine, "largest_modulus")


def largest_modulus(a: Array) -> Array:
    """Return the largest modulus."""
    return _largest()(a)


def largest_by_row_and_column(a: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest modulus in each row and column, on the host, to five digits at least.

    Of a complex number the larger part counts.
    """
    import cupy

    if is_column_major(a.T) and not is_column_major(a):
        return largest_by_row_and_column(a.T)[::-1]
    a, (m, n) = by_columns(a), a.shape
    bits = cupy.zeros(m + n, np.int32)
    if a.size:
        grid = ceil_div(m, 32 * _WARPS), ceil_div(n, _COLUMNS_OF_A_BLOCK)
        _launch(
            "largest_bits", a.dtype, grid, a, block(a).ld, m, n, bits, bits[m:],
            _COLUMNS_OF_A_BLOCK,
        )  # fmt: skip
    found, half = bits.get(), a.real.dtype.itemsize == 4
    largest = found.view(np.float32) if half else (found.astype(np.int64) << 32).view(np.float64)
    return largest[:m].astype(np.float64), largest[m:].astype(np.float64)


def norm1(a: Array) -> Array:
    """Return the 1-norm, in double precision."""
    found, (m, n), (down, right) = _zero(), a.shape, element_strides(a)
    blocks = ceil_div(n, _WARPS if down == 1 else 32)
    if m and n:
        _launch("norm1", a.dtype, (blocks,), a, down, right, m, n, found)
    return found


def size_of_inverse(tile: Array, *, unit: bool) -> Array:
    """Return the 1-norm of a lower triangle's inverse, without unit diagonal times its own."""
    import cupy
    from cupyx.scipy.linalg import solve_triangular

    one = cupy.eye(len(tile), dtype=tile.dtype, order="F")
    inverse = solve_triangular(
        tile, one, lower=True, unit_diagonal=unit, overwrite_b=True, check_finite=False
    )
    return norm1(inverse) if unit else norm1(inverse) * norm1(cupy.tril(tile))


def hermitian_norm1(a: Array) -> Array:
    """Return the 1-norm of a Hermitian matrix, whose lower triangle is read."""
    n, found = len(a), _zero()
    for first in range(0, n, _COLUMNS):
        part = _hermitian_columns(a, first)
        blocks = ceil_div(part.shape[1], _WARPS)
        _launch("norm1", a.dtype, (blocks,), part, 1, n, *part.shape, found)
    return found


def _hermitian_columns(a: Array, first: int) -> Array:
    """Return columns of a Hermitian matrix from `first` on; its lower triangle is read."""
    import cupy

    n = len(a)
    count = min(n - first, _COLUMNS)
    part = cupy.empty((n, count), a.dtype, order="F")
    grid = ceil_div(n, 32), ceil_div(count, 32)
    _launch("hermitian_columns", a.dtype, grid, a, *element_strides(a), n, first, count, part)
    return part


def holds_not_finite(a: Array) -> Array:
    """Return whether an array of any shape holds NaN or infinity, as 0 or 1."""
    import cupy

    found = cupy.zeros((), np.int32)
    if not a.size:
        return found
    a = a.transpose(sorted(range(a.ndim), key=lambda axis: -abs(a.strides[axis])))  # as in memory
    parts, real = 1 + (a.dtype.kind == "c"), np.dtype(a.dtype.char.lower())
    if not a.flags.c_contiguous and (a.ndim != 2 or a.strides[1] != a.itemsize):
        a = cupy.ascontiguousarray(a)
    outer, inner = (1, a.size) if a.flags.c_contiguous else a.shape
    inner *= parts
    across = min(ceil_div(inner, 32 * _WARPS), _MOST_BLOCKS)
    grid = across, min(outer, max(_MOST_BLOCKS // across, 1))
    step = a.strides[0] // real.itemsize if outer > 1 else inner
    _launch("find_not_finite", real, grid, a, inner, outer, step, found)
    return found


def residual(a: Array, x: Array, b: Array) -> Array:
    """Return B - A X, column-major."""
    left = b.copy(order="F")
    if left.size:
        _subtract_product(a, block(by_columns(x)), left, len(a))
    return left


def hermitian_residual(a: Array, x: Array, b: Array) -> Array:
    """Return B - A X for a Hermitian matrix, whose lower triangle is read; column-major."""
    x, left = by_columns(x), b.copy(order="F")
    for first in range(0, len(a), _COLUMNS):
        part = _hermitian_columns(a, first)
        _subtract_product(part, block(x).at(first, 0), left, part.shape[1])
    return left


def _subtract_product(a: Array, X: Block, left: Array, k: int) -> None:
    """Compute C <- C - A X for A of `k` columns, in either memory order."""
    A, form = (block(a.T), "tn") if is_column_major(a.T) else (block(by_columns(a)), "nn")
    shape = (*left.shape, k)
    gemm(cublas_handle(), -1, A, X, 1, block(left), shape, form)


def backward_error(anorm: float, x: Array, left: Array) -> Array:
    """Return the largest ||r||_1 / (anorm ||x||_1) of a column x of X and r of the residual R."""
    x, left, found, columns = by_columns(x), by_columns(left), _zero(), x.shape[1]
    if columns:
        pair = (x, block(x).ld, len(x), left, block(left).ld, len(left))
        _launch("backward_error", x.dtype, (columns,), *pair, np.float64(anorm), found)
    return found


def signed_weights(x: Array) -> Array:
    """Return 1 / ||x||_1 for each column x of a square matrix, with random signs, as a column."""
    import cupy

    n, ld = len(x), block(x).ld
    found = cupy.empty((n, 1), x.dtype, order="F")
    _launch("signed_weights", x.dtype, (ceil_div(n, _WARPS),), x, ld, n, found)
    return found


@functools.cache
def start_vectors() -> Any:
    """Return a kernel that fills a 2 x n matrix with the first vectors of a norm's estimate."""
    import cupy

    return cupy.ElementwiseKernel(
        "int64 n", "T x",
        "long long row = i % n; double slope = n > 1 ? 1 + (double)row / (n - 1) : 1;"
        "x = i >= n ? (row % 2 ? -slope : slope) * 2 / (3.0 * n) : 1.0 / n",
        "norm_estimate_start",
    )  # fmt: skip


@functools.cache
def signs(real: bool) -> Any:
    """Return a kernel for x / |x|, and 1 for zeros."""
    import cupy

    sign = "y < 0 ? -1 : 1" if real else "abs(y) == 0 ? T(1) : y / abs(y)"
    return cupy.ElementwiseKernel("T y", "T s", f"s = {sign}", "signs_of_entries")
