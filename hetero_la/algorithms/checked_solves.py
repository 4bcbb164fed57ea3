"""Tasks that follow a factorization in A X = B: solve, estimate the condition, refine.

All of them work on few vectors of n entries, which go from one tile column's owner to the next, so
that nothing of the matrix travels.  A solve with L and U, v being a vector when the column is
reached, and others for the other triangles and adjoints:

    trsv_l1  v[k:] <- v[k:] after the part of L[k:, k]     k = 0, 1, ...
    trsv     v[:k+1] <- v[:k+1] after that of U[:k+1, k]   k = ..., 1, 0

Norms, by a block estimator [1]_ with two vectors v0, ended at the first columns w of A^-1 that it
looks at, those where |z| is largest:

    sums     s[j] = column sums of |A[:, j]|              before the first step
    solves   v = A^-1 v0,  z = A^-H sign(v),  w = A^-1 units(z)
    invnorm  ||A^-1||_1 ~ max(||v||_1, max |z|, ||w||_1)

A step of refinement, as in LAPACK's gerfs, and once more the residual:

    product  p[j] = -M[j] X[j]                            M: the matrix, kept beside its factors
    residual R = B + p[0] + ... ,  R = 0 if it is that of rounding
    axpy     X <- X + A^-1 R

One step nearly always is enough, and this correction is done beside the second solve for the norm:
who finds a backward error that more steps would make smaller has to solve again.

.. [1] N. J. Higham and F. Tisseur, A block algorithm for matrix 1-norm estimation, SIAM J. Matrix
   Anal. Appl. 21, 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.tasks import Matrix, PerStep, Region
from hetero_la.tiles.kernels.spec import VECTOR_FORMS

#: Vectors of the estimate of a norm.
_ESTIMATED = 2
#: Results: the 1-norms of A and of A^-1; the backward error before refinement, and after it.
NORM, INVERSE_NORM, ERRORS = "norm", "inverse_norm", ("error", "refined_error")


class Forms(NamedTuple):
    """Kernels of the two passes of a solve with A, from the top and to the top, and with A^H."""

    plain: tuple[str, str]
    adjoint: tuple[str, str]


LU_FORMS = Forms(("trsv_l1", "trsv"), ("trsv_uc", "trsv_lc1"))
CHOLESKY_FORMS = Forms(("trsv_l", "trsv_lc"), ("trsv_l", "trsv_lc"))


class CopiedInput(NamedTuple):
    """What is kept of the input.

    Attributes
    ----------
    columns, sums : PerStep
        Copies of A's tile columns, and sums of the moduli in them.
    b : Region
        Copy of B.
    hermitian : bool
        Whether only the lower triangle of A is given.
    """

    columns: PerStep
    sums: PerStep
    b: Region
    hermitian: bool

    def rows(self, j: int) -> slice:
        """Return the tile rows of tile column `j` that are given."""
        return slice(j, None) if self.hermitian else slice(None)


class _Solve(NamedTuple):
    """A solve: kernels and vectors of its two passes, and where it begins."""

    kernels: tuple[str, str]
    vectors: tuple[PerStep, PerStep]
    start: Region

    @property
    def end(self) -> Region:
        """The solution."""
        return self.vectors[1][0]


def keep(g: GraphBuilder, A: Matrix, *, hermitian: bool = False) -> CopiedInput:
    """Add the tasks that copy A and B, and sum up moduli, before the first step."""
    m, nt = g.layout.m, g.layout.nt
    if hermitian:
        sums = g.per_step("sums", lambda at: (at.order + at.below,), np.float64)
        columns = g.per_step("M", lambda at: (at.order + at.below, at.order))
    else:
        sums = g.per_step("sums", lambda at: (at.order,), np.float64)
        columns = g.per_step("M", lambda at: (m, at.order))
    given = CopiedInput(columns, sums, _vectors(g, "b", g.layout.nrhs)[0], hermitian)
    for j in range(nt):
        with g.step(0, column=j):
            column = A[given.rows(j), j]
            (g.sums_h if hermitian else g.sums)(column, sums[j])
            g.copy(column, columns[j])
    with g.step(0, column=nt):
        g.copy(A[:, nt], given.b)
    return given


def check(
    g: GraphBuilder, A: Matrix, forms: Forms, given: CopiedInput, order: Region | None = None
) -> None:
    """Add the tasks that solve with the factors in A, estimate ||A^-1||_1, and refine X.

    Parameters
    ----------
    g : GraphBuilder
        Graph, with right-hand sides in one tile column, which gets X.
    A : Matrix
        The factors.
    forms : Forms
        What solves with them.
    given : CopiedInput
        What `keep` has kept.
    order : Region, optional
        Order of A's rows in the factors.
    """
    beside, nrhs, step = g.layout.nt, g.layout.nrhs, g.layout.kt + 1
    start, signs = _vectors(g, "start", nrhs + _ESTIMATED)[0], _vectors(g, "signs", _ESTIMATED)[0]
    with g.step(step, column=beside):
        g.gather(given.b, order, start)
    solve = _Solve(forms.plain, _passes(g, "solve", nrhs + _ESTIMATED), start)
    step = _substitute(g, A, step + 1, [solve])
    with g.step(step, column=0):
        g.signs(solve.end, signs)
        g.take(solve.end, A[:, beside])
    estimate = _Solve(forms.adjoint, _passes(g, "estimate", _ESTIMATED), signs)
    step = _refine(g, A, forms, order, given, step + 1, estimate)
    units = _vectors(g, "units", _ESTIMATED)[0]
    with g.step(step, column=0):
        g.units(estimate.end, units)
    columns = _Solve(forms.plain, _passes(g, "columns", _ESTIMATED), units)
    step = _substitute(g, A, step + 1, [columns])
    norm = g.per_step(INVERSE_NORM, lambda at: (1,), np.float64, result=True)[0]
    with g.step(step, column=0):
        g.invnorm(solve.end, estimate.end, columns.end, norm)


def _refine(
    g: GraphBuilder, A: Matrix, forms: Forms, order: Region | None, given: CopiedInput, step: int,
    estimate: _Solve,
) -> int:  # fmt: skip
    """Add the tasks of refinement, and beside the first of them another solve; return a step."""
    columns, beside, nrhs = range(g.layout.nt), g.layout.nt, g.layout.nrhs
    hermitian, X = given.hermitian, A[:, beside]
    products = g.per_step(
        "product", lambda at: (at.order + at.below if hermitian else g.layout.m, nrhs)
    )
    residual, start = _vectors(g, "residual", nrhs)[0], _vectors(g, "residual_start", nrhs)[0]
    correction = _Solve(forms.plain, _passes(g, "correction", nrhs), start)
    norm = g.per_step(NORM, lambda at: (1,), np.float64, result=True)[0]
    with g.step(step, column=beside):
        (g.largest_h if hermitian else g.largest)(*(given.sums[j] for j in columns), norm)
    for name in ERRORS:
        error = g.per_step(name, lambda at: (1,), np.float64, result=True)[0]
        for j in columns:
            with g.step(step, column=j):
                if hermitian:
                    g.product_h(given.columns[j], A[j:, beside], products[j])
                else:
                    g.product(given.columns[j], A[j, beside], products[j])
        with g.step(step + 1, column=beside):
            g.residual(*(products[j] for j in columns), given.b, X, norm, residual, error)
            step += 2
        if name == ERRORS[0]:
            with g.step(step, column=beside):
                g.gather(residual, order, start)
            step = _substitute(g, A, step + 1, [correction, estimate])
            with g.step(step):
                g.axpy(correction.end, X)
            step += 1
    return step


def _substitute(g: GraphBuilder, A: Matrix, step: int, solves: Sequence[_Solve]) -> int:
    """Add the tasks of solves that go side by side, from `step` on; return the step after them."""
    reached, down = [solve.start for solve in solves], range(g.layout.kt)
    for way, columns in enumerate((down, reversed(down))):
        for k in columns:
            with g.step(step, column=k):
                for i, solve in enumerate(solves):
                    kernel, target = solve.kernels[way], solve.vectors[way][k]
                    lower = VECTOR_FORMS[kernel].triangle == "l"
                    getattr(g, kernel)(A[k:, k] if lower else A[: k + 1, k], reached[i], target)
                    reached[i] = target
            step += 1
    return step


def _passes(g: GraphBuilder, name: str, width: int) -> tuple[PerStep, PerStep]:
    """Declare the vectors of the two passes of a solve."""
    return _vectors(g, f"{name}_down", width), _vectors(g, f"{name}_up", width)


def _vectors(g: GraphBuilder, name: str, width: int) -> PerStep:
    """Declare a value of each step of n rows."""
    return g.per_step(name, lambda at: (g.layout.m, width))
