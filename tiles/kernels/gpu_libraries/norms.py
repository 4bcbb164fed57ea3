"""Norms of matrices on a GPU and backward errors of solutions, each by few kernels.

Results are arrays of the GPU without dimensions: kernels are only enqueued, until one is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from hetero_la.tiles.arrays.transfer import is_column_major
from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.common import ceil_div, source
from hetero_la.tiles.kernels.gpu.queue import Block, block, cublas_handle, element_strides, gemm
from hetero_la.tiles.kernels.gpu.sources import kernel

_WARPS = 8  # of the kernels' blocks
_MOST_BLOCKS = 1024
#: Columns that a block of threads goes through.
_COLUMNS_OF_A_BLOCK = 128
#: Columns of a Hermitian matrix that are completed at once.
_COLUMNS = 1024
#: Columns of a product with moduli, and least ones of a column-major matrix that are added up by
#: one thread for each row.
_MOST_COLUMNS, _COLUMNS_OF_A_SUM = 8, 512
#: Most sums of a row, so that they take little memory.
_MOST_SUMS = 32
#: In the order of the kernel's constants.
_PARTS, _DIAGONALS = ("whole", "lower", "upper"), ("as is", "real", "ones", "zeros")


class Form(NamedTuple):
    """What of a matrix is multiplied: all or a triangle, with what diagonal, or its adjoint."""

    part: Literal["whole", "lower", "upper"] = "whole"
    diagonal: Literal["as is", "real", "ones", "zeros"] = "as is"
    adjoint: bool = False


#: What makes a Hermitian matrix from its lower triangle.
_HERMITIAN = Form("lower", "real"), Form("lower", "zeros", adjoint=True)


def _launch(name: str, dtype: np.dtype, grid: tuple[int, ...], *arguments: Any) -> None:
    """Launch a kernel of norms.cu on the current stream."""
    kernel(name, source("norms", dtype))(grid, (32, _WARPS), arguments)


def by_columns(a: Array) -> Array:
    """Return a matrix itself if it is column-major, and else such a copy."""
    return a if is_column_major(a) else a.copy(order="F")


def _zero() -> Array:
    import cupy

    return cupy.zeros((), np.float64)


@functools.cache
def _largest() -> Any:
    import cupy

    combine = ("a < b || b != b ? b : a", "y = a", "0")
    return cupy.ReductionKernel("T x", "float64 y", "abs(x)", *combine, "largest_modulus")


def largest_modulus(a: Array) -> Array:
    """Return the largest modulus; NaN counts as larger than all numbers."""
    return _largest()(a)


def largest_of_upper(a: Array) -> Array:
    """Return the largest modulus of the upper trapezoid of a column-major matrix."""
    found, (m, n) = _zero(), a.shape
    if a.size:
        _launch("largest_of_upper", a.dtype, (ceil_div(n, _WARPS),), a, block(a).ld, m, n, found)
    return found


def largest_by_row_and_column(
    a: Array, exponents: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest modulus in each row and column, on the host, to five digits at least.

    Of a complex number the larger part counts.  Of a scaled matrix, the exponents of the powers of
    two by which its rows and columns are multiplied are given.
    """
    import cupy

    if is_column_major(a.T) and not is_column_major(a):
        return largest_by_row_and_column(a.T, exponents and exponents[::-1])[::-1]
    a, (m, n) = by_columns(a), a.shape
    bits = cupy.zeros(m + n, np.int32)
    powers = [cupy.asarray(of, np.int32) for of in exponents or ()] or [np.uintp(0)] * 2
    if a.size:
        grid = ceil_div(m, 32 * _WARPS), ceil_div(n, _COLUMNS_OF_A_BLOCK)
        _launch(
            "largest_bits", a.dtype, grid, a, block(a).ld, m, n, bits, bits[m:],
            _COLUMNS_OF_A_BLOCK, *powers,
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


def inverse_of_lower(tile: Array, *, unit: bool) -> Array:
    """Return the inverse of a lower triangle."""
    import cupy
    from cupyx.scipy.linalg import solve_triangular

    one = cupy.eye(len(tile), dtype=tile.dtype, order="F")
    return solve_triangular(
        tile, one, lower=True, unit_diagonal=unit, overwrite_b=True, check_finite=False
    )


def hermitian_norm1(a: Array) -> Array:
    """Return the 1-norm of a Hermitian matrix, whose lower triangle is read."""
    import cupy

    if len(a) <= _COLUMNS:
        return norm1(_hermitian_columns(a, 0))
    ones = cupy.ones((len(a), 1), a.dtype)
    sums = [_products(a, ones, form)[1] for form in _HERMITIAN]
    return (sums[0] + sums[1]).max()


def _hermitian_columns(a: Array, first: int) -> Array:
    """Return columns of a Hermitian matrix from `first` on; its lower triangle is read."""
    import cupy

    n = len(a)
    count = min(n - first, _COLUMNS)
    part = cupy.empty((n, count), a.dtype, order="F")
    grid = ceil_div(n, 32), ceil_div(count, 32)
    _launch("hermitian_columns", a.dtype, grid, a, *element_strides(a), n, first, count, part)
    return part


def complete_from_lower(a: Array, *, conjugate: bool) -> None:
    """Make matrices, of shape (..., n, n), symmetric or Hermitian, from their lower triangles."""
    if a.ndim > 3:
        for matrices in a:
            complete_from_lower(matrices, conjugate=conjugate)
    elif a.size:
        count, n = len(a) if a.ndim == 3 else 1, a.shape[-1]
        apart, down, right = (0, *element_strides(a))[-3:]
        tiles = ceil_div(n, 32)
        grid = tiles, tiles, min(count, _MOST_BLOCKS)
        _launch("complete", a.dtype, grid, a, down, right, apart, n, count, np.int32(conjugate))


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
    # To read the triangle twice is less than to complete it, but takes more kernels.
    if x.shape[1] <= _MOST_COLUMNS and len(a) > _COLUMNS:
        return residual_and_moduli(a, x, b, hermitian=True)[0]
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


def residual_and_moduli(
    a: Array, x: Array, b: Array, *, hermitian: bool = False
) -> tuple[Array, Array]:
    """Return B - A X and, in double precision, |A| |X| + |B|, column-major, by a pass over A.

    If `hermitian`, the lower triangle of A is read, twice.
    """
    left, moduli = b.copy(order="F"), abs(b).astype(np.float64, order="F")
    for at in range(0, x.shape[1], _MOST_COLUMNS):
        some = slice(at, at + _MOST_COLUMNS)
        for form in _HERMITIAN if hermitian else (Form(),):
            products, sizes = _products(a, by_columns(x[:, some]), form)
            left[:, some] -= products
            moduli[:, some] += sizes
    return left, moduli


def product(a: Array, x: Array, form: Form) -> Array:
    """Return the product of a form of A with up to eight columns."""
    return _products(a, by_columns(x), form)[0]


def _products(a: Array, x: Array, form: Form) -> tuple[Array, Array]:
    """Return A X and |A| |X| for a form of A and a few columns; sums have a fixed order."""
    import cupy

    a = a.T if form.adjoint else a
    part = _PARTS.index(form.part)
    part = -part % 3 if form.adjoint else part  # the adjoint of a triangle is the other one
    how = np.array([part, _DIAGONALS.index(form.diagonal), form.adjoint], np.int32)
    (m, n), p, (down, right) = a.shape, x.shape[1], element_strides(a)
    by_rows = right == 1 and down != 1
    columns = n if by_rows else max(_COLUMNS_OF_A_SUM, ceil_div(n, _MOST_SUMS))
    sums = ceil_div(n, columns) if n else 0
    products, sizes = cupy.empty((sums, p, m), a.dtype), cupy.empty((sums, p, m))
    if products.size:
        grid = ceil_div(m, _WARPS if by_rows else 32 * _WARPS), sums
        _launch(
            "products_and_moduli", a.dtype, grid, a, down, right, *how, m, n,
            x, block(x).ld, np.int32(p), columns, products, sizes,
        )  # fmt: skip
    return products.sum(axis=0).T, sizes.sum(axis=0).T


def backward_error(anorm: Array | float, x: Array, left: Array) -> Array:
    """Return the largest ||r||_1 / (anorm ||x||_1) of a column x of X and r of the residual R."""
    import cupy

    x, left, found, columns = by_columns(x), by_columns(left), _zero(), x.shape[1]
    if columns:
        pair = (x, block(x).ld, len(x), left, block(left).ld, len(left))
        norm = anorm if isinstance(anorm, cupy.ndarray) else cupy.full((), anorm, np.float64)
        _launch("backward_error", x.dtype, (columns,), *pair, norm, found)
    return found


def signed_weights(x: Array) -> Array:
    """Return 1 / ||x||_1 for each column x of a square matrix, with random signs, as a column."""
    import cupy

    n, ld = len(x), block(x).ld
    found = cupy.empty((n, 1), x.dtype, order="F")
    _launch("signed_weights", x.dtype, (ceil_div(n, _WARPS),), x, ld, n, found)
    return found


def estimate_norm1(
    like: Array, times: Callable[[Array], Array], times_adjoint: Callable[[Array], Array]
) -> Array:
    """Estimate the 1-norm of a square matrix M from three products with two columns.

    It does not wait.  The block estimator [1]_ begins with 1 / n in all entries of one column, and
    LAPACK's entries of alternating signs in the other, and stops after the first columns of M that
    it looks at.  It is a lower bound.

    Parameters
    ----------
    like : array, shape (n, ...)
        An array of M's order and dtype.
    times, times_adjoint : callable
        Return M Y and M^H Y for Y of shape (n, 2).

    References
    ----------
    .. [1] N. J. Higham and F. Tisseur, A block algorithm for matrix 1-norm estimation, SIAM J.
       Matrix Anal. Appl. 21, 2000.
    """
    import cupy

    x = cupy.empty((2, len(like)), like.dtype)
    _start_vectors()(len(like), x)
    y = times(x.T)
    z = times_adjoint(_signs(x.dtype.kind == "f")(y))
    promising = cupy.arange(len(z))[:, None] == abs(z).argmax(axis=0)
    columns = times(promising.astype(x.dtype, order="F"))
    return functools.reduce(cupy.maximum, (norm1(y), largest_modulus(z), norm1(columns)))


@functools.cache
def _start_vectors() -> Any:
    """Return a kernel that fills a 2 x n matrix with the first vectors of a norm's estimate."""
    import cupy

    return cupy.ElementwiseKernel(
        "int64 n", "T x",
        "long long row = i % n; double slope = n > 1 ? 1 + (double)row / (n - 1) : 1;"
        "x = i >= n ? (row % 2 ? -slope : slope) * 2 / (3.0 * n) : 1.0 / n",
        "norm_estimate_start",
    )  # fmt: skip


@functools.cache
def _signs(real: bool) -> Any:
    """Return a kernel for x / |x|, and 1 for zeros."""
    import cupy

    sign = "y < 0 ? -1 : 1" if real else "abs(y) == 0 ? T(1) : y / abs(y)"
    return cupy.ElementwiseKernel("T y", "T s", f"s = {sign}", "signs_of_entries")
