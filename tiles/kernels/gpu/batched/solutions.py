"""Solutions with stacks on a GPU, and with which matrices they are not certain."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import (
    as_column_major,
    kernel,
    lines,
    stacks_source,
    threads_of,
)
from hetero_la.tiles.kernels.gpu.batched.factors import (
    Factored,
    FactorKind,
    Refinement,
    factor_cholesky,
    factor_lu,
    permutations,
)

# The enumeration of stacks.cu.
_ALONG, _ACROSS, _FROM_BELOW, _FROM_ABOVE = range(4)
_THREADS = 256  # of a block that adds up moduli
#: Solutions, and on the host for each matrix whether they are uncertain.
Checked = tuple[Array, np.ndarray]
#: Two solves estimate a reciprocal condition number that is too large by a small factor at most;
#: from so many eps on it is sure not to be below eps.
_SURE = 10


def solve(a: Array, b: Array, enough: float) -> Checked:
    """Solve with general matrices, and refine where backward errors are above `enough`.

    Also returns for each matrix whether X is not certain: whether the matrix may be singular to
    working precision, or anything is not finite.
    """
    a, norms = _norms(a, _ALONG, _ACROSS)
    found = factor_lu(a)
    verdict = _ill_conditioned(found, norms)
    x = found.solve(b, FactorKind.LU, refined=Refinement(a, norms, enough), verdict=verdict)
    return x, verdict.get() != 0


def solve_positive(a: Array, b: Array) -> Checked:
    """Solve with Hermitian positive definite matrices, of which the lower triangles are given.

    X is uncertain where that of `solve` is, and where a matrix is not definite.
    """
    a, norms = _norms(a, _FROM_BELOW, _FROM_ABOVE)
    found = factor_cholesky(a)
    verdict = _ill_conditioned(found, norms)
    x = found.solve(b, FactorKind.CHOLESKY, verdict=verdict)
    return x, verdict.get() != 0


def inverse(a: Array) -> Checked:
    """Invert general matrices, as `solve` solves with them."""
    import cupy

    a, norms = _norms(a, _ALONG, _ACROSS)
    found = factor_lu(a)
    x, verdict = found.solve(None, FactorKind.LU), cupy.empty(len(a), np.int32)
    kernel("judge_inverse", stacks_source("stacks", a.dtype))(
        (len(a),), (_THREADS,),
        (
            x.data.ptr, a.shape[1], norms.data.ptr, found.info.data.ptr,
            float(np.finfo(a.dtype).eps), verdict.data.ptr,
        ),
    )  # fmt: skip
    return x, verdict.get() != 0


def determinants(a: Array) -> tuple[Array, Array, Array, np.ndarray]:
    """Return signs, logarithms and determinants of matrices.

    The latter are in double precision.  Also returns, on the host, for each matrix whether it or
    its factor U is not finite.
    """
    import cupy

    (count, n, _), dtype = a.shape, a.dtype
    found, signs = factor_lu(a), cupy.empty(count, dtype)
    logarithms = cupy.empty(count, dtype.char.lower())
    dets = cupy.empty(count, np.complex128 if dtype.kind == "c" else np.float64)
    kernel("determinants", stacks_source("stacks", dtype))(
        (count,), (32,),
        (
            found.factors.data.ptr, found.ipiv.data.ptr, n, signs.data.ptr, logarithms.data.ptr,
            dets.data.ptr, found.info.data.ptr,
        ),
    )  # fmt: skip
    return signs, logarithms, dets, found.info.get() < 0


def lu_solve(lu: Array, piv: Array, b: Array, trans: int) -> Array:
    """Solve from factors and 0-based interchanges, as LAPACK's ``xGETRS``."""
    perm, _ = permutations(piv, lu.shape[1])
    kind = FactorKind(trans)
    return Factored(as_column_major(lu), None, kind, perm=perm).solve(b, kind)


def cho_solve(c: Array, b: Array) -> Array:
    """Solve from factors in the lower triangles, as LAPACK's ``xPOTRS``."""
    return Factored(as_column_major(c), None, FactorKind.CHOLESKY).solve(b, FactorKind.CHOLESKY)


def _norms(a: Array, by_columns: int, by_rows: int) -> tuple[Array, Array]:
    """Return a stack or a row-major copy, and its 1-norms in double precision."""
    import cupy

    a, given, is_by_columns = lines(a)
    norms = cupy.empty(len(a), np.float64)
    kernel("norms", stacks_source("stacks", a.dtype))(
        (len(a),), (_THREADS,),
        (
            given.block.pointer, given.step, given.block.ld, a.shape[1],
            by_columns if is_by_columns else by_rows, norms.data.ptr,
        ),
    )  # fmt: skip
    return a, norms


def _ill_conditioned(found: Factored, norms: Array) -> Any:
    """Return for each matrix 1 if it is not factored, or nearly singular, and else 0."""
    import cupy

    (count, n, _), eps = found.factors.shape, float(np.finfo(found.factors.dtype).eps)
    verdict = cupy.empty(count, np.int32)
    kernel("condition", stacks_source("stacks", found.factors.dtype))(
        (count,), (threads_of(n),),
        (
            found.factors.data.ptr, int(found.kind), n, norms.data.ptr, found.info.data.ptr,
            eps, _SURE * eps, verdict.data.ptr,
        ),
    )  # fmt: skip
    return verdict
