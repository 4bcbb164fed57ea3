"""Square systems in mixed precision: factored in the lower one, refined in their own.

    choose       range, pivots of some columns
    factor       P A' = L U or A' = L L^H of a scaled copy A' in the lower precision
    judge        its condition number
    refine       R = B - A X in full precision, X + A^-1 R by the factors, or by GMRES with them

What fails in any of these raises `LowerPrecisionError`, and is left to full precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetero_la.accuracy.judging import Facts, Solution, facts_of_solution
from hetero_la.checks.warnings import warn_ill_conditioned
from hetero_la.execution.report import MixedOutcome
from hetero_la.mixed.equilibration import Equilibration, times_rows
from hetero_la.mixed.fallback import give_up
from hetero_la.mixed.lower_factors import LowerFactors, Run, lower_cholesky, lower_lu
from hetero_la.mixed.refinement import Refined, RefinedSystem, refine_to_full
from hetero_la.numerics.conditioning import hermitian_norm1, norm1, reciprocal
from hetero_la.numerics.refinement import backward_error, residual_of
from hetero_la.tiles.arrays.transfer import array_module


def solve_mixed(
    a: Any, b: Any, run: Run, *, hermitian: bool = False
) -> tuple[Solution, MixedOutcome]:
    """Solve A X = B by factors in the lower precision and refinement.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix; if `hermitian`, its lower triangle.
    b : array, shape (n, nrhs)
        Right-hand sides.
    run : callable
        Runs LU, or if `hermitian` Cholesky, on a matrix that may be overwritten.
    hermitian : bool, optional
        Whether the matrix is Hermitian and positive definite.

    Raises
    ------
    hetero_la.mixed.fallback.LowerPrecisionError
        If that does not reach full accuracy.
    """
    if not b.size:
        give_up("there are no right-hand sides")
    factors = lower_cholesky(a, run) if hermitian else lower_lu(a, run, b.shape[1])
    anorm = hermitian_norm1(a) if hermitian else norm1(a)
    error = error_of(anorm, factors.scaling, factors.norms)
    ill = factors.is_ill_conditioned
    xp = array_module(b)
    rhs = xp.asfortranarray(xp.hstack([b, probe(b)])) if ill else b
    refined = refined_by(
        factors.correct, factors.correct_in_full, a, error, rhs, hermitian=hermitian, slow=ill,
        tiny=factors.tiny,
    )  # fmt: skip
    x = refined.x[:, : b.shape[1]]
    rcond = factors.condition_of(a, hermitian=hermitian)
    if rcond is None:
        rcond = reciprocal(anorm, norm1(refined.x[:, -1:]))
    warn_ill_conditioned(rcond, a.dtype)
    again = factors.correct_in_full if ill else factors.correct

    def judge() -> Facts:
        known = {"rcond": rcond, "refinement_steps": refined.steps}
        return known | facts_of_solution(a, anorm, x, b, again, hermitian=hermitian)

    return Solution(x, factors.result.report, judge), outcome_of(factors, refined)


def probe(like: Any) -> Any:
    """Return a column of signs, of 2-norm 1, whose solution is about as large as the inverse."""
    n = len(like)
    signs = np.random.default_rng(n).choice([-1.0, 1.0], (n, 1)) / np.sqrt(n)
    return array_module(like).asarray(signs.astype(like.dtype))


def refined_by(
    correct: Callable[[Any], Any], precondition: Callable[[Any], Any], a: Any,
    error: Callable[[Any, Any], float], b: Any, *, hermitian: bool = False, slow: bool = False,
    tiny: int = 0,
) -> Refined:  # fmt: skip
    """Solve A X = B by corrections from factors; see `solve_mixed` for the other parameters.

    Parameters
    ----------
    correct, precondition : callable
        Return about A^-1 R, the one from factors in the lower precision, the other in that of R.
    error : callable
        Returns the backward error of X and a residual.
    slow, tiny : optional
        As for `refine_to_full`.
    """
    residual = partial(residual_of, a, hermitian=hermitian)

    def product(d: Any) -> Any:
        return -residual(d, array_module(d).zeros_like(d, order="F"))

    system = RefinedSystem(residual, product, correct, error, precondition)
    return refine_to_full(system, b, correct(b), float(np.finfo(b.dtype).eps), slow=slow, tiny=tiny)


def error_of(
    anorm: float, scaling: Equilibration | None, norms: tuple[float, ...], *,
    transposed: bool = False,
) -> Callable[[Any, Any], float]:  # fmt: skip
    """Return a function for the backward error of X and a residual, in A and in its scaled copy.

    Where columns are of very different length, the error in A does not see small rows of X, which
    LU in full precision finds as accurately as large ones.

    Parameters
    ----------
    anorm : float
        1-norm of A.
    scaling : Equilibration or None
        How the copy of A, or of its transpose, was scaled.
    norms : tuple of float
        1-norms of that copy and of its transpose.
    transposed : bool, optional
        Whether the copy is of the transpose.
    """

    def error(x: Any, left: Any) -> float:
        found = float(backward_error(anorm, x, left))
        if scaling is None:
            return found
        rows, columns = scaling[::-1] if transposed else scaling
        x, left = times_rows(x, -columns), times_rows(left, rows)
        return max(found, float(backward_error(norms[transposed], x, left)))

    return error


def outcome_of(factors: LowerFactors, refined: Refined) -> MixedOutcome:
    """Return what is said of a refinement that has succeeded."""
    return MixedOutcome(np.dtype(factors.result.dtype).name, refined.steps, refined.inner_steps)
