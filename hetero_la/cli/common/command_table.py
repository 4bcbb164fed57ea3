"""Table of the commands, which tells how the command line runs each routine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

import hetero_la
from hetero_la.accuracy.judging import judge_explicit_q
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.cholesky import solve_positive
from hetero_la.api.structure import as_general, structure_of
from hetero_la.cli.common.command import Choices, CommandResult, MatrixProblem
from hetero_la.execution.execute import execute
from hetero_la.numerics.triangles import zero_upper_triangle
from hetero_la.testing.residuals import solve_ratio

KeywordOptions = dict[str, Any]


def _lu(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    how = problem.choices
    factors = hetero_la.lu_factor(
        problem.a, overwrite_a=overwrite, pivot=how.pivot, precision=how.precision, **options
    )
    arrays = {"lu": factors.lu, "piv": factors.piv}
    judge, singular = partial(factors.report, problem.a), factors.info > 0
    ratio = _factors_ratio(problem, factors)
    return CommandResult(arrays, factors, ratio, singular, judge)


def _factors_ratio(problem: MatrixProblem, factors: Any) -> Callable[[], float]:
    """Return a function for the error ratio of factors; in a lower precision, of a solution."""
    a, upper = problem.a, problem.choices.upper
    if factors.dtype == a.dtype:
        return problem.ratio(*factors)
    kind = "gen" if isinstance(factors, hetero_la.LUFactors) else "pos"

    def ratio() -> float:
        b = np.ones((len(a), 1), a.dtype)
        return solve_ratio(a, factors.solve(b), b, assume_a=kind, lower=not upper)

    return ratio


def _cholesky(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    lower = not problem.choices.upper
    precision = problem.choices.precision
    factors = hetero_la.cho_factor(
        problem.a, lower, overwrite_a=overwrite, precision=precision, **options
    )
    zero_upper_triangle(factors.c if lower else factors.c.T)
    arrays, judge = {"l" if lower else "u": factors.c}, partial(factors.report, problem.a)
    return CommandResult(arrays, factors, _factors_ratio(problem, factors), accuracy=judge)


def _qr(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, mode = problem.a, problem.choices.mode
    if mode in ("raw", "r"):
        factors = hetero_la.qr_factor(a, overwrite_a=overwrite, **options)
        raw = {"qr": factors.qr, "tau": factors.tau}
        arrays = raw if mode == "raw" else {"r": np.triu(factors.qr)}
        judge = partial(factors.report, a)
        return CommandResult(arrays, factors, problem.ratio(*factors), accuracy=judge)
    # As `hetero_la.qr`, which returns no report.
    columns, n = a.shape[0] if mode == "full" else min(a.shape), a.shape[1]
    result = execute("explicit_q" if columns else "qr", a, columns=columns, **options)
    q, r = result.array[:, n:], np.triu(result.array[:columns, :n])
    judge = partial(judge_explicit_q, a, q, r, result.report)
    return CommandResult({"q": q, "r": r}, result.report, problem.ratio(q, r), accuracy=judge)


def _solve(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, b, how, lower = problem.a, problem.b, problem.choices, not problem.choices.upper
    options = {"precision": how.precision, **options}
    if how.report:
        known: Any = {"assume_a": how.assume_a, "pivot": how.pivot, "lower": lower}
        x, judged = hetero_la.solve(a, b, report=True, **known, **options)
        return _judged_result(problem, x, judged, assume_a=how.assume_a, lower=lower)
    if how.assume_a == "pos":
        x, report = solve_positive(a, b, lower=lower, **options)
    else:
        full = as_general(a, structure_of(how.assume_a), lower)
        x, report = hetero_la.solve_with_report(full, b, pivot=how.pivot, **options)
    return CommandResult({"x": x}, report, problem.ratio(x, b, assume_a=how.assume_a, lower=lower))


def _judged_result(
    problem: MatrixProblem, x: Any, judged: AccuracyReport, deficient: bool = False, **known: Any
) -> CommandResult:
    """Return the result of a run that has returned a report of its accuracy, too."""
    assert judged.run is not None
    ratio = problem.ratio(x, problem.b, **known)
    return CommandResult({"x": x}, judged.run, ratio, deficient, lambda: judged)


def _lstsq(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, b = problem.a, problem.b  # "gels" runs as a task graph alone, which is what is timed
    options = {"precision": problem.choices.precision, **options}
    if problem.choices.report:
        x, _, rank, _, judged = hetero_la.lstsq(a, b, lapack_driver="gels", report=True, **options)
        return _judged_result(problem, x, judged, rank < min(a.shape))
    x, _, rank, _, report = hetero_la.lstsq_with_report(a, b, lapack_driver="gels", **options)
    return CommandResult({"x": x}, report, problem.ratio(x, b), rank < min(a.shape))


def _scipy_solve(problem: MatrixProblem) -> object:
    a, b, how, lower = problem.a, problem.b, problem.choices, not problem.choices.upper
    if how.assume_a == "gen":  # without the condition estimate of SciPy's solve
        factors = scipy.linalg.lu_factor(a, check_finite=False)
        return scipy.linalg.lu_solve(factors, b, check_finite=False)
    if how.assume_a == "pos":
        factor = scipy.linalg.cho_factor(a, lower, check_finite=False)
        return scipy.linalg.cho_solve(factor, b, check_finite=False)
    return scipy.linalg.solve(a, b, assume_a=how.assume_a, lower=lower, check_finite=False)


def _call_scipy(problem: MatrixProblem) -> object:
    """Call the routine's reference."""
    command, how = COMMANDS[problem.command], problem.choices
    given = (problem.a,) if problem.b is None else (problem.a, problem.b)
    function = getattr(scipy.linalg, problem.routine.reference)
    return function(*given, check_finite=False, **command.arguments(how))


@dataclass(frozen=True, slots=True)
class Command:
    """Functions that run a subcommand.

    Parameters
    ----------
    run : callable
        Function of a problem, whether its matrix may be overwritten, and options.
    made : callable
        Function that returns the number of arrays of the matrix's size that a run allocates,
        given the choices and whether the matrix may be overwritten.
    arguments : callable, optional
        Function that returns the keyword arguments of the routine's reference, given the choices.
    reference : callable, optional
        Function that solves a problem with SciPy; by default one call of the routine's reference.
    """

    run: Callable[[MatrixProblem, bool, KeywordOptions], CommandResult]
    made: Callable[[Choices, bool], int]
    arguments: Callable[[Choices], KeywordOptions] = lambda how: {}
    reference: Callable[[MatrixProblem], object] = _call_scipy


#: Commands by name.
COMMANDS = {
    "lu": Command(_lu, made=lambda how, overwrite: 1 - overwrite),
    "solve": Command(
        _solve,
        made=lambda how, overwrite: 4 if how.assume_a in ("sym", "her") else 1,
        reference=_scipy_solve,
    ),
    "cholesky": Command(
        _cholesky,
        made=lambda how, overwrite: 0 if overwrite and not how.upper else 1,
        arguments=lambda how: {"lower": not how.upper},
    ),
    "qr": Command(
        _qr,
        made=lambda how, overwrite: {"raw": 1 - overwrite, "r": 2 - overwrite}.get(how.mode, 3),
        arguments=lambda how: {"mode": how.mode},
    ),
    "lstsq": Command(
        _lstsq,
        made=lambda how, overwrite: 1,
        arguments=lambda how: {"lapack_driver": "gelsy"},
    ),
}
