"""LU and Cholesky of stacks on a GPU, by kernels with a block for each matrix, and solves."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import (
    column_major,
    stacks_source,
    threads_of,
)
from hetero_la.tiles.kernels.gpu.common import ceil_div
from hetero_la.tiles.kernels.gpu.queue import element_strides
from hetero_la.tiles.kernels.gpu.sources import kernel

_WIDTHS = (1, 4, 16)  # columns of right-hand sides that a block solves for
_NOTHING = (0,) * 4  # in place of an array's address and strides


class FactorKind(enum.IntEnum):
    """What is solved with, numbered as in rows.cuh."""

    LU, TRANSPOSED, ADJOINT, CHOLESKY = range(4)


class Refinement(NamedTuple):
    """Matrices, the address of their 1-norms, and the backward error above which X is refined."""

    a: Array
    norms: int
    enough: float


class Factored(NamedTuple):
    """A stack of packed factors.

    Attributes
    ----------
    factors : array, shape (count, n, n)
        L and U, or L with zeros above it; column-major.
    perm : array of int32, shape (count, n), or None
        The row of A that is in each row of L U; None if none was interchanged.
    """

    factors: Array
    perm: Any = None

    def solve(
        self, b: Array | None, kind: FactorKind, *, sizes: int = 0,
        refined: Refinement | None = None,
    ) -> Array:  # fmt: skip
        """Return solutions, of the identity without right-hand sides.

        At the address `sizes`, an array of shape (`parts_of` the columns, count) gets the largest
        1-norm of a column of X in each part, which is not finite if one of its entries is not.
        """
        count, n, _ = self.factors.shape
        nrhs, dtype = n if b is None else b.shape[2], self.factors.dtype
        x = column_major(count, n, nrhs, dtype)
        rhs = _NOTHING if b is None else (b.data.ptr, *element_strides(b))
        matrix, norms, enough = _NOTHING, 0, 0.0
        if refined:
            matrix = (refined.a.data.ptr, *element_strides(refined.a))
            norms, enough = refined.norms, refined.enough
        source = stacks_source("stack_solutions", dtype, f"WIDTH={_width(nrhs)}")
        kernel("solve", source)(
            (count * parts_of(nrhs),), (threads_of(n),),
            (
                self.factors.data.ptr, int(kind), n, 0 if self.perm is None else self.perm.data.ptr,
                *rhs, nrhs, x.data.ptr, *matrix, norms, enough, sizes,
            ),
        )  # fmt: skip
        return x


def _width(nrhs: int) -> int:
    """Return how many columns a block solves for."""
    return next((width for width in _WIDTHS if width >= nrhs), _WIDTHS[-1])


def parts_of(nrhs: int) -> int:
    """Return how many blocks share the columns of one matrix."""
    return ceil_div(nrhs, _width(nrhs))


def factor_lu(a: Array, *, norms: int = 0, ipiv: int = 0, info: int = 0) -> Factored:
    """Factor with partial pivoting, from any memory order.

    At addresses that are given, `norms` gets the 1-norms of A, infinite for a matrix that is
    singular or not finite, `ipiv` the 0-based interchanges (int32, shape (count, n)), and `info`
    LAPACK's (int32), or -1 for a matrix that is not finite.
    """
    import cupy

    count, n, _ = a.shape
    factors, perm = column_major(count, n, n, a.dtype), cupy.empty((count, n), np.int32)
    kernel("lu", stacks_source("stack_factors", a.dtype))(
        (count,), (threads_of(n),),
        (
            a.data.ptr, *element_strides(a), n, factors.data.ptr, ipiv, perm.data.ptr, info, norms,
        ),
    )  # fmt: skip
    return Factored(factors, perm)


def factor_cholesky(a: Array, *, norms: int = 0, info: int = 0) -> Factored:
    """Factor Hermitian positive definite matrices, of which the lower triangles are given.

    `norms` and `info` are those of `factor_lu`.
    """
    count, n, _ = a.shape
    factors = column_major(count, n, n, a.dtype)
    kernel("cholesky", stacks_source("stack_factors", a.dtype))(
        (count,), (threads_of(n),),
        (a.data.ptr, *element_strides(a), n, factors.data.ptr, info, norms),
    )  # fmt: skip
    return Factored(factors)


def lu(a: Array, columns: int) -> tuple[Array, Array, dict[str, Array]]:
    """Return packed factors, no columns, and interchanges and info."""
    import cupy

    ipiv, info = cupy.empty(a.shape[:2], np.int32), cupy.empty(len(a), np.int32)
    found = factor_lu(a, ipiv=ipiv.data.ptr, info=info.data.ptr)
    return found.factors, a[:, :, :0], {"ipiv": ipiv, "info": info}


def cholesky(a: Array, columns: int) -> tuple[Array, Array, dict[str, Array]]:
    """Return factors L with zeros above them, no columns, and info."""
    import cupy

    info = cupy.empty(len(a), np.int32)
    found = factor_cholesky(a, info=info.data.ptr)
    return found.factors, a[:, :, :0], {"info": info}


def permutations(piv: Array, m: int) -> tuple[Array, Array]:
    """Return for each matrix the row orders p and r with ``A[p] = L @ U`` and ``A = (L @ U)[r]``.

    `piv` holds 0-based interchanges; p is of int32, r of int64.
    """
    import cupy

    count, swaps = piv.shape
    perm, orders = cupy.empty((count, m), np.int32), cupy.empty((count, m), np.int64)
    ipiv = cupy.ascontiguousarray(piv, np.int32)
    kernel("permutations", stacks_source("stacks", np.dtype(np.float64)))(
        (ceil_div(count, 256),), (256,),
        (ipiv.data.ptr, swaps, m, count, perm.data.ptr, orders.data.ptr),
    )  # fmt: skip
    return perm, orders
