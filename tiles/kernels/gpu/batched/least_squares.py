"""Least squares with stacks on a GPU: QR, substitution, and singular values of R."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched import qr
from hetero_la.tiles.kernels.gpu.batched.arrays import column_major, column_major_copy
from hetero_la.tiles.kernels.gpu.common import ceil_div
from hetero_la.tiles.kernels.gpu.sources import Source, kernel

_MOST_THREADS, _THREADS = 1024, 256
#: Order for which a matrix alone takes cuSOLVER as long as a block takes for its singular values;
#: of larger ones there have to be as many more.
_ALONE = 32


class Solved(NamedTuple):
    """Solutions with the matrices of a stack, as of full rank.

    Attributes
    ----------
    x : array, shape (count, n, nrhs)
        Solutions, for m < n the shortest ones.
    squares : array of float64, shape (count, nrhs)
        Squared 2-norms of the columns of B - A X, for m >= n.
    s : array of float64, shape (count, min(m, n))
        Singular values, the largest first; NaN if they have not been found.
    info : array of int32, shape (count,)
        Not 0 where columns are so large or small that the rest is not certain.
    """

    x: Array
    squares: Array
    s: Array
    info: Array


def least_squares_source(dtype: np.dtype) -> Source:
    return Source("least_squares", dtype, (f"THREADS={_MOST_THREADS}",))


def lstsq(a: Array, b: Array) -> Solved | None:
    """Solve by QR of each matrix, or of its conjugate transpose for m < n.

    Return None for so few matrices that one after another is faster.
    """
    (count, m, n), nrhs = a.shape, b.shape[2]
    if count * _ALONE < min(m, n):
        return None
    tall = m >= n
    factors = column_major_copy(a if tall else a.conj().swapaxes(1, 2))
    x = column_major(count, max(m, n), nrhs, a.dtype)
    x[:, :m], x[:, m:] = b, 0
    found, panels = qr.factor(factors)
    r = qr.triangles(factors, panels)
    if tall:
        qr.multiply(factors, panels, x, adjoint=True)
    squares = _substitute(r, x, adjoint=not tall)
    if not tall:
        qr.multiply(factors, panels, x, adjoint=False)
    return Solved(x[:, :n].copy(), squares, _singular_values(r), found["info"])


def _substitute(r: Array, x: Array, *, adjoint: bool) -> Array:
    """Overwrite the first rows of X; return the squared norms of the columns of the others."""
    import cupy

    (count, order, _), (_, rows, nrhs) = r.shape, x.shape
    squares = cupy.empty((count, nrhs), np.float64)
    kernel("substitute", least_squares_source(r.dtype))(
        (count,), (_THREADS,),
        (r.data.ptr, order, int(adjoint), x.data.ptr, rows, nrhs, squares.data.ptr),
    )  # fmt: skip
    return squares


def _singular_values(r: Array) -> Array:
    """Return the singular values of the upper triangles of a column-major stack."""
    import cupy

    count, order, _ = r.shape
    function = kernel("singular_values", least_squares_source(r.dtype))
    most = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    function.max_dynamic_shared_size_bytes = most
    size: int = order * order * r.itemsize
    work = cupy.empty(r.size if size > most else 0, r.dtype)
    values = cupy.empty((count, order), np.float64)
    tolerance = float(np.finfo(r.dtype).eps) * (order**0.5 + 4)
    function(
        (count,), (min(_MOST_THREADS, 32 * ceil_div(order, 2)),),
        (r.data.ptr, order, tolerance, work.data.ptr if work.size else 0, values.data.ptr),
        shared_mem=0 if work.size else size,
    )  # fmt: skip
    return cupy.sort(values, axis=1)[:, ::-1]
