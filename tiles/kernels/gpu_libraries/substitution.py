"""Solves with triangular factors on a GPU, by the inverses of their diagonal blocks.

For a few right-hand sides cuBLAS's trsm takes about a microsecond a row, one row after
the other.  With the inverses of the diagonal blocks, a block of rows takes two products.
"""

from __future__ import annotations

import functools
import operator

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.common import PERMUTE
from hetero_la.tiles.kernels.gpu.queue import Block, block, gemm, gemm_batch, trsm, trsm_batch
from hetero_la.tiles.kernels.gpu.sources import module
from hetero_la.tiles.kernels.gpu_libraries.norms import (
    column_sums,
    largest_modulus,
    signs,
    start_vectors,
)
from hetero_la.tiles.kernels.spec import Triangular
from hetero_la.tiles.storage.pivots import permutation

#: Order of the diagonal blocks, and that of the smaller ones from whose inverses theirs are made.
_BLOCK, _LEAF = 1024, 256
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
    """

    def __init__(self, factors: Array, form: str, piv: Array | None = None) -> None:
        self._n, self._factors, self._steps = len(factors), block(factors), _FORMS[form]
        self._nb = min(_BLOCK, self._n)
        self._kept = factors  # `_factors` is but its address
        self._rows = None if piv is None else _row_order(piv, self._n)
        triangles = sorted({triangle for triangle, _ in self._steps})
        self._inverses = {triangle: self._identities() for triangle in triangles}
        leaves = self._addresses_of_leaves()
        for triangle, to in zip(triangles, leaves[1:], strict=True):
            unit = form == "lu" and triangle == "l"
            self._invert_leaves(triangle, unit, (leaves[0], to))
            self._join_leaves(triangle)

    def _identities(self) -> Array:
        """Return identity matrices, one for each diagonal block, side by side."""
        import cupy

        nb = self._nb
        blocks = cupy.zeros((-(-self._n // nb), nb * nb), self._factors.dtype)
        blocks[:, :: nb + 1] = 1
        return blocks.reshape(-1, nb).T

    def _addresses_of_leaves(self) -> Array:
        """Return where the leaves of the diagonal lie: those of the factors, and of inverses."""
        import cupy

        starts, size = np.arange(0, self._n, _LEAF), self._factors.dtype.itemsize
        found = [self._factors.pointer + size * starts * (self._factors.ld + 1)]
        for W in map(block, self._inverses.values()):
            found.append(W.pointer + size * (starts % self._nb + starts * W.ld))
        return cupy.asarray(np.array(found, np.uint64))

    def _invert_leaves(self, triangle: str, unit: bool, leaves: tuple[Array, Array]) -> None:
        """Overwrite the identities with the inverses of the leaves."""
        n, T, W = self._n, self._factors, block(self._inverses[triangle])
        count, rest = divmod(n, _LEAF)
        if count:
            trsm_batch(_handle(), triangle, unit, T, W, leaves, _LEAF, count)
        if rest:
            at, form = count * _LEAF, Triangular(triangle, "n", unit)
            trsm(_handle(), form, T.at(at, at), W.at(at % self._nb, at), rest, rest)

    def _join_leaves(self, triangle: str) -> None:
        """Complete the inverses of the diagonal blocks: pairs of leaves, pairs of pairs, ..."""
        n, nb, T, W = self._n, self._nb, self._factors, block(self._inverses[triangle])
        # Those at the same place in all blocks but the last are joined at once.
        whole, last = divmod(n, nb)
        for parts, start, order in ((whole, 0, nb), (1, whole * nb, last)):
            size = _LEAF
            while size < order and parts:
                for place in range(0, order - size, 2 * size):
                    rows = min(size, order - place - size)
                    at = T.at(start + place, start + place), W.at(place, start + place)
                    self._join(triangle, *at, size, rows, parts)
                size *= 2

    def _join(self, triangle: str, T: Block, W: Block, size: int, rows: int, count: int) -> None:
        """Complete the inverse of pairs of diagonal blocks of orders `size` and `rows`.

        W21 = -W22 L21 W11 in a lower triangle, W12 = -W11 U12 W22 in an upper one.
        """
        import cupy

        first, second = W, W.at(size, size)
        if triangle == "l":
            shape, across, target = (rows, size), T.at(size, 0), W.at(size, 0)
            left, right = second, first
        else:
            shape, across, target = (size, rows), T.at(0, size), W.at(0, size)
            left, right = first, second
        m, n = shape
        product = cupy.empty((count, m * n), T.dtype)
        P = Block(product.data.ptr, m, T.dtype)
        step, own = self._nb * (T.ld + 1), self._nb * W.ld
        gemm_batch(_handle(), 1, across, right, 0, P, (m, n, n), (step, own, m * n), count)
        gemm_batch(_handle(), -1, left, P, 0, target, (m, n, m), (own, m * n, own), count)

    def solve(self, b: Array, *, adjoint: bool = False) -> Array:
        """Return A^-1 B, or A^-H B, for B of shape (n, p)."""
        import cupy

        if self._rows is None:
            return self._solve(b, adjoint)
        if not adjoint:
            return self._solve(b[self._rows], adjoint)
        x = cupy.empty_like(b, order="F")
        x[self._rows] = self._solve(b, adjoint)
        return x

    def _solve(self, b: Array, adjoint: bool) -> Array:
        """Solve with the product of the factors, without the row interchanges."""
        import cupy

        x = cupy.array(b, self._factors.dtype, order="F")
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
        X, Y, handle = block(x), block(y), _handle()
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

    def inverse_norm(self) -> Array:
        """Estimate the 1-norm of the inverse of the product, as an array of no dimension.

        If a single block has all of it, the inverse is formed.
        One step of the block estimator [1]_ with two columns: 1 / n in all entries, and LAPACK's
        entries of alternating signs.  It takes two solves, and no wait.  Row interchanges do not
        change the norm.

        References
        ----------
        .. [1] N. J. Higham and F. Tisseur, A block algorithm for matrix 1-norm estimation, SIAM J.
           Matrix Anal. Appl. 21, 2000.
        """
        import cupy

        if self._n == self._nb:
            return column_sums(self._explicit_inverse()).max()
        x = cupy.empty((2, self._n), self._factors.dtype)
        start_vectors()(self._n, x)
        y = self._solve(x.T, adjoint=False)
        z = self._solve(signs(x.dtype.kind == "f")(y), adjoint=True)
        return cupy.maximum(column_sums(y).max(), largest_modulus(z))


def _row_order(piv: Array, n: int) -> Array:
    """Return the row order p with A[p] = L U, on the GPU."""
    import cupy

    if n > _MOST_IN_SHARED or not isinstance(piv, cupy.ndarray):
        return cupy.asarray(permutation(piv, n))
    rows = cupy.empty(n, np.int64)
    kernel = module(PERMUTE).get_function("row_order")
    kernel((1,), (256,), (piv, n, rows), shared_mem=8 * n)
    return rows


def _handle() -> int:
    """Return CuPy's handle of cuBLAS, which uses the current stream."""
    from cupy.cuda import device

    return int(device.get_cublas_handle())
