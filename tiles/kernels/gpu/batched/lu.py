"""LU of stacks on a GPU by cuBLAS, and what follows from the factors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import (
    addresses,
    as_column_major,
    column_major,
    column_major_copy,
    launch,
)
from hetero_la.tiles.kernels.gpu.common import ceil_div
from hetero_la.tiles.kernels.gpu.queue import cublas_function, cublas_handle


class Factored(NamedTuple):
    """A stack of packed LU factors, as cuBLAS takes them.

    Attributes
    ----------
    factors : array, shape (count, n, n)
        L and U; column-major.
    where : array, shape (count,)
        Their addresses.
    ipiv : array of int32, shape (count, n), or None
        Row interchanges, 1-based; None if there are none.
    info : array of int32, shape (count,)
        LAPACK's.
    """

    factors: Array
    where: Array
    ipiv: Any
    info: Array

    def solve(self, x: Array, trans: int = 0) -> None:
        """Overwrite columns by solutions, with A, A^T (`trans` = 1) or A^H (`trans` = 2)."""
        count, n, nrhs = x.shape
        operation = trans if x.dtype.kind == "c" else min(trans, 1)
        fault, columns = np.zeros(1, np.int32), addresses(x)
        cublas_function("getrsBatched", x.dtype)(
            cublas_handle(), operation, n, nrhs, self.where.data.ptr, n,
            0 if self.ipiv is None else self.ipiv.data.ptr, columns.data.ptr, n,
            fault.ctypes.data, count,
        )  # fmt: skip


def factor(a: Array) -> Factored:
    """Overwrite the matrices of a column-major stack with their factors."""
    import cupy

    count, n, _ = a.shape
    where = addresses(a)
    ipiv, info = cupy.empty((count, n), np.int32), cupy.empty(count, np.int32)
    cublas_function("getrfBatched", a.dtype)(
        cublas_handle(), n, where.data.ptr, n, ipiv.data.ptr, info.data.ptr, count
    )
    return Factored(a, where, ipiv, info)


def lu(a: Array, b: Array) -> dict[str, Array]:
    """Overwrite each matrix with L and U."""
    found = factor(a)
    return {"ipiv": found.ipiv - 1, "info": found.info}


def lu_solve(lu: Array, piv: Array, b: Array, trans: int) -> Array:
    """Solve from factors and 0-based interchanges, as LAPACK's ``xGETRS``."""
    import cupy

    factors, x = as_column_major(lu), column_major_copy(b)
    ipiv = cupy.ascontiguousarray(piv.astype(np.int32) + 1)
    Factored(factors, addresses(factors), ipiv, ipiv).solve(x, trans)
    return x


def invert(a: Array) -> tuple[Array, Array]:
    """Return the inverses, and LAPACK's info of the factors."""
    count, n, _ = a.shape
    found, x = factor(column_major_copy(a)), column_major(count, n, n, a.dtype)
    info, columns = found.info.copy(), addresses(x)
    cublas_function("getriBatched", a.dtype)(
        cublas_handle(), n, found.where.data.ptr, n, found.ipiv.data.ptr,
        columns.data.ptr, n, found.info.data.ptr, count,
    )  # fmt: skip
    return x, info | found.info


def inverse_orders(piv: Any, m: int) -> Array:
    """Return for each matrix the row order r with ``A = (L @ U)[r]``, from 0-based swaps."""
    import cupy

    count, swaps = piv.shape
    perm, orders = cupy.empty((count, m), np.int32), cupy.empty((count, m), np.int64)
    ipiv = cupy.ascontiguousarray(piv, np.int32)
    launch(
        "inverse_orders", np.dtype(np.float64), ceil_div(count, 256),
        ipiv.data.ptr, swaps, m, count, perm.data.ptr, orders.data.ptr,
    )  # fmt: skip
    return orders
