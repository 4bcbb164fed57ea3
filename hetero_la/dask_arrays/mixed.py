"""Dask arrays in mixed precision, which is computed when it is asked for, and not lazily.

What a run has found decides what follows: whether the factors are of use, how many steps X is to
be refined, and whether the matrix is factored in its own precision after all.  So the matrix is
held by the workers, factored there in the lower precision, and products with it, and solves with
the factors, are computed there; X is refined by the caller.  What falls back is lazy, of the matrix
that is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import dask.array as da
import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.accuracy.report import AccuracyReport
from hetero_la.dask_arrays.blocks import host_diagonal
from hetero_la.dask_arrays.held_matrix import Computing, HeldMatrix, placed
from hetero_la.dask_arrays.inputs import as_columns, as_matrix, on_gpu, with_checked_chunks
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.execution.report import MixedOutcome, Report, Timing
from hetero_la.mixed import prediction
from hetero_la.mixed.correction import LowerSolve, correction
from hetero_la.mixed.equilibration import (
    Equilibration,
    diagonal_equilibration,
    general_equilibration,
)
from hetero_la.mixed.fallback import NO_GAIN, LowerPrecisionError, give_up
from hetero_la.mixed.lower_factors import FEW, require_predicted, small_pivots
from hetero_la.mixed.precision import lower_dtype
from hetero_la.mixed.prediction import full_products
from hetero_la.mixed.refinement import Refined, RefinedSystem, refine_to_full
from hetero_la.mixed.systems import error_of
from hetero_la.mixed.trend import FEWEST_COLUMNS, condition_by_pivots, some_columns
from hetero_la.planning.decisions import Problem
from hetero_la.planning.plan import Plan

#: Backward error that is enough, in eps, once it no longer becomes smaller: products are sums over
#: blocks, and solutions in full precision, which are not refined, have larger ones.
_ENOUGH = 4.0
#: Seconds of all Dask tasks beside the factorization, by workers of a client and in threads.
_PROCESS_SECONDS, _THREAD_SECONDS = 0.5, 0.1
#: Passes over the matrix beside those that NumPy arrays take: blocks are held, and every pass
#: makes arrays of their size.
_PASSES = 30


@dataclass
class HeldFactors:
    """A matrix, and its factors in the lower precision, both held by the workers.

    Attributes
    ----------
    held : HeldMatrix
        The matrix.
    solve : callable
        Solves with the factors on the workers, in the precision of the right-hand sides.
    scaling : Equilibration or None
        How the copy was scaled that was factored.
    norms, scaled_norms : tuple of float
        1-norms of the matrix and of its transpose, and those of the scaled copy, if it was scaled.
    plan : Plan
        How it was factored.
    """

    held: HeldMatrix
    solve: LowerSolve
    scaling: Equilibration | None
    norms: tuple[float, float]
    scaled_norms: tuple[float, ...]
    plan: Plan

    def refined(self, b: np.ndarray, trans: int = 0) -> Refined:
        """Solve A X = B, A^T X = B (`trans` = 1) or A^H X = B (2), and refine.

        Raises
        ------
        hetero_la.mixed.fallback.LowerPrecisionError
            If that does not converge.
        """
        if trans == 2:  # A^H X = B is the conjugate of A^T conj(X) = conj(B)
            found = self.refined(b.conj(), 1)
            return found._replace(x=found.x.conj())
        if not self.held.complex and b.dtype.kind == "c":
            found = self.refined(np.hstack([b.real, b.imag]), trans)
            real, imaginary = np.hsplit(found.x, 2)
            return found._replace(x=real + 1j * imaginary)
        times = partial(self.held.times, trans=trans)
        error = error_of(self.norms[trans], self.scaling, self.scaled_norms, transposed=bool(trans))
        system = RefinedSystem(
            lambda x, b: b - times(x), times, partial(self._correct, lower_dtype(b.dtype), trans),
            error, partial(self._correct, b.dtype, trans),
        )  # fmt: skip
        eps = float(np.finfo(b.dtype).eps)
        return refine_to_full(system, b, system.correct(b), eps, enough=_ENOUGH)

    def _correct(self, dtype: Any, trans: int, r: np.ndarray) -> np.ndarray:
        if trans:  # A^-T R is the conjugate of A^-H conj(R)
            return correction(self.solve, dtype, self.scaling, r.conj(), 2).conj()
        return correction(self.solve, dtype, self.scaling, r)

    def outcome(self, refined: Refined) -> MixedOutcome:
        """Return what is said of a refinement that has succeeded."""
        return MixedOutcome(self.plan.dtype.name, refined.steps, refined.inner_steps)

    def backward_error(self, x: np.ndarray, b: np.ndarray) -> float:
        """Return the largest ||b - A x|| / (||A|| ||x|| + ||b||) of a column."""
        left, sizes = (np.abs(part).sum(axis=0) for part in (b - self.held.times(x), b))
        sizes = self.norms[0] * np.abs(x).sum(axis=0) + sizes
        return float((left / np.where(sizes > 0, sizes, 1)).max(initial=0))


def factor_held(
    held: HeldMatrix, routine: str, factors: Callable[[LazyRun], Any],
    solve: Callable[..., da.Array], **options: Any,
) -> tuple[Any, HeldFactors]:  # fmt: skip
    """Factor a square matrix in the lower precision.

    Parameters
    ----------
    held : HeldMatrix
        The matrix; the whole of it, if it is Hermitian.
    routine : str
        A key of `ROUTINES`.
    factors : callable
        Returns the lazy factors of a run.
    solve : callable
        Solves with them, lazily, with A^H for `trans` = 2.
    **options
        Those of the run, and `singular`.

    Returns
    -------
    tuple
        The factors of a run, and they with the matrix.

    Raises
    ------
    hetero_la.mixed.fallback.LowerPrecisionError
        If that does not pay, or the factors could not be refined with.
    """
    scaling = _scaling(held, hermitian=routine == "cholesky")
    lower = held.lowered(lower_dtype(held.blocks.dtype), scaling)
    run = lower_run(routine, lower, options)
    require_predicted_condition(held, lower, options.get("client"))
    found = _held_parts(held, factors(run), 2 if routine == "cholesky" else 1)

    def solve_lower(b: np.ndarray, trans: int) -> np.ndarray:
        with held.computing.current():
            x = solve(found, placed(b, lower), trans)
        return held.computing.host(x)[0]

    scaled_norms = () if scaling is None else held.norms(scaling)
    return found, HeldFactors(held, solve_lower, scaling, held.norms(None), scaled_norms, run.plan)


def _scaling(held: HeldMatrix, *, hermitian: bool) -> Equilibration | None:
    try:
        if hermitian:
            return diagonal_equilibration(held.computing.host(host_diagonal(held.blocks))[0])
        return general_equilibration(None, held.largest)
    except OverflowError as error:
        give_up(str(error))


def lower_run(routine: str, lower: da.Array, options: dict[str, Any]) -> LazyRun:
    """Return the run on a copy in the lower precision, on GPUs with split products if faster."""
    products = {}
    if on_gpu(lower) and options.get("products") is None:
        products = prediction.split_products(routine, lower.shape, lower.dtype, 0) or {}
    return LazyRun(routine, lower, **{**options, **products})


def hold_promising(a: da.Array, routine: str, nrhs: int, options: dict[str, Any]) -> HeldMatrix:
    """Have the workers hold a matrix, unless its plans say that nothing is to be gained.

    Parameters
    ----------
    a : dask.array.Array, shape (m, n)
        The matrix.
    routine : str
        A key of `ROUTINES`.
    nrhs : int
        Right-hand sides that are solved for.
    options : dict
        Those of the run.
    """
    (m, n), lower = a.shape, a.astype(lower_dtype(a.dtype))
    if not a.size or not nrhs:
        give_up("there is nothing to solve")
    full = LazyRun(routine, a, **{**options, **full_products(options)}).plan
    moved = m * n * a.dtype.itemsize / full.model.devices[0].bandwidth
    tasks = _PROCESS_SECONDS if full.workers[0].address else _THREAD_SECONDS
    low = lower_run(routine, lower, options).plan.estimated_seconds + tasks + _PASSES * moved
    problem = Problem(routine, m, n, nrhs, a.dtype)
    if not prediction.gains(problem, 0 if on_gpu(a) else None, full.estimated_seconds, low):
        give_up(NO_GAIN)
    return HeldMatrix(a, Computing(options.get("client")))


def require_predicted_condition(held: HeldMatrix, lower: da.Array, client: Any) -> None:
    """Give up if some columns of the copy in the lower precision say that it is of no use."""
    require_predicted(_predicted(held, lower, client), lower.dtype)


def _predicted(held: HeldMatrix, lower: da.Array, client: Any) -> float:
    """Predict the condition number, of Hermitian matrices in the same way as of others."""
    n = lower.shape[1]
    if n < FEWEST_COLUMNS:
        return 1.0
    run = LazyRun("lu", as_matrix(some_columns(lower)), client=client)
    return condition_by_pivots(held.computing.host(host_diagonal(run.factors))[0], n)


def _held_parts(held: HeldMatrix, factors: Any, power: int) -> Any:
    """Compute factors, whose diagonal is that of the pivots to a power; give up if of no use."""
    lazy = {k: v for k, v in factors._asdict().items() if isinstance(v, da.Array)}
    name = factors[0].dtype.name
    try:
        parts = held.computing.hold(*lazy.values())
        (diagonal,) = held.computing.host(host_diagonal(parts[0]))
    except LinAlgError as error:
        give_up(f"in {name}, {error}")
    if not (np.isfinite(diagonal).all() and diagonal.all()):
        give_up(f"the factorization in {name} breaks down")
    if (count := small_pivots(diagonal**power)) > FEW:
        give_up(f"the matrix is ill-conditioned in {name}: {count} pivots are tiny")
    return factors._replace(**dict(zip(lazy, parts, strict=True)))


class Refinable:
    """Factors in the lower precision, whose solutions are refined, and those that may follow.

    Parameters
    ----------
    lower : HeldFactors
        The factors with the matrix.
    in_full : callable
        Factors the matrix in its own precision, lazily.
    solve : callable
        Solves with the factors that it returns.
    """

    def __init__(
        self, lower: HeldFactors, in_full: Callable[[], Any], solve: Callable[..., da.Array]
    ) -> None:
        self._lower, self._in_full, self._solve = lower, in_full, solve
        self._full: Any = None
        self._reason: MixedOutcome | None = None

    def solve(self, b: Any, *trans: int, check_finite: bool) -> tuple[da.Array, MixedOutcome]:
        """Solve, at once and refined, or with the factors in full precision."""
        matrix = self._lower.held.blocks
        rhs = with_checked_chunks(as_columns(matrix, b, "factors"), "b", check_finite)
        rhs = rhs.astype(np.result_type(rhs.dtype, matrix.dtype))
        if self._reason is None:
            try:
                return refine_held(self._lower, rhs, *trans)[:2]
            except LowerPrecisionError as failed:
                self._reason = failed.outcome(matrix.dtype)
                self._full = self._in_full().persist()
        return self._solve(self._full, rhs, *trans, check_finite=False), self._reason


class RefinableFactors:
    """Base class of factors in the lower precision, by which solutions are refined.

    It stands before the class of lazy factors, which they are where mixed precision was given up.
    """

    _outcome: MixedOutcome
    _refinable: Refinable | None = None

    @property
    def mixed(self) -> MixedOutcome:
        """What came of `precision="mixed"`, as of the last solve."""
        return self._outcome

    def persist(self, **kwargs: Any) -> Self:
        """Return these factors, which are held by the workers, or compute those that are lazy."""
        if self._refinable is not None:
            return self
        made: Self = super().persist(**kwargs)  # type: ignore[misc]
        made._outcome = self._outcome
        return made


def refine_held(
    lower: HeldFactors, b: da.Array, trans: int = 0
) -> tuple[da.Array, MixedOutcome, Callable[[], float]]:
    """Solve for a Dask array; return X, how it was found, and what finds its backward error."""
    (rhs,) = lower.held.computing.host(b)
    columns = rhs[:, None] if b.ndim == 1 else rhs
    refined = lower.refined(columns, trans)
    x = placed(refined.x.reshape(rhs.shape), b)
    return x, lower.outcome(refined), partial(lower.backward_error, refined.x, columns)


def report_of(
    title: str, began: float, plan: Plan, dtype: Any, outcome: MixedOutcome,
    error: float | None = None,
) -> AccuracyReport:  # fmt: skip
    """Return what is known of a solution once mixed precision has been tried.

    Parameters
    ----------
    title : str
        What was solved.
    began : float
        When that began.
    plan : Plan
        Of the factorization.
    dtype : dtype
        Of the solution.
    outcome : MixedOutcome
        What came of it.
    error : float, optional
        Its backward error.
    """
    seconds = time.perf_counter() - began
    run = Report(plan, Timing(seconds, (), (), plan, {}))
    run.mixed = outcome
    steps = None if outcome.fallback else outcome.steps
    return AccuracyReport(
        title, dtype.name, refinement_steps=steps, backward_error=error, run=run, seconds=seconds
    )
