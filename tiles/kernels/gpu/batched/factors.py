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
from hetero_la.tiles.kernels.gpu.common import ceil_div, source
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


class Estimation(NamedTuple):
    """Addresses of 1-norms and for reciprocal condition numbers, and what is certain of these.

    Estimates that are at least `once` by one solve, or `twice` by two, are not improved.
    """

    norms: int
    rconds: int
    once: float
    twice: float


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
        refined: Refinement | None = None, estimation: Estimation | None = None,
    ) -> Array:  # fmt: skip
        """Return solutions; without right-hand sides, the inverse, but not of a transpose.

        At the address `sizes`, an array of shape (`parts_of` the columns, count) gets the largest
        1-norm of a column of X in each part, which is not finite if one of its entries is not.
        Condition numbers are estimated at the same time.
        """
        (count, n, _), dtype = self.factors.shape, self.factors.dtype
        nrhs = n if b is None else b.shape[2]
        x, parts = column_major(count, n, nrhs, dtype), parts_of(nrhs)
        perm = 0 if self.perm is None else self.perm.data.ptr
        rhs = _NOTHING if b is None else (b.data.ptr, *element_strides(b))
        matrix, norms, enough, once, twice, rconds = _NOTHING, 0, 0.0, 0.0, 0.0, 0
        if refined:
            matrix = (refined.a.data.ptr, *element_strides(refined.a))
            norms, enough = refined.norms, refined.enough
        if estimation:
            norms, rconds, once, twice = estimation
        defines = f"WIDTH={_width(nrhs)}", f"PROBES={int(estimation is not None)}"
        kernel("solve", stacks_source("stack_solutions", dtype, n, *defines))(
            (count * parts,), (threads_of(n),),
            (
                self.factors.data.ptr, int(kind), n, perm, *rhs, nrhs, x.data.ptr, *matrix, norms,
                enough, sizes, count, once, twice, rconds,
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
    kernel("lu", stacks_source("stack_factors", a.dtype, n))(
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
    kernel("cholesky", stacks_source("stack_factors", a.dtype, n))(
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
    kernel("permutations", source("stacks", np.dtype(np.float64)))(
        (ceil_div(count, 256),), (256,),
        (ipiv.data.ptr, swaps, m, count, perm.data.ptr, orders.data.ptr),
    )  # fmt: skip
    return perm, orders
