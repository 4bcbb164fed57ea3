"""Cholesky of stacks on a GPU by cuSOLVER, and solves with the factors."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import addresses, column_major_copy, launch
from hetero_la.tiles.kernels.gpu.batched.lu import Factored
from hetero_la.tiles.kernels.spec import LETTER

_LOWER = 0  # cublasFillMode_t


def cholesky(a: Array, b: Array) -> dict[str, Array]:
    """Overwrite the lower triangle of each matrix with L."""
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusolver

    (count, n, _), where = a.shape, addresses(a)
    info = cupy.empty(count, np.int32)
    getattr(cusolver, LETTER[a.dtype.char] + "potrfBatched")(
        device.get_cusolver_handle(), _LOWER, n, where.data.ptr, n, info.data.ptr, count
    )
    return {"info": info}


def as_lu(factors: Array, info: Array) -> Factored:
    """Overwrite Cholesky factors L with LU factors of L L^H, for which nothing is interchanged.

    cuSOLVER's potrsBatched takes one right-hand side only, and CuPy 13 has no batched trsm.
    """
    launch("unit_factors", factors.dtype, len(factors), factors.data.ptr, factors.shape[1])
    return Factored(factors, addresses(factors), None, info)


def cho_solve(c: Array, b: Array) -> Array:
    """Solve from factors in the lower triangles, as LAPACK's ``xPOTRS``."""
    import cupy

    x = column_major_copy(b)
    as_lu(column_major_copy(c), cupy.zeros(len(c), np.int32)).solve(x)
    return x
