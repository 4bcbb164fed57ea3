"""Least squares of full rank in mixed precision, by the triangle of a QR in the lower one.

With T = A for m >= n and T = A^H otherwise, and T S = Q R of a copy in the lower precision, whose
columns are scaled, S R^-1 R^-H S is about the inverse of T^H T.  Corrections are found by the
(corrected) semi-normal equations [1]_, where T^H T is a product with A and one with A^H in full
precision, so that a step reduces the error by the condition number of A in units of rounding of the
lower precision, and not by its square:

    m >= n    R = B - A X,  X <- X + (A^H A)^-1 A^H R
    m < n     R = B - A X,  X <- X + A^H (A A^H)^-1 R       stays in the range of A^H

.. [1] A. Bjorck, Stability analysis of the method of seminormal equations for linear least squares
   problems, Linear Algebra Appl. 88/89, 1987.  Of GMRES for them: E. Carson, N. J. Higham and
   S. Pranesh, Three-precision GMRES-based iterative refinement for least squares problems, SIAM J.
   Sci. Comput. 42, 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero_la.accuracy.products import frobenius
from hetero_la.execution.report import MixedOutcome, Report
from hetero_la.mixed.correction import correction
from hetero_la.mixed.equilibration import Equilibration, column_equilibration, lowered
from hetero_la.mixed.fallback import give_up
from hetero_la.mixed.lower_factors import Run, require_condition, require_predicted, scaled_copy
from hetero_la.mixed.refinement import Refined, RefinedSystem, refine_to_full
from hetero_la.mixed.trend import predicted_condition
from hetero_la.numerics.conditioning import norm1, reciprocal_condition_upper
from hetero_la.numerics.refinement import backward_error
from hetero_la.numerics.triangles import solve_with_triangle
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_host
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.gpu_libraries.substitution import Substitution


class MixedLeastSquares(NamedTuple):
    """A least-squares solution.

    Attributes
    ----------
    x : array, shape (n, nrhs)
        The solution.
    left : array, shape (m, nrhs)
        Its residual.
    rcond : float
        The reciprocal condition number of R.
    report : Report
        Of the run.
    outcome : MixedOutcome
        How it was found.
    """

    x: Any
    left: Any
    rcond: float
    report: Report
    outcome: MixedOutcome


class Products(NamedTuple):
    """Products with a matrix.

    Attributes
    ----------
    times, times_adjoint : callable
        Return A X and A^H R.
    """

    times: Callable[[Any], Any]
    times_adjoint: Callable[[Any], Any]


def lstsq_mixed(a: Any, b: Any, cond: float, run: Run) -> MixedLeastSquares:
    """Find the (minimum-norm) least-squares solution for a matrix of full rank.

    Parameters
    ----------
    a : array, shape (m, n)
        The matrix.
    b : array, shape (m, nrhs)
        Right-hand sides.
    cond : float
        Reciprocal condition number up to which the rank is left to full precision to find.
    run : callable
        Runs QR on a tall matrix that may be overwritten.

    Raises
    ------
    hetero_la.mixed.fallback.LowerPrecisionError
        If that does not reach full accuracy.
    """
    m, n = a.shape
    tall = a if m >= n else a.T  # for complex numbers the conjugate of A^H, as is then all else
    if not b.size:
        give_up("there are no right-hand sides")
    scaling, copy = scaled_copy(tall, column_equilibration)
    require_predicted(predicted_condition(copy), copy.dtype)
    result = run(copy)
    correct, rcond = corrections(result.factors[: min(m, n)], scaling, cond)
    products = Products(partial(_times, a), partial(_times_adjoint, a))
    if m >= n:
        refined = refined_tall(products, (m, n), frobenius(a), b, correct)
    else:
        refined = refined_wide(products, norm1(a), b, correct)
    outcome = MixedOutcome(copy.dtype.name, refined.steps, refined.inner_steps)
    left = b - products.times(refined.x)
    return MixedLeastSquares(refined.x, left, rcond, result.report, outcome)


def corrections(
    r: Any, scaling: Equilibration | None, cond: float
) -> tuple[Callable[[Any], Any], float]:
    """Return what solves for corrections by the triangle, and its reciprocal condition number.

    Parameters
    ----------
    r : array, shape (n, n)
        The triangle, in the lower precision.
    scaling : Equilibration or None
        How the columns were scaled.
    cond : float
        As for `lstsq_mixed`.

    Raises
    ------
    hetero_la.mixed.fallback.LowerPrecisionError
        If the triangle is too ill-conditioned, or may not have full rank.
    """
    require_condition(reciprocal_condition_upper(r), r.dtype)
    rcond = _condition(r, scaling)
    if not rcond > cond:
        give_up(f"full precision has to find the rank, rcond = {rcond:.2g}")
    return partial(_correction, _normal_solve(r), r.dtype, scaling), rcond


def _condition(r: Any, scaling: Equilibration | None) -> float:
    """Return 1 / condition of R without the scaling, in double precision where it was scaled."""
    if scaling is None:
        return reciprocal_condition_upper(r)
    wide = np.complex128 if r.dtype.kind == "c" else np.float64
    one = Equilibration(np.zeros(len(r), int), -scaling.columns)
    with np.errstate(all="ignore"):  # what is not finite has no condition number
        return reciprocal_condition_upper(lowered(r.astype(wide), wide, one))


def _normal_solve(r: Any) -> Callable[[Any, int], Any]:
    """Return what solves R^H R Y = B."""
    if is_device_array(r):
        inverse = Substitution(array_module(r).asfortranarray(r), "r")
        return lambda b, trans: inverse.solve(inverse.solve(b, adjoint=True))

    def solve(b: Any, trans: int) -> Any:
        y = solve_with_triangle(r, b, lower=False, adjoint=True)
        return solve_with_triangle(r, y, lower=False)

    return solve


def _correction(solve: Any, dtype: Any, scaling: Equilibration | None, r: Any) -> Any:
    both = None if scaling is None else Equilibration(scaling.columns, scaling.columns)
    return correction(solve, dtype, both, r)


def refined_tall(
    products: Products, shape: tuple[int, int], anorm: float, b: Any,
    correct: Callable[[Any], Any],
) -> Refined:  # fmt: skip
    """Minimize ||B - A X||: the residual of the normal equations is refined away.

    Parameters
    ----------
    products : Products
        Those with A.
    shape : tuple of int
        Its shape.
    anorm : float
        Its Frobenius norm.
    b : array, shape (m, nrhs)
        Right-hand sides.
    correct : callable
        Returns about (A^H A)^-1 R.
    """
    eps, given = float(np.finfo(b.dtype).eps), _norms(b)
    latest: list[np.ndarray] = [given]

    def residual(x: Any, b: Any) -> Any:
        left = b - products.times(x)
        latest[0] = _norms(left)
        return products.times_adjoint(left)

    def error(x: Any, slope: Any) -> float:
        sizes = anorm * (latest[0] + given)
        return float(np.where(sizes > 0, _norms(slope) / np.where(sizes > 0, sizes, 1), 0).max())

    def product(d: Any) -> Any:
        return products.times_adjoint(products.times(d))

    system = RefinedSystem(residual, product, correct, error)
    enough = max(shape) / 2  # at which the error ratio is about 1
    x = correct(products.times_adjoint(b))
    return refine_to_full(system, b, x, eps, enough=enough)


def refined_wide(
    products: Products, anorm: float, b: Any, correct: Callable[[Any], Any]
) -> Refined:
    """Solve A X = B by the minimum-norm X, in the range of A^H.

    Parameters
    ----------
    products, b
        As for `refined_tall`.
    anorm : float
        1-norm of A.
    correct : callable
        Returns about (A^T conj(A))^-1 R.
    """
    eps, complex_numbers = float(np.finfo(b.dtype).eps), b.dtype.kind == "c"

    def turned(r: Any) -> Any:  # R is of A^T, whose normal equations are the conjugate ones
        return correct(r.conj()).conj() if complex_numbers else correct(r)

    def residual(x: Any, b: Any) -> Any:
        return b - products.times(x)

    def product(d: Any) -> Any:
        return products.times(products.times_adjoint(d))

    def error(x: Any, left: Any) -> float:
        return float(backward_error(anorm, x, left))

    lift = products.times_adjoint
    system = RefinedSystem(residual, product, turned, error, lift=lift)
    return refine_to_full(system, b, lift(turned(b)), eps)


def _times(a: Any, x: Any) -> Any:
    return a @ x if is_device_array(a) else lapack.product(a, x)


def _times_adjoint(a: Any, r: Any) -> Any:
    return _times(a.T, r.conj()).conj()


def _norms(a: Any) -> np.ndarray:
    """Return the 2-norms of columns, on the host."""
    xp = array_module(a)
    size = abs(a).max(axis=0)
    scale = xp.where(size > 0, size, 1)
    return to_host(size * xp.sqrt((abs(a / scale) ** 2).sum(axis=0)))
