"""Solves with triangular factors on a GPU, by the inverses of their diagonal blocks.

For a few right-hand sides cuBLAS's trsm takes about a microsecond a row, one row after
the other.  With the inverses of the diagonal blocks, a block of rows takes two products.  That is
not backward stable where the blocks are ill-conditioned: who uses a solution looks at its residual.
"""

from __future__ import annotations

import functools
import operator
from functools import partial

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.common import (
    GATHER_COLUMNS,
    LEAF,
    PERMUTE,
    ceil_div,
    gather_grid,
    source,
)
from hetero_la.tiles.kernels.gpu.inverse import join, leaves, pairs
from hetero_la.tiles.kernels.gpu.queue import Block, block, cublas_handle, gemm, gemm_batch
from hetero_la.tiles.kernels.gpu.sources import kernel
from hetero_la.tiles.kernels.gpu_libraries.norms import by_columns, estimate_norm1, norm1
from hetero_la.tiles.storage.pivots import permutation

#: Order of the diagonal blocks.
_BLOCK = 1024
#: Interchanges for which shared memory has room.
_MOST_IN_SHARED = 4096
#: Factors -> their triangles in the order of a solve, each with whether its adjoint is meant.
_FORMS = {
    "lu": (("l", False), ("u", False)),
    "cholesky": (("l", False), ("l", True)),
    "r": (("u", False),),
}


class Substitution:
    """Triangular factors with the inverses of their diagonal blocks.

    Parameters
    ----------
    factors : cupy.ndarray, shape (n, n)
        The packed factors, column-major.
    form : {"lu", "cholesky", "r"}
        What they are: L with a unit diagonal and U; L, with L^H; or an upper triangle.
    piv : array of int, shape (n,), optional
        Row interchanges of LU.
    order : int, optional
        Order of the diagonal blocks: 128 times a power of two.  The error of a solve grows with
        their condition numbers, and so with the order.
    """

    def __init__(
        self, factors: Array, form: str, piv: Array | None = None, *, order: int = _BLOCK
    ) -> None:
        self._n, self._factors, self._steps = len(factors), block(factors), _FORMS[form]
        self._nb = min(order, self._n)
        self._kept = factors  # `_factors` is but its address
        self._rows = None if piv is None else _row_order(piv, self._n)
        self._inverses = {
            triangle: self._inverted(triangle, form == "lu" and triangle == "l")
            for triangle in sorted({triangle for triangle, _ in self._steps})
        }

    def _inverted(self, triangle: str, unit: bool) -> Array:
        """Return the inverses of the diagonal blocks of a triangle, a row of an array for each.

        They lie as far apart as if they were on the diagonal of a matrix with nb rows.
        """
        import cupy

        n, nb, dtype = self._n, self._nb, self._factors.dtype
        inverses = cupy.empty((ceil_div(n, nb), nb * (nb + 1)), dtype)
        T, W = self._factors, Block(inverses.data.ptr, nb, dtype)
        grid, threads, arguments = leaves(T, W, n, nb, triangle, unit)
        kernel("invert_diagonal", source("lower", dtype))(grid, (threads,), arguments)
        product = partial(gemm_batch, cublas_handle())
        for first, size, rows, count in pairs(n, LEAF, nb):
            work = cupy.empty(count * size * rows, dtype)
            pair = T.at(first, first), W.at(first, first)
            join(product, triangle, *pair, work.data.ptr, size, rows, count)
        return inverses

    def _inverse(self, triangle: str, start: int) -> Array:
        """Return the inverse of the diagonal block that begins at a row."""
        nb = self._nb
        return self._inverses[triangle][start // nb, : nb * nb].reshape(nb, nb).T

    def solve(self, b: Array, *, adjoint: bool = False) -> Array:
        """Return A^-1 B, or A^-H B, for B of shape (n, p)."""
        import cupy

        b = b.astype(self._factors.dtype, copy=False)
        if self._rows is None:
            return self._solve(b, adjoint)
        if not adjoint:
            return self._solve(_take_rows(self._rows, b), adjoint, overwrite=True)
        x = cupy.empty_like(b, order="F")
        x[self._rows] = self._solve(b, adjoint)
        return x

    def _solve(self, b: Array, adjoint: bool, *, overwrite: bool = False) -> Array:
        """Solve with the product of the factors, without the row interchanges."""
        import cupy

        x = b if overwrite else b.copy(order="F")
        y = cupy.empty_like(x, order="F")
        for triangle, turned in reversed(self._steps) if adjoint else self._steps:
            self._substitute(triangle, x, y, adjoint=turned != adjoint)
            x, y = y, x
        return x

    def _substitute(
        self, triangle: str, x: Array, y: Array, *, adjoint: bool, triangular: bool = False
    ) -> None:
        """Solve T Y = X or T^H Y = X, from block to block; X is overwritten.

        With `triangular`, X and Y are lower triangles.
        """
        n, nb, T = self._n, self._nb, self._factors
        W = Block(self._inverses[triangle].data.ptr, nb, T.dtype)
        X, Y, handle = block(x), block(y), cublas_handle()
        down = (triangle == "l") != adjoint
        starts = range(0, n, nb)
        form = "cn" if adjoint else "nn"
        for start in starts if down else reversed(starts):
            stop = min(start + nb, n)
            size, columns = stop - start, stop if triangular else x.shape[1]
            shape = (size, columns, size)
            gemm(handle, 1, W.at(start, start), X.at(start, 0), 0, Y.at(start, 0), shape, form)
            rest, count = (stop, n - stop) if down else (0, start)
            if count:
                across = T.at(start, rest) if adjoint else T.at(rest, start)
                shape = (count, columns, size)
                gemm(handle, -1, across, Y.at(start, 0), 1, X.at(rest, 0), shape, form)

    def inverse_of_tile(self, triangle: str, start: int, stop: int) -> Array | None:
        """Return the inverse of a tile on the diagonal, if one diagonal block has all of it."""
        first, last = start % self._nb, start % self._nb + stop - start
        if last > self._nb:
            return None
        return self._inverse(triangle, start)[first:last, first:last]

    def inverse(self) -> Array:
        """Return A^-1 from the factors of LU.

        Row block i of L^-1 has zeros right of its diagonal, which are left out.
        """
        import cupy

        n, dtype = self._n, self._factors.dtype
        x, y = (cupy.zeros((n, n), dtype, order="F") for _ in range(2))
        x.T.reshape(-1)[:: n + 1] = 1
        self._substitute("l", x, y, adjoint=False, triangular=True)
        self._substitute("u", y, x, adjoint=False)
        y[:, self._rows] = x
        return y

    def _explicit_inverse(self) -> Array:
        """Return the inverse of the product, whose triangles are single blocks."""
        whole = {name: self._inverse(name, 0) for name in self._inverses}
        parts = [whole[name].T.conj() if turned else whole[name]
                 for name, turned in reversed(self._steps)]  # fmt: skip
        return functools.reduce(operator.matmul, parts)

    @functools.cached_property
    def inverse_norm(self) -> Array:
        """Estimate the 1-norm of the inverse of the product, as an array of no dimension.

        If a single block has all of it, the inverse is formed; else it takes three solves.  Row
        interchanges do not change the norm.
        """
        if self._n == self._nb:
            return norm1(self._explicit_inverse())
        return estimate_norm1(
            self._kept,
            lambda x: self._solve(x, adjoint=False),
            lambda x: self._solve(x, adjoint=True),
        )


def _row_order(piv: Array, n: int) -> Array:
    """Return the row order p with A[p] = L U, on the GPU."""
    import cupy

    if n > _MOST_IN_SHARED or not isinstance(piv, cupy.ndarray):
        return cupy.asarray(permutation(piv, n).astype(np.int32))
    rows = cupy.empty(n, np.int32)
    kernel("row_order", PERMUTE)((1,), (256,), (piv, n, rows), shared_mem=8 * n)
    return rows


def _take_rows(rows: Array, b: Array) -> Array:
    """Return rows of B in another order, column-major."""
    import cupy

    b = by_columns(b)
    x, columns = cupy.empty(b.shape, b.dtype, order="F"), b.shape[1]
    gather, B, X = kernel("gather_rows", source("columns", b.dtype)), block(b), block(x)
    for first in range(0, columns, GATHER_COLUMNS):
        count = min(columns - first, GATHER_COLUMNS)
        given, taken = B.at(0, first).pointer, X.at(0, first).pointer
        arguments = (rows, given, B.ld, taken, len(rows), count)
        gather(gather_grid(len(rows), count), (256,), arguments)
    return x
