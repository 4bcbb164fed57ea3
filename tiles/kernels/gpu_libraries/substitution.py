"""Solves with triangular factors on a GPU, by the inverses of their diagonal blocks.

For a few right-hand sides cuBLAS's trsm takes about a microsecond a row, one row after
the other.  With the inverses of the diagonal blocks, a block of rows takes two products.  That is
not backward stable where the blocks are ill-conditioned: who uses a solution looks at its residual.
"""

from __future__ import annotations

import functools
import operator

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.common import GATHER_COLUMNS, PERMUTE, gather_grid, source
from hetero_la.tiles.kernels.gpu.queue import (
    Block,
    block,
    cublas_handle,
    gemm,
    gemm_batch,
    trsm,
    trsm_batch,
)
from hetero_la.tiles.kernels.gpu.sources import module
from hetero_la.tiles.kernels.gpu_libraries.norms import by_columns, estimate_norm1, norm1
from hetero_la.tiles.kernels.spec import Triangular
from hetero_la.tiles.storage.pivots import permutation

#: Order of the diagonal blocks, and that of the smaller ones from whose inverses theirs are made.
_BLOCK, _LEAF = 1024, 256
#: Order of the latter for LU with a single diagonal block of several leaves: the GPU takes 0.2 ms
#: less, and the host, which waits for LU anyhow, no more than 0.1 ms more.
_SMALL_LEAF = 64
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
        Order of the diagonal blocks: 256 times a power of two.  The error of a solve grows with
        their condition numbers, and so with the order.
    """

    def __init__(
        self, factors: Array, form: str, piv: Array | None = None, *, order: int = _BLOCK
    ) -> None:
        self._n, self._factors, self._steps = len(factors), block(factors), _FORMS[form]
        self._nb = min(order, self._n)
        self._leaf = _SMALL_LEAF if form == "lu" and _LEAF < self._n <= order else _LEAF
        self._kept = factors  # `_factors` is but its address
        self._rows = None if piv is None else _row_order(piv, self._n)
        triangles = sorted({triangle for triangle, _ in self._steps})
        self._inverses = {triangle: self._identities() for triangle in triangles}
        leaves = self._addresses_of_leaves()
        for number, triangle in enumerate(triangles, 1):
            unit = form == "lu" and triangle == "l"
            self._invert_leaves(triangle, unit, leaves, number)
            self._join_leaves(triangle)

    def _identities(self) -> Array:
        """Return identity matrices, one for each diagonal block, side by side."""
        import cupy

        nb = self._nb
        blocks = cupy.zeros((-(-self._n // nb), nb * nb), self._factors.dtype)
        blocks[:, :: nb + 1] = 1
        return blocks.reshape(-1, nb).T

    def _addresses_of_leaves(self) -> Array:
        """Return where the whole leaves of the diagonal lie: of the factors, and of inverses."""
        import cupy

        starts = np.arange(self._n // self._leaf) * self._leaf
        size = self._factors.dtype.itemsize
        addresses = [self._factors.pointer + size * starts * (self._factors.ld + 1)]
        for W in map(block, self._inverses.values()):
            addresses.append(W.pointer + size * (starts % self._nb + starts * W.ld))
        found = cupy.empty((len(addresses), len(starts)), np.uint64)
        if len(starts):
            found.set(np.array(addresses, np.uint64))  # a fraction of the time of `asarray`
        return found

    def _invert_leaves(self, triangle: str, unit: bool, leaves: Array, number: int) -> None:
        """Overwrite the identities with the inverses of the leaves."""
        n, leaf, T, W = self._n, self._leaf, self._factors, block(self._inverses[triangle])
        count, rest = divmod(n, leaf)
        if count:
            pointers = leaves[0], leaves[number]
            trsm_batch(cublas_handle(), triangle, unit, T, W, pointers, leaf, count)
        if rest:
            at, form = count * leaf, Triangular(triangle, "n", unit)
            trsm(cublas_handle(), form, T.at(at, at), W.at(at % self._nb, at), rest, rest)

    def _join_leaves(self, triangle: str) -> None:
        """Complete the inverses of the diagonal blocks: pairs of leaves, pairs of pairs, ..."""
        whole, last = divmod(self._n, self._nb)
        size = self._leaf
        while size < self._nb:
            if whole == 1:  # pairs in one block are joined at once
                self._join_pairs(triangle, 0, size, self._nb)
            else:  # and so are those at the same place in several blocks
                for place in range(0, self._nb, 2 * size):
                    self._join(triangle, place, size, size, whole, self._nb)
            if last > size:
                self._join_pairs(triangle, whole * self._nb, size, last)
            size *= 2

    def _join_pairs(self, triangle: str, start: int, size: int, order: int) -> None:
        """Join the pairs of the block of this order that begins at a row."""
        pairs, rest = divmod(order, 2 * size)
        self._join(triangle, start, size, size, pairs, 2 * size)
        if rest > size:
            self._join(triangle, start + 2 * size * pairs, size, rest - size, 1, 0)

    def _join(self, triangle: str, start: int, size: int, rows: int, count: int, step: int) -> None:
        """Complete the inverses of pairs of diagonal blocks of orders `size` and `rows`.

        W21 = -W22 L21 W11 in a lower triangle, W12 = -W11 U12 W22 in an upper one.  The first pair
        begins at row `start`, and each of `count` pairs `step` rows below the one before.
        """
        import cupy

        if not count:
            return
        T, W = self._factors.at(start, start), block(self._inverses[triangle])
        # Inverses of blocks lie side by side, those within a block below each other.
        apart = step * (W.ld if step == self._nb else W.ld + 1)
        first = W.at(start % self._nb, start)
        second = first.at(size, size)
        if triangle == "l":
            m, n, across, target, left, right = rows, size, (size, 0), (size, 0), second, first
        else:
            m, n, across, target, left, right = size, rows, (0, size), (0, size), first, second
        product = cupy.empty((count, m * n), T.dtype)
        P, inner = Block(product.data.ptr, m, T.dtype), step * (T.ld + 1)
        shape, steps = (m, n, n), (inner, apart, m * n)
        gemm_batch(cublas_handle(), 1, T.at(*across), right, 0, P, shape, steps, count)
        shape, steps = (m, n, m), (apart, m * n, apart)
        gemm_batch(cublas_handle(), -1, left, P, 0, first.at(*target), shape, steps, count)

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
        n, nb, T, W = self._n, self._nb, self._factors, block(self._inverses[triangle])
        X, Y, handle = block(x), block(y), cublas_handle()
        down = (triangle == "l") != adjoint
        starts = range(0, n, nb)
        form = "cn" if adjoint else "nn"
        for start in starts if down else reversed(starts):
            stop = min(start + nb, n)
            size, columns = stop - start, stop if triangular else x.shape[1]
            shape = (size, columns, size)
            gemm(handle, 1, W.at(0, start), X.at(start, 0), 0, Y.at(start, 0), shape, form)
            rest, count = (stop, n - stop) if down else (0, start)
            if count:
                across = T.at(start, rest) if adjoint else T.at(rest, start)
                shape = (count, columns, size)
                gemm(handle, -1, across, Y.at(start, 0), 1, X.at(rest, 0), shape, form)

    def inverse_of_tile(self, triangle: str, start: int, stop: int) -> Array | None:
        """Return the inverse of a tile on the diagonal, if one diagonal block has all of it."""
        at = start % self._nb
        if stop - start > self._nb - at:
            return None
        return self._inverses[triangle][at : at + stop - start, start:stop]

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
        parts = [self._inverses[name].T.conj() if turned else self._inverses[name]
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
    kernel = module(PERMUTE).get_function("row_order")
    kernel((1,), (256,), (piv, n, rows), shared_mem=8 * n)
    return rows


def _take_rows(rows: Array, b: Array) -> Array:
    """Return rows of B in another order, column-major."""
    import cupy

    b = by_columns(b)
    x, columns = cupy.empty(b.shape, b.dtype, order="F"), b.shape[1]
    kernel, B, X = (
        module(source("columns", b.dtype)).get_function("gather_rows"),
        block(b),
        block(x),
    )
    for first in range(0, columns, GATHER_COLUMNS):
        count = min(columns - first, GATHER_COLUMNS)
        grid, pointers = (
            gather_grid(len(rows), count),
            (B.at(0, first).pointer, X.at(0, first).pointer),
        )
        kernel(grid, (256,), (rows, pointers[0], B.ld, pointers[1], len(rows), count))
    return x
