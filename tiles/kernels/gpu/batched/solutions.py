"""Solutions with stacks on a GPU, and with which matrices they are not certain."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import (
    Batch,
    batch,
    column_major,
    column_major_copy,
    gemm,
    launch,
    lines,
)
from hetero_la.tiles.kernels.gpu.batched.cholesky import as_lu, cholesky
from hetero_la.tiles.kernels.gpu.batched.lu import Factored, factor, invert

# The enumerations of stacks.cu.
_ALONG, _ACROSS, _FROM_BELOW, _FROM_ABOVE = range(4)
_NOT_SOLVED, _NOT_REFINED = 1, 2
#: Solutions, and on the host for each matrix whether they are uncertain.
Checked = tuple[Array, np.ndarray]
#: Most steps of refinement.
_STEPS = 3
#: A reciprocal condition number is estimated by two solves, which is too large by a small factor at
#: most; from so many eps on it is sure not to be below eps.
_SURE = 10


def norms1(given: Batch, order: int, kind: int) -> Array:
    """Enqueue the 1-norms of a stack, in double precision."""
    import cupy

    norms = cupy.empty(given.matrices, np.float64)
    launch(
        "norms", given.block.dtype, given.matrices,
        given.block.pointer, given.step, given.block.ld, order, kind, norms.data.ptr,
    )  # fmt: skip
    return norms


def solve(a: Array, b: Array, enough: float) -> Checked:
    """Solve with general matrices, and refine until backward errors are at most `enough`.

    Also returns for each matrix whether X is not certain: whether the matrix may be singular to
    working precision, or anything is not finite.
    """
    a, given, by_columns = lines(a)
    norms = norms1(given, a.shape[1], _ALONG if by_columns else _ACROSS)
    found = factor(column_major_copy(a))
    return _checked(found, norms, b, (given, "n" if by_columns else "t"), enough)


def solve_positive(a: Array, b: Array) -> Checked:
    """Solve with Hermitian positive definite matrices, of which the lower triangles are given.

    X is uncertain where that of `solve` is, and where a matrix is not definite.
    """
    a, given, by_columns = lines(a)
    norms = norms1(given, a.shape[1], _FROM_BELOW if by_columns else _FROM_ABOVE)
    factors = column_major_copy(a)
    info = cholesky(factors, b)["info"]
    return _checked(as_lu(factors, info), norms, b, None, 0.0)


def inverse(a: Array) -> Checked:
    """Invert general matrices, as `solve` solves with them."""
    a, given, by_columns = lines(a)
    norms = norms1(given, a.shape[1], _ALONG if by_columns else _ACROSS)
    x, info = invert(a)
    conditions = norms * norms1(batch(x), a.shape[1], _ALONG) * float(np.finfo(a.dtype).eps)
    return x, ~((conditions <= 1) & (info == 0)).get()


def _checked(
    found: Factored, norms: Array, b: Array, matrix: tuple[Batch, str] | None, enough: float
) -> Checked:
    """Solve, and look at conditions and, if the matrix is given, at backward errors."""
    import cupy

    count, n, nrhs = b.shape
    x, z = column_major(count, n, nrhs + 1, b.dtype), column_major(count, n, 1, b.dtype)
    solutions = x[:, :, :nrhs]
    strides = (stride // b.itemsize for stride in b.strides)
    launch("right_hand_sides", b.dtype, count, b.data.ptr, *strides, x.data.ptr, n, nrhs)
    found.solve(x)
    launch("phases", b.dtype, count, x.data.ptr, n, nrhs, z.data.ptr)
    found.solve(z, trans=2)
    least = _SURE * float(np.finfo(b.dtype).eps)
    for step in range(_STEPS + 1):
        r = _residuals(*matrix, solutions, b) if matrix else None
        verdict = cupy.zeros(count, np.int32)
        launch(
            "judge", b.dtype, count, x.data.ptr, 0 if r is None else r.data.ptr, z.data.ptr,
            norms.data.ptr, found.info.data.ptr, n, nrhs, enough, least, verdict.data.ptr,
        )  # fmt: skip
        verdicts = verdict.get()  # waits
        uncertain = verdicts & _NOT_SOLVED != 0
        if step == _STEPS or not (verdicts[~uncertain] & _NOT_REFINED).any():
            break
        found.solve(r)
        solutions += r
    return solutions, uncertain


def _residuals(given: Batch, trans: str, x: Array, b: Array) -> Any:
    """Return B - A X, A the matrices that are given or their transposes."""
    count, n, nrhs = b.shape
    r = column_major(count, n, nrhs, b.dtype)
    r[...] = b
    gemm(-1, given, batch(x)._replace(step=n * (nrhs + 1)), 1, batch(r), (n, nrhs, n), trans + "n")
    return r
