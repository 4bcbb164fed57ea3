"""Judgement of results: what the fields of a report are computed from."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from hetero_la.accuracy.energy import start_meter
from hetero_la.accuracy.factored import FactoredMatrix, QRFactored
from hetero_la.accuracy.histogram import Histogram
from hetero_la.accuracy.products import frobenius
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.accuracy.residuals import (
    columns_to_judge,
    componentwise_errors,
    forward_error_bound,
    normwise_error,
    residual_and_moduli,
)
from hetero_la.checks.inputs import as_finite_array, require_same_device
from hetero_la.execution.report import Report
from hetero_la.tiles.arrays.transfer import to_host, wait_for_writes

Facts = dict[str, Any]
#: Solves for columns, with A^H for `trans` = 2.
Solve = Callable[[Any, int], Any]


def facts_of_factors(factored: FactoredMatrix, a: Any) -> Facts:
    """Judge factors: by themselves, or beside the matrix if `a` is not None."""
    found = facts_of_run(factored, a)
    if not factored.packed.size:
        return found
    return {
        **found, "rcond": factored.rcond(a), "orthogonality": factored.orthogonality(),
        "factorization_error": None if a is None else factored.backward_error(a),
    }  # fmt: skip


def facts_of_run(factored: FactoredMatrix, a: Any) -> Facts:
    """Tell what happened in a factorization: growth, pivots, inverses, methods of panels."""
    inverses, substitutions = factored.inverses() or (None, None)
    methods = factored.run.timing.panels
    return {
        "growth": factored.growth(a), "rank": factored.rank(),
        "pivots": Histogram.of(factored.pivots()),
        "inverses": inverses, "substitutions": substitutions,
        "panels": dict(Counter(methods)) if methods else None,
    }  # fmt: skip


def facts_of_solution(
    a: Any, anorm: float, x: Any, b: Any, solve: Solve, *, hermitian: bool = False
) -> Facts:
    """Judge the solution of A X = B.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix; if `hermitian`, its lower triangle.
    anorm : float
        Its 1-norm.
    x, b : array, shape (n, nrhs)
        Solution and right-hand sides.
    solve : callable
        Solves with A.
    """
    if not x.size:
        return {"judged": 0}
    some = columns_to_judge(x.shape[1])
    x, b = x[:, some], b[:, some]
    found = residual_and_moduli(a, x, b, hermitian=hermitian)
    errors = componentwise_errors(found)
    return {
        "backward_error": normwise_error(anorm, x, b, found.left),
        "componentwise_error": float(errors.max()),
        "forward_error": forward_error_bound(solve, x, found),
        "errors": Histogram.of(errors), "judged": x.shape[1],
    }  # fmt: skip


def facts_of_least_squares(a: Any, x: Any, b: Any, rcond: float) -> Facts:
    """Judge least-squares solutions of A X = B.

    Parameters
    ----------
    a : array, shape (m, n)
        The matrix.
    x, b : array, shape (n, nrhs) and (m, nrhs)
        Solution and right-hand sides.
    rcond : float
        Reciprocal condition number of A; 0 if that has not full rank: then nothing bounds the
        forward error.

    Notes
    -----
    The backward error is the smaller norm of two perturbations of A for which x is exact [1]_:
    ``||A^H r|| / (||A||_F ||r||)``, for m > n, and ``||r|| / (||A||_F ||x||)``.  The bound of the
    forward error is that of [2]_, ``eps (2 kappa / cos t + tan t kappa^2)`` with
    ``sin t = ||r|| / ||b||``.

    References
    ----------
    .. [1] G. W. Stewart, Research, development, and LINPACK, in: Mathematical Software III, 1977.
    .. [2] LAPACK Users' Guide, third edition, section 4.5: linear least squares problems.

    Examples
    --------
    >>> a, x, b = np.ones((2, 1)), np.array([[2.0]]), np.array([[1.0], [3.0]])
    >>> facts_of_least_squares(a, x, b, 1.0)["backward_error"]
    0.0
    """
    if not x.size or not b.size:
        return {"judged": 0}
    some = columns_to_judge(x.shape[1])
    x, b = x[:, some], b[:, some]
    with np.errstate(all="ignore"):  # overflow shows in the result
        left = b - a @ x
        slopes, rests, sizes, given = map(_norms, ((left.conj().T @ a).conj().T, left, x, b))
        anorm = frobenius(a)
        errors = _ratios(rests, anorm * sizes)
        if a.shape[0] > a.shape[1]:
            errors = np.minimum(errors, _ratios(slopes, anorm * rests))
        sine, eps = np.minimum(_ratios(rests, given), 1.0), float(np.finfo(x.dtype).eps) / 2
        cosine = np.maximum(np.sqrt((1 - sine) * (1 + sine)), eps)
        bounds = eps * (2 / (rcond * cosine) + sine / cosine / rcond**2) if rcond else None
    return {
        "backward_error": float(errors.max()), "judged": x.shape[1],
        "forward_error": None if bounds is None else float(bounds.max()),
    }  # fmt: skip


def _norms(part: Any) -> np.ndarray:
    """Return the 2-norms of columns, in double precision on the host."""
    found: np.ndarray = np.linalg.norm(to_host(part).astype(np.complex128), axis=0)
    return found


def _ratios(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.where(above == 0, 0.0, above / below)


def judge_factors(
    factored: FactoredMatrix, a: Any, b: Any, x: Any, solve: Solve, *, conjugate: bool = False
) -> AccuracyReport:
    """Judge factors, and with `a` and `b` a solution: X, or if that is None what they solve.

    Parameters
    ----------
    factored : FactoredMatrix
        The factors.
    a, b, x : array or None
        The matrix, right-hand sides, and a solution.
    solve : callable
        Solves with the factors.
    conjugate : bool, optional
        Whether the factors are those of the conjugate of A, which is A^T.

    Raises
    ------
    ValueError
        If an array does not fit the factors or is not finite, or there is `b` without `a`, or `x`
        without `b`.
    TypeError
        If an array is not where the factors are.
    """
    if (b is not None and a is None) or (x is not None and b is None):
        raise ValueError(
            "a solution is judged with the matrix and its right-hand sides: give both a and b"
        )
    m, n = factored.packed.shape
    nrhs = None if b is None else b.shape[1] if np.ndim(b) == 2 else 1
    a, b = _as_given("a", a, factored, (m, n)), _as_given("b", b, factored, (m, nrhs))
    x = _as_given("x", x, factored, (n, nrhs))
    if conjugate:
        a = None if a is None else a.T
        b, x = (part if part is None else part.conj() for part in (b, x))
    began = time.perf_counter()
    facts = facts_of_factors(factored, a)
    if b is not None:
        x = solve(b, 0) if x is None else x
        if factored.square:
            hermitian, anorm = factored.hermitian, factored.norm1(a)
            facts |= facts_of_solution(a, anorm, x, b, solve, hermitian=hermitian)
        else:
            facts |= facts_of_least_squares(a, x, b, facts.get("rcond", 0.0))
    return assembled(factored.run, factored.packed.dtype, facts, began)


def judge_explicit_q(a: Any, q: Any, r: Any, run: Report) -> AccuracyReport:
    """Judge Q, of shape (m, m) or (m, k), and R, beside the matrix."""
    began, k = time.perf_counter(), min(a.shape)
    q = q[:, :k]

    def apply_q(c: Any, adjoint: bool) -> Any:
        return (c.conj().T @ q).conj().T if adjoint else q @ c

    facts = facts_of_factors(QRFactored(r[:k], run, apply_q), a)
    return assembled(run, r.dtype, facts, began)


def _as_given(name: str, part: Any, factored: FactoredMatrix, shape: tuple[int, int | None]) -> Any:
    """Return an argument as a matrix; raise if it does not fit the factors."""
    if part is None:
        return None
    part, packed = as_finite_array(part, name), factored.packed
    require_same_device(packed, part, "factors", name)
    part = part[:, None] if part.ndim == 1 and name != "a" else part
    if part.shape != shape:
        raise ValueError(
            f"{name} of shape {part.shape} does not fit factors of shape {packed.shape}"
        )
    if np.result_type(part.dtype, packed.dtype) != packed.dtype:
        raise ValueError(f"{name} has dtype {part.dtype}, and the factors have {packed.dtype}")
    return part.astype(packed.dtype, copy=False)


def assembled(run: Report, dtype: Any, facts: Facts, began: float) -> AccuracyReport:
    """Return the report of facts on a run's factors, which were being found since `began`."""
    spent, precision = time.perf_counter() - began, np.dtype(dtype).name
    return AccuracyReport(
        run.title, precision, run=run, seconds=run.timing.seconds, estimate_seconds=spent, **facts
    )


class Solution(NamedTuple):
    """A solution, the run that has found it, if any, and what judges it when it is asked to."""

    x: Any
    run: Report | None
    judge: Callable[[], Facts]


class RunMeter:
    """Seconds and joules from its creation on, for the report of what is solved meanwhile.

    To read a GPU's counter takes milliseconds, in which another thread waits for it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hetero-la-joules")
        self._meter = self._thread.submit(start_meter)
        self._began = time.perf_counter()

    def report(self, title: str, solved: Solution) -> AccuracyReport:
        """Stop, judge the solution, and return the report."""
        wait_for_writes(solved.x)
        stopped = time.perf_counter()
        with self._thread:
            joules = self._thread.submit(lambda: self._meter.result().joules())
            facts = solved.judge()
        return AccuracyReport(
            title, solved.x.dtype.name, run=solved.run, joules=joules.result(),
            seconds=stopped - self._began, estimate_seconds=time.perf_counter() - stopped, **facts,
        )  # fmt: skip
