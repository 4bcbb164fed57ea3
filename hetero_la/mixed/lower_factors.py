"""Factorizations in the lower precision, and whether they can be of use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.execution.result import Result
from hetero_la.mixed.correction import LowerSolve, correction
from hetero_la.mixed.equilibration import (
    Equilibration,
    general_equilibration,
    hermitian_equilibration,
    lowered,
)
from hetero_la.mixed.fallback import give_up
from hetero_la.mixed.precision import lower_dtype
from hetero_la.mixed.prediction import tiny_values
from hetero_la.mixed.trend import predicted_condition, predicted_condition_definite
from hetero_la.numerics.conditioning import (
    estimate_reciprocal_condition,
    hermitian_norm1,
    norm1,
)
from hetero_la.tiles.arrays.transfer import device_index, to_host

#: Tiny singular values with which GMRES is always tried; more where it is predicted to pay.
FEW = 3
#: Pivots that stand for them, in eps times the largest one and the square root of the order.
_SMALL = 16.0
#: Predicted condition number, in 1 / eps, from which on nothing is tried: it is often too small.
_PREDICTED = 0.01
#: Runs a factorization on a matrix that may be overwritten.
Run = Callable[[Any], Result]


class LowerFactors(NamedTuple):
    """Factors of a scaled copy in the lower precision.

    Attributes
    ----------
    result : Result
        Of the run.
    solve : callable
        Solves with them, in the precision of the right-hand sides.
    scaling : Equilibration or None
        How the copy was scaled.
    rcond : float
        The reciprocal condition number of the copy, estimated.
    norms : tuple of float
        1-norms of the scaled copy and of its transpose; of a copy that is not scaled, nothing.
    tiny : int
        How many singular values only GMRES can tell from rounding errors, by the pivots.
    """

    result: Result
    solve: LowerSolve
    scaling: Equilibration | None
    rcond: float
    norms: tuple[float, ...] = ()
    tiny: int = 0

    @property
    def is_ill_conditioned(self) -> bool:
        """Whether they are of use to GMRES alone, and their condition is not that of the matrix."""
        return bool(self.rcond < np.finfo(self.result.dtype).eps)

    def correct(self, r: Any, trans: int = 0) -> Any:
        """Return about A^-1 R, or A^-H R for `trans` = 2, in the precision of R."""
        return correction(self.solve, self.result.dtype, self.scaling, r, trans)

    def correct_in_full(self, r: Any, trans: int = 0) -> Any:
        """Do the same by widened factors, where they can be: with workers they cannot."""
        dtype = self.result.dtype if self.result.kept else r.dtype
        return correction(self.solve, dtype, self.scaling, r, trans)

    def condition_of(self, a: Any, *, hermitian: bool = False) -> float | None:
        """Return 1 / condition of the matrix itself, or None if it is ill-conditioned."""
        if self.is_ill_conditioned:
            return None
        if self.scaling is None:
            return self.rcond
        anorm = hermitian_norm1(a) if hermitian else norm1(a)
        return estimate_reciprocal_condition(anorm, a[:, :1], self.correct)


def lower_lu(a: Any, run: Run, nrhs: int = 1) -> LowerFactors:
    """Factor a square matrix by LU in the lower precision, to solve for some right-hand sides.

    Raises
    ------
    hetero_la.mixed.fallback.LowerPrecisionError
        If the factors could not be refined with.
    """
    scaling, copy = scaled_copy(a, general_equilibration)
    require_predicted(predicted_condition(copy), copy.dtype)
    anorm = norm1(copy)
    norms = () if scaling is None else (anorm, norm1(copy.T))
    result = _run(run, copy)
    rcond = result.lu_rcond(anorm, copy[:, :1])
    tiny = 0 if result.kept else small_pivots(result.factors.diagonal())
    many = tiny > FEW and tiny > tiny_values(len(a), nrhs, a.dtype, device_index(a))
    if result.kept or many:
        require_condition(rcond, copy.dtype)
        tiny = 0  # they are small beside others that have grown
    return LowerFactors(result, result.solve_lu, scaling, rcond, norms, tiny)


def lower_cholesky(a: Any, run: Run) -> LowerFactors:
    """Factor a Hermitian matrix, of which the lower triangle is given, as `lower_lu` does."""
    scaling, copy = scaled_copy(a, hermitian_equilibration)
    require_predicted(predicted_condition_definite(copy), copy.dtype)
    anorm, result = hermitian_norm1(copy), _run(run, copy)
    rcond = result.cholesky_rcond(anorm, copy[:, :1])
    require_condition(rcond, copy.dtype)
    norms = () if scaling is None else (anorm, anorm)
    return LowerFactors(result, partial(_either_way, result), scaling, rcond, norms)


def small_pivots(diagonal: Any) -> int:
    """Count the pivots that are of the size of rounding errors, as singular values then are.

    Examples
    --------
    >>> small_pivots(np.float32([1, 1, 1e-8]))
    1
    """
    pivots = abs(to_host(diagonal))
    least = _SMALL * np.sqrt(len(pivots)) * np.finfo(pivots.dtype).eps * pivots.max(initial=0)
    return int((pivots <= least).sum())


def require_condition(rcond: float, dtype: Any) -> None:
    """Give up if the condition number is too large for refinement to converge."""
    if not rcond >= np.finfo(dtype).eps:
        give_up(f"the matrix is ill-conditioned in {np.dtype(dtype).name}, rcond = {rcond:.2g}")


def require_predicted(condition: float, dtype: Any) -> None:
    """Give up if the pivots of some columns say that the whole matrix is ill-conditioned."""
    if condition * float(np.finfo(dtype).eps) > _PREDICTED:
        give_up(f"pivots of some columns suggest a condition number of about {condition:.0e}")


def scaled_copy(
    a: Any, choose: Callable[[Any], Equilibration | None]
) -> tuple[Equilibration | None, Any]:
    """Return the scaling of a matrix, and its scaled copy in the lower precision."""
    try:
        scaling = choose(a)
    except OverflowError as error:
        give_up(str(error))
    return scaling, lowered(a, lower_dtype(a.dtype), scaling)


def _run(run: Run, copy: Any) -> Result:
    name = copy.dtype.name
    try:
        result = run(copy)
    except LinAlgError as error:  # LU without pivoting
        give_up(f"in {name}, {error}")
    if result.info:
        give_up(f"the factorization in {name} breaks down at column {result.info}")
    return result


def _either_way(result: Result, b: Any, trans: int) -> Any:
    return result.solve_cholesky(b)
