"""QR panels on a GPU by Cholesky factorizations of A^H A: products instead of columns.

CholeskyQR2 (Fukaya et al., 2014) finds an orthonormal basis, its Householder vectors are
those of an LU factorization of what it has at the top (Ballard et al., IPDPS 2014):

    A = Q1 R1,  R1 = chol(A^H A)^H       Q1 = A W1^H,  W1 = R1^-H
    Q1 = Q R2,  R2 = chol(Q1^H Q1)^H
    Q - [D; 0] = V U                     D = diag(+-1): no pivot is smaller than 1
    A = (Q D) (D R2 R1),  Q D = (I - V T V^H) [I; 0],  T = -U D V1^-H,  tau = diag(T)

Q itself is not needed below its square at the top: there V = Q1 (R2^-1 U^-1).  A product with
an inverse loses accuracy where columns of large norm combine to one of small norm.  That is bounded
by the entries of the inverse; a panel that exceeds the bound is left as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.tiles.kernels.gpu.common import ceil_div, solve_unit_lower, source
from hetero_la.tiles.kernels.gpu.inverse import invert
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue

_LANES = 32  # columns of reflect_leaf
_STRIP = 128  # columns of a strip of a product with a triangle, whose zeros are left out
#: Largest norm of a row of an inverse, weighted by the norms of the columns that it combines:
#: the factor by which a column of Q1 or V loses accuracy.
_BOUND = 100.0
_BOUND_AGAIN = 4.0  # the same of R2, which is near the identity where Q1 is nearly orthonormal


@dataclass(slots=True)
class CholeskyQR:
    """Factorization of one panel: A (rows x order) becomes V; R, T (order x order), tau are set.

    `done` is the address of a 32-bit integer, which in the end is 0 if the panel could not be
    factored; A is then as it was.
    """

    q: GpuQueue
    A: Block
    R: Block
    T: Block
    tau: int
    done: int
    rows: int
    order: int

    def factor(self) -> bool:
        """Factor the panel if it is well conditioned; the host waits for the answer."""
        q, order = self.q, self.order
        Q1 = self._memory("Q", self.rows)
        L1, W1 = self._cholesky("1", self.A, _BOUND)
        self._times_adjoint(self.A, W1, Q1, self.rows)
        L2, W2 = self._cholesky("2", Q1, _BOUND_AGAIN)
        S = self._memory("S", order)
        self._times_adjoint(Q1, W2, S, order)
        signs = q.workspace("signs", order * S.dtype.itemsize)
        self._eliminate(S, 0, order, signs)
        Y = self._reflectors(S, W2, signs)
        q.gemm(1, L2, L1, 0, self.R, (order,) * 3, trans="cc")
        self._launch(
            "conclude", order, 128, self.R.pointer, self.R.ld, signs, self._state(),
            self._infos(), self.done,
        )  # fmt: skip
        if not q.read(self.done):
            return False
        below = self.rows - order
        self._times_adjoint(Q1.at(order, 0), Y, self.A.at(order, 0), below)
        copy = q.function("copy_reflectors", source("triangles", S.dtype))
        q.launch(copy, (order,), 128, S.pointer, S.ld, self.A.pointer, self.A.ld, order)
        return True

    def _cholesky(self, name: str, X: Block, bound: float) -> tuple[Block, Block]:
        """Return L and L^-1 of X^H X = L L^H, checked against `bound`."""
        q, order = self.q, self.order
        L, W = self._memory("L" + name, order), self._memory("W" + name, order)
        norms = q.workspace("norms", 8 * order)
        q.gemm(1, X, X, 0, L, (order, order, self.rows), trans="cn")
        self._launch("column_norms", ceil_div(order, 128), 128, L.pointer, order, norms)
        q.potrf(L, order, self._infos() + 4 * (name == "2"))
        self._launch("clear_upper", order, 128, L.pointer, order)
        invert(q, L, W, order, unit=False)
        self._launch("check_rows", order, 32, W.pointer, order, 0, 0, norms, bound, self._state())
        return L, W

    def _times_adjoint(self, X: Block, W: Block, Y: Block, rows: int) -> None:
        """Compute Y <- X W^H, W lower triangular."""
        for first in range(0, self.order if rows else 0, _STRIP):
            last = min(first + _STRIP, self.order)
            shape = (rows, last - first, last)
            self.q.gemm(1, X, W.at(first, 0), 0, Y.at(0, first), shape, trans="nc")

    def _eliminate(self, S: Block, first: int, width: int, signs: int) -> None:
        """Factor S - D = V U in columns ``first .. first + width``, rows from `first` on."""
        D, rows = S.at(first, first), self.order - first
        if width <= _LANES:
            own = signs + first * np.finfo(S.dtype).dtype.itemsize
            self._launch("reflect_leaf", 1, 256, D.pointer, D.ld, rows, width, own)
            return
        left = _LANES * ceil_div(ceil_div(width, _LANES), 2)
        right = width - left
        self._eliminate(S, first, left, signs)
        solve_unit_lower(self.q, D, D.at(0, left), left, right)
        below = (rows - left, right, left)
        self.q.gemm(-1, D.at(left, 0), D.at(0, left), 1, D.at(left, left), below)
        self._eliminate(S, first + left, right, signs)

    def _reflectors(self, S: Block, W2: Block, signs: int) -> Block:
        """Fill T and tau; return (R2^-1 U^-1)^H, checked."""
        q, order, square = self.q, self.order, (self.order,) * 3
        U, unit, W, Y = (self._memory(name, order) for name in ("U", "U^H", "V^-1", "Y"))
        self._launch(
            "split_reflectors", order, 128, S.pointer, S.ld, signs, U.pointer, unit.pointer,
            self.tau,
        )  # fmt: skip
        invert(q, S, W, order, unit=True)
        q.gemm(1, U, W, 0, self.T, square, trans="nc")
        invert(q, unit, W, order, unit=True)
        q.gemm(1, W, W2, 0, Y, square)
        self._launch(
            "check_rows", order, 32, Y.pointer, order, S.pointer, S.ld + 1, 0, _BOUND,
            self._state(),
        )  # fmt: skip
        return Y

    def _memory(self, name: str, rows: int) -> Block:
        return self.q.matrix("cholesky_qr " + name, rows, self.order, self.A.dtype)

    def _state(self) -> int:
        return self.q.workspace("cholesky_qr state", 4, zeroed=True)

    def _infos(self) -> int:
        return self.q.workspace("cholesky_qr infos", 8)

    def _launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        function = self.q.function(name, source("reconstruct", self.A.dtype))
        self.q.launch(function, (blocks,), threads, *arguments)
