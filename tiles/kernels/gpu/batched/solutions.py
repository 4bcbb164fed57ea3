"""Solutions with stacks on a GPU, and with which matrices they are not certain."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import as_column_major
from hetero_la.tiles.kernels.gpu.batched.factors import (
    Estimation,
    Factored,
    FactorKind,
    Refinement,
    factor_cholesky,
    factor_lu,
    parts_of,
    permutations,
)
from hetero_la.tiles.kernels.gpu.common import source
from hetero_la.tiles.kernels.gpu.sources import kernel

#: Solutions, and on the host for each matrix whether they are uncertain.
Checked = tuple[Array, np.ndarray]
#: Two solves estimate a reciprocal condition number that is too large by a small factor at most;
#: from so many eps on it is sure not to be below eps.
_SURE = 10
#: One solve is enough in double precision for an estimate of at least sqrt(eps): for a singular
#: matrix it is that large only if a null vector is orthogonal to the vector solved for, to 1e-8.
#: In single precision that would be 1e-4, which occurs.
_ONCE = float(np.finfo(np.float64).eps) ** 0.5


class _Report:
    """What is found of the matrices on the GPU, in one array, which the host reads at once.

    Attributes
    ----------
    norms, rconds, sizes : int
        Addresses: of 1-norms, infinite for a matrix that is not factored; of estimates of
        reciprocal condition numbers; of norms of X, for each part of its columns.
    """

    def __init__(self, count: int, nrhs: int) -> None:
        import cupy

        self._array = cupy.empty((2 + parts_of(nrhs), count), np.float64)
        first, row = self._array.data.ptr, 8 * count
        self.norms, self.rconds, self.sizes = first, first + row, first + 2 * row

    def estimation(self, dtype: np.dtype) -> Estimation:
        """Return what estimates condition numbers."""
        once = _ONCE if dtype.char in "dD" else np.inf
        return Estimation(self.norms, self.rconds, once, _SURE * float(np.finfo(dtype).eps))

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Wait; return norms, reciprocal condition numbers and norms of X."""
        found = self._array.get()
        return found[0], found[1], found[2] if len(found) == 3 else found[2:].max(axis=0)

    def doubts(self, dtype: np.dtype) -> np.ndarray:
        """Wait; return which matrices are nearly singular, or have an X that is not finite."""
        _, rconds, sizes = self.read()
        return ~((rconds >= np.finfo(dtype).eps) & (sizes < np.inf))


def solve(a: Array, b: Array, enough: float) -> Checked:
    """Solve with general matrices, and refine where backward errors are above `enough`.

    Also returns for each matrix whether X is not certain: whether the matrix may be singular to
    working precision, or anything is not finite.
    """
    report = _Report(len(a), b.shape[2])
    found = factor_lu(a, norms=report.norms)
    x = found.solve(
        b, FactorKind.LU, sizes=report.sizes, refined=Refinement(a, report.norms, enough),
        estimation=report.estimation(a.dtype),
    )  # fmt: skip
    return x, report.doubts(a.dtype)


def solve_positive(a: Array, b: Array) -> Checked:
    """Solve with Hermitian positive definite matrices, of which the lower triangles are given.

    X is uncertain where that of `solve` is, and where a matrix is not definite.
    """
    report = _Report(len(a), b.shape[2])
    found = factor_cholesky(a, norms=report.norms)
    x = found.solve(
        b, FactorKind.CHOLESKY, sizes=report.sizes, estimation=report.estimation(a.dtype)
    )
    return x, report.doubts(a.dtype)


def inverse(a: Array) -> Checked:
    """Invert general matrices, as `solve` solves with them."""
    report = _Report(len(a), a.shape[1])
    x = factor_lu(a, norms=report.norms).solve(None, FactorKind.LU, sizes=report.sizes)
    norms, _, sizes = report.read()
    with np.errstate(all="ignore"):  # what overflows is too large
        return x, ~(norms * sizes * np.finfo(a.dtype).eps <= 1)


def determinants(a: Array) -> tuple[Array, Array, Array, np.ndarray]:
    """Return signs, logarithms and determinants of matrices.

    The latter are in double precision.  Also returns, on the host, for each matrix whether it or
    its factor U is not finite.
    """
    import cupy

    (count, n, _), dtype = a.shape, a.dtype
    ipiv, info = cupy.empty((count, n), np.int32), cupy.empty(count, np.int32)
    factors = factor_lu(a, ipiv=ipiv.data.ptr, info=info.data.ptr).factors
    signs = cupy.empty(count, dtype)
    logarithms = cupy.empty(count, dtype.char.lower())
    dets = cupy.empty(count, np.complex128 if dtype.kind == "c" else np.float64)
    kernel("determinants", source("stacks", dtype))(
        (count,), (32,),
        (
            factors.data.ptr, ipiv.data.ptr, n, signs.data.ptr, logarithms.data.ptr,
            dets.data.ptr, info.data.ptr,
        ),
    )  # fmt: skip
    return signs, logarithms, dets, info.get() < 0


def lu_solve(lu: Array, piv: Array, b: Array, trans: int) -> Array:
    """Solve from factors and 0-based interchanges, as LAPACK's ``xGETRS``."""
    perm, _ = permutations(piv, lu.shape[1])
    return Factored(as_column_major(lu), perm).solve(b, FactorKind(trans))


def cho_solve(c: Array, b: Array) -> Array:
    """Solve from factors in the lower triangles, as LAPACK's ``xPOTRS``."""
    return Factored(as_column_major(c)).solve(b, FactorKind.CHOLESKY)
