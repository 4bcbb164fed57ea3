"""Solves with triangular factors on a GPU, by the inverses of their diagonal blocks.

For a few right-hand sides cuBLAS's trsm takes about a microsecond a row, one row after
the other.  With the inverses of the diagonal blocks, a block of rows takes two products.
"""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.queue import block, gemm, trsm_batch
from hetero_la.tiles.kernels.gpu_libraries.norms import (
    column_sums,
    largest_modulus,
    signs,
    start_vectors,
)

#: Order of the diagonal blocks, and that of the factors from which they are twice as large: there
#: the products are long enough.
_BLOCK, _LARGE = 256, 8192


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
    """

    def __init__(self, factors: Array, form: str) -> None:
        self._n, self._factors, self._steps = len(factors), block(factors), _FORMS[form]
        self._nb = _BLOCK if self._n < _LARGE else 2 * _BLOCK
        self._kept = factors  # `_factors` is but its address
        self._inverses = {
            triangle: self._invert(triangle, unit=form == "lu" and triangle == "l")
            for triangle in sorted({triangle for triangle, _ in self._steps})
        }

    def _invert(self, triangle: str, *, unit: bool) -> Array:
        """Return the inverses of the diagonal blocks of a triangle, side by side."""
        import cupy

        n, nb, T = self._n, self._nb, self._factors
        inverses = cupy.zeros((-(-n // nb), nb * nb), T.dtype)
        inverses[:, :: nb + 1] = 1
        found = inverses.reshape(-1, nb).T
        W, whole, rest = block(found), n // nb, n % nb
        for start, order, count in ((0, nb, whole), (whole * nb, rest, 1)):
            if order and count:
                places = range(start, start + order * count, order)
                both = [(T.at(i, i).pointer, W.at(0, i).pointer) for i in places]
                addresses = cupy.asarray(np.array(both, np.uint64).T.copy())
                trsm_batch(_handle(), triangle, unit, T, W, addresses, order, count)
        return found

    def solve(self, b: Array, *, adjoint: bool = False) -> Array:
        """Solve with the product of the factors, or with its adjoint, for B of shape (n, p)."""
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

    def inverse(self, rows: Array) -> Array:
        """Return the inverse of P^T L U, P the permutation `rows`; these factors are L and U.

        Row block i of L^-1 has zeros right of its diagonal, which are left out.
        """
        import cupy

        n, dtype = self._n, self._factors.dtype
        x, y = (cupy.zeros((n, n), dtype, order="F") for _ in range(2))
        x.T.reshape(-1)[:: n + 1] = 1
        self._substitute("l", x, y, adjoint=False, triangular=True)
        self._substitute("u", y, x, adjoint=False)
        y[:, rows] = x
        return y

    def inverse_norm(self) -> Array:
        """Estimate the 1-norm of the inverse of the product, as an array of no dimension.

        One step of the block estimator [1]_ with two columns: 1 / n in all entries, and LAPACK's
        entries of alternating signs.  It takes two solves, and no wait.  Row interchanges do not
        change the norm.

        References
        ----------
        .. [1] N. J. Higham and F. Tisseur, A block algorithm for matrix 1-norm estimation, SIAM J.
           Matrix Anal. Appl. 21, 2000.
        """
        import cupy

        n, x = self._n, cupy.empty((self._n, 2), self._factors.dtype, order="F")
        start_vectors()(n, cupy.arange(n)[:, None], cupy.arange(2), x)
        y = self.solve(x)
        z = self.solve(signs(x.dtype.kind == "f")(y), adjoint=True)
        return cupy.maximum(column_sums(y).max(), largest_modulus(z))


def _handle() -> int:
    """Return CuPy's handle of cuBLAS, which uses the current stream."""
    from cupy.cuda import device

    return int(device.get_cublas_handle())
