"""LU and Cholesky of stacks on a GPU, by kernels with a block for each matrix, and solves."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import (
    column_major,
    element_strides,
    kernel,
    stacks_source,
    threads_of,
)
from hetero_la.tiles.kernels.gpu.common import ceil_div

_WIDTHS = (1, 4, 16)  # columns of right-hand sides that a block solves for
_NOTHING = (0,) * 4  # in place of an array's address and strides


class FactorKind(enum.IntEnum):
    """What is solved with, numbered as in rows.cuh."""

    LU, TRANSPOSED, ADJOINT, CHOLESKY = range(4)


class Refinement(NamedTuple):
    """Matrices, their 1-norms, and the backward error above which X is refined."""

    a: Array
    norms: Array
    enough: float


class Factored(NamedTuple):
    """A stack of packed factors.

    Attributes
    ----------
    factors : array, shape (count, n, n)
        L and U, or L with zeros above it; column-major.
    info : array of int32, shape (count,)
        LAPACK's, and -1 for a matrix that is not finite.
    kind : FactorKind
        Which factors these are.
    ipiv, perm : array of int32, shape (count, n), or None
        Row interchanges, 0-based, and the row of A that is in each row of L U; None if there are
        none.
    """

    factors: Array
    info: Any
    kind: FactorKind
    ipiv: Any = None
    perm: Any = None

    def solve(
        self,
        b: Array | None,
        kind: FactorKind,
        *,
        refined: Refinement | None = None,
        verdict: Any = None,
    ) -> Array:
        """Return solutions, of the identity without right-hand sides.

        Adds 1 to the `verdict` (int32) of a matrix if its solutions are not finite.
        """
        count, n, _ = self.factors.shape
        nrhs, dtype = n if b is None else b.shape[2], self.factors.dtype
        x = column_major(count, n, nrhs, dtype)
        width = next((width for width in _WIDTHS if width >= nrhs), _WIDTHS[-1])
        rhs = _NOTHING if b is None else (b.data.ptr, *element_strides(b))
        matrix, norms, enough = _NOTHING, 0, 0.0
        if refined:
            matrix = (refined.a.data.ptr, *element_strides(refined.a))
            norms, enough = refined.norms.data.ptr, refined.enough
        source = stacks_source("stack_solutions", dtype, f"WIDTH={width}")
        kernel("solve", source)(
            (count * ceil_div(nrhs, width),), (threads_of(n),),
            (
                self.factors.data.ptr, int(kind), n, 0 if self.perm is None else self.perm.data.ptr,
                *rhs, nrhs, x.data.ptr, *matrix, norms, enough,
                0 if verdict is None else verdict.data.ptr,
            ),
        )  # fmt: skip
        return x


def factor_lu(a: Array) -> Factored:
    """Factor with partial pivoting, from any memory order."""
    import cupy

    count, n, _ = a.shape
    factors, info = column_major(count, n, n, a.dtype), cupy.empty(count, np.int32)
    ipiv, perm = cupy.empty((count, n), np.int32), cupy.empty((count, n), np.int32)
    kernel("lu", stacks_source("stack_factors", a.dtype))(
        (count,), (threads_of(n),),
        (
            a.data.ptr, *element_strides(a), n, factors.data.ptr, ipiv.data.ptr, perm.data.ptr,
            info.data.ptr,
        ),
    )  # fmt: skip
    return Factored(factors, info, FactorKind.LU, ipiv, perm)


def factor_cholesky(a: Array) -> Factored:
    """Factor Hermitian positive definite matrices, of which the lower triangles are given."""
    import cupy

    count, n, _ = a.shape
    factors, info = column_major(count, n, n, a.dtype), cupy.empty(count, np.int32)
    kernel("cholesky", stacks_source("stack_factors", a.dtype))(
        (count,), (threads_of(n),),
        (a.data.ptr, *element_strides(a), n, factors.data.ptr, info.data.ptr),
    )  # fmt: skip
    return Factored(factors, info, FactorKind.CHOLESKY)


def lu(a: Array, columns: int) -> tuple[Array, Array, dict[str, Array]]:
    """Return packed factors, no columns, and interchanges and info."""
    found = factor_lu(a)
    return found.factors, a[:, :, :0], {"ipiv": found.ipiv, "info": found.info}


def cholesky(a: Array, columns: int) -> tuple[Array, Array, dict[str, Array]]:
    """Return factors L with zeros above them, no columns, and info."""
    found = factor_cholesky(a)
    return found.factors, a[:, :, :0], {"info": found.info}


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
