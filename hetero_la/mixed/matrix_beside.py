"""The matrix that factors in the lower precision need beside them, to solve accurately."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero_la.accuracy.judging import Facts, assembled, facts_of_solution
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.checks.inputs import as_columns_for
from hetero_la.execution.report import MixedOutcome, Report
from hetero_la.mixed.correction import LowerSolve, correction
from hetero_la.mixed.equilibration import Equilibration
from hetero_la.mixed.fallback import LowerPrecisionError
from hetero_la.mixed.precision import lower_dtype
from hetero_la.mixed.systems import error_of, probe, refined_by
from hetero_la.numerics.conditioning import hermitian_norm1, norm1, reciprocal


@dataclass
class MatrixBeside:
    """A matrix, of which there are factors in the lower precision.

    Attributes
    ----------
    matrix : array, shape (n, n)
        The matrix; if `hermitian`, its lower triangle.
    scaling : Equilibration or None
        How its copy was scaled before it was factored.
    rcond : float or None
        Its reciprocal condition number, estimated, if the factors can tell.
    norms : tuple of float
        1-norms of the scaled copy and of its transpose, if it was scaled.
    tiny : int
        How many singular values only GMRES can tell from rounding errors.
    hermitian : bool
        Whether it is Hermitian and positive definite.
    full : object or None
        Its factors in its own precision, once refinement has failed.
    wide : array or None
        The factors in the lower precision as numbers of its own, once they were needed.
    """

    matrix: Any
    scaling: Equilibration | None
    rcond: float | None
    norms: tuple[float, ...]
    tiny: int = 0
    hermitian: bool = False
    full: Any = None
    wide: Any = None

    def solve(
        self, lower: LowerSolve, b: Any, trans: int, in_full: Callable[[Any], Any],
        run: Report, *, check_finite: bool = True,
    ) -> Any:  # fmt: skip
        """Solve with the matrix, its transpose (`trans` = 1) or its adjoint (`trans` = 2).

        Where refinement fails, the matrix is factored in its own precision, once.

        Parameters
        ----------
        lower : callable
            Solves with the factors in the precision of the right-hand sides.
        b : array, shape (n,) or (n, nrhs)
            Right-hand sides.
        trans : {0, 1, 2}
            Which of the three.
        in_full : callable
            Factors the matrix in its own precision.
        run : Report
            That of the factorization, which notes what comes of this.
        check_finite : bool, optional
            Whether to refuse NaNs and infinities.

        Returns
        -------
        array, shape of `b`
            X.
        """
        b = as_columns_for(self.matrix, b, "the matrix", finite=check_finite)
        if self.matrix.dtype.kind == "f" and b.dtype.kind == "c":
            parts = (self.solve(lower, part, trans, in_full, run) for part in (b.real, b.imag))
            real, imaginary = parts
            return real + 1j * imaginary
        b = b.astype(self.matrix.dtype, copy=False)
        if not b.size:
            return b.copy()
        if self.full is None:
            try:
                return self._refined(lower, b, trans, run)
            except LowerPrecisionError as failed:
                self.full = in_full(self.matrix)
                run.mixed = failed.outcome(b.dtype)
        return self.full.solve(b) if self.hermitian else self.full.solve(b, trans)

    def _refined(self, lower: LowerSolve, b: Any, trans: int, run: Report) -> Any:
        # A^H X = B is the conjugate of A^T conj(X) = conj(B).
        turned = trans == 2 and not self.hermitian
        transposed = bool(trans) and not self.hermitian
        rhs = b[:, None] if b.ndim == 1 else b
        rhs = rhs.conj() if turned else rhs
        matrix = self.matrix.T if transposed else self.matrix
        anorm = hermitian_norm1(matrix) if self.hermitian else norm1(matrix)
        error = error_of(anorm, self.scaling, self.norms, transposed=transposed)
        correct = self.transposed_correction if transposed else self.correction
        refined = refined_by(
            partial(correct, lower), partial(correct, lower, dtype=b.dtype), matrix, error, rhs,
            hermitian=self.hermitian, slow=self.rcond is None, tiny=self.tiny,
        )  # fmt: skip
        factored = np.dtype(lower_dtype(b.dtype)).name
        run.mixed = MixedOutcome(factored, refined.steps, refined.inner_steps)
        x = refined.x.conj() if turned else refined.x
        return x[:, 0] if b.ndim == 1 else x

    def widened(self, factors: Any) -> Any:
        """Return the factors as numbers of the matrix's precision."""
        if self.wide is None:
            self.wide = factors.astype(self.matrix.dtype)
        return self.wide

    def correction(self, lower: LowerSolve, r: Any, trans: int = 0, dtype: Any = None) -> Any:
        """Return about A^-1 R, or A^-H R for `trans` = 2, from the factors, computed in `dtype`."""
        return correction(lower, dtype or lower_dtype(r.dtype), self.scaling, r, trans)

    def transposed_correction(self, lower: LowerSolve, r: Any, dtype: Any = None) -> Any:
        """Return about A^-T R, the conjugate of A^-H conj(R)."""
        return self.correction(lower, r.conj(), 2, dtype).conj()


def judge_beside(
    beside: MatrixBeside, lower: LowerSolve, solve: Callable[[Any], Any], b: Any, x: Any,
    factors: Any, *, conjugate: bool = False,
) -> AccuracyReport:  # fmt: skip
    """Judge factors in the lower precision, and with `b` a solution: X, or what they solve.

    Parameters
    ----------
    beside : MatrixBeside
        The matrix.
    lower : callable
        Solves with the factors in the precision of the right-hand sides.
    solve : callable
        Solves accurately.
    b, x : array or None
        Right-hand sides and solution.
    factors : Factors
        The factors.
    conjugate : bool, optional
        Whether the matrix beside them is the conjugate of A.
    """
    if x is not None and b is None:
        raise ValueError("a solution is judged beside right-hand sides: b")
    began, matrix = time.perf_counter(), beside.matrix
    anorm = hermitian_norm1(matrix) if beside.hermitian else norm1(matrix)
    rcond = beside.rcond
    if rcond is None:
        rcond = reciprocal(anorm, norm1(solve(probe(matrix))))
    facts: Facts = {"rcond": rcond}
    if b is not None:
        b = as_columns_for(matrix, b, "the matrix", finite=True)
        x = solve(b) if x is None else as_columns_for(matrix, x, "the matrix", "x", finite=True)
        b, x = (part[:, None] if part.ndim == 1 else part for part in (b, x))
        b, x = (part.astype(matrix.dtype) for part in (b, x))
        b, x = (part.conj() if conjugate else part for part in (b, x))
        again = partial(beside.correction, lower, dtype=matrix.dtype)
        facts |= facts_of_solution(matrix, anorm, x, b, again, hermitian=beside.hermitian)
    if factors.mixed is not None:
        facts["refinement_steps"] = factors.mixed.steps
    return assembled(factors._report, matrix.dtype, facts, began)
