"""Table of the routines that the command line can run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import hetero_la
from hetero_la.api.cholesky import solve_positive
from hetero_la.api.structure import as_general, structure_of
from hetero_la.cli.common.routine import (
    CommandResult,
    CommandRoutine,
    KeywordOptions,
    MatrixProblem,
    RightHandSides,
)
from hetero_la.execution.execute import execute
from hetero_la.execution.report import Report
from hetero_la.numerics.triangles import zero_upper_triangle
from hetero_la.testing import residuals


def _lu(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a = problem.a
    factors = hetero_la.lu_factor(a, overwrite_a=overwrite, **options)
    report = Report(factors.plan, factors.timing)
    ratio = partial(residuals.lu_ratio, a, *factors)
    return CommandResult(tuple(factors), report, ratio, factors.info > 0)


def _cholesky(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, lower = problem.a, not problem.choices.upper
    factors = hetero_la.cho_factor(a, lower, overwrite_a=overwrite, **options)
    zero_upper_triangle(factors.c if lower else factors.c.T)
    report = Report(factors.plan, factors.timing)
    return CommandResult((factors.c,), report, partial(residuals.cholesky_ratio, a, *factors))


def _qr(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, mode = problem.a, problem.choices.mode
    if mode in ("economic", "full"):
        return _explicit_qr(a, a.shape[0] if mode == "full" else min(a.shape), options)
    factors = hetero_la.qr_factor(a, overwrite_a=overwrite, **options)
    arrays = tuple(factors) if mode == "raw" else (np.triu(factors.qr),)
    report = Report(factors.plan, factors.timing)
    return CommandResult(arrays, report, partial(residuals.qr_factors_ratio, a, *factors))


def _explicit_qr(a: NDArray, columns: int, options: KeywordOptions) -> CommandResult:
    """Compute Q and R as `hetero_la.qr` does, which returns no report."""
    n = a.shape[1]
    result = execute("explicit_q" if columns else "qr", a, columns=columns, **options)
    q, r = result.array[:, n:], np.triu(result.array[:columns, :n])

    def ratio() -> float:
        return max(residuals.qr_ratio(a, q, r), residuals.orthogonality_ratio(q))

    return CommandResult((q, r), result.report, ratio)


def _solve(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, b, lower = problem.a, problem.b, not problem.choices.upper
    known = problem.choices.assume_a
    x, report = hetero_la.solve_with_report(as_general(a, structure_of(known), lower), b, **options)
    ratio = partial(residuals.solve_ratio, a, x, b, assume_a=known, lower=lower)
    return CommandResult((x,), report, ratio)


def _solve_positive(
    problem: MatrixProblem, overwrite: bool, options: KeywordOptions
) -> CommandResult:
    a, b, lower = problem.a, problem.b, not problem.choices.upper
    x, report = solve_positive(a, b, lower=lower, **options)
    ratio = partial(residuals.solve_ratio, a, x, b, assume_a="pos", lower=lower)
    return CommandResult((x,), report, ratio)


def _lstsq(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, b = problem.a, problem.b  # "gels" runs as a task graph alone, which is what is timed
    x, _, rank, _, report = hetero_la.lstsq_with_report(a, b, lapack_driver="gels", **options)
    ratio = partial(residuals.lstsq_ratio, a, x, b)
    return CommandResult((x,), report, ratio, rank < min(a.shape))


def _scipy_solve(problem: MatrixProblem) -> object:
    a, b, how = problem.a, problem.b, problem.choices
    if how.assume_a == "gen":  # without the condition estimate of SciPy's solve
        factors = scipy.linalg.lu_factor(a, check_finite=False)
        return scipy.linalg.lu_solve(factors, b, check_finite=False)
    return scipy.linalg.solve(
        a, b, assume_a=how.assume_a, lower=not how.upper, check_finite=False
    )  # fmt: skip


def _scipy_solve_positive(problem: MatrixProblem) -> object:
    lower = not problem.choices.upper
    factors = scipy.linalg.cho_factor(problem.a, lower, check_finite=False)
    return scipy.linalg.cho_solve(factors, problem.b, check_finite=False)


_LU = CommandRoutine(
    summary="factor a matrix: P A = L U",
    run=_lu,
    reference=lambda problem: scipy.linalg.lu_factor(problem.a, check_finite=False),
    names=lambda how: ("lu", "piv"),
    made=lambda how, overwrite: 0 if overwrite else 1,
    trouble="singular",
)
_SOLVE = CommandRoutine(
    summary="solve A X = B",
    run=_solve,
    reference=_scipy_solve,
    names=lambda how: ("x",),
    made=lambda how, overwrite: 1 if how.assume_a == "gen" else 4,
    trouble="singular",
    rhs=RightHandSides.ANY,
    square=True,
    options=("assume_a", "upper"),
)
_CHOLESKY = CommandRoutine(
    summary="factor a Hermitian positive definite matrix: A = L L^H or U^H U",
    run=_cholesky,
    reference=lambda problem: scipy.linalg.cholesky(
        problem.a, lower=not problem.choices.upper, check_finite=False
    ),
    names=lambda how: ("u" if how.upper else "l",),
    made=lambda how, overwrite: 0 if overwrite and not how.upper else 1,
    trouble="not pos.def.",
    square=True,
    options=("upper",),
    kind="kms",
)
_QR = CommandRoutine(
    summary="factor a matrix: A = Q R",
    run=_qr,
    reference=lambda problem: scipy.linalg.qr(
        problem.a, mode=problem.choices.mode, check_finite=False
    ),
    names=lambda how: {"raw": ("qr", "tau"), "r": ("r",)}.get(how.mode, ("q", "r")),
    made=lambda how, overwrite: {"raw": 1 - overwrite, "r": 2 - overwrite}.get(how.mode, 3),
    trouble="",
    options=("mode",),
)
_LSTSQ = CommandRoutine(
    summary="solve A X = B by least squares, for a matrix of full rank",
    run=_lstsq,
    reference=lambda problem: scipy.linalg.lstsq(
        problem.a, problem.b, lapack_driver="gelsy", check_finite=False
    ),
    names=lambda how: ("x",),
    made=lambda how, overwrite: 1,
    trouble="rank-def",
    rhs=RightHandSides.IN_RANGE,
)

#: Routine of each command; "solve_positive" is `solve` with ``--assume-a pos``.
COMMAND_ROUTINES = {
    "lu": _LU,
    "solve": _SOLVE,
    "cholesky": _CHOLESKY,
    "qr": _QR,
    "lstsq": _LSTSQ,
    "solve_positive": replace(
        _SOLVE,
        run=_solve_positive,
        reference=_scipy_solve_positive,
        made=lambda how, overwrite: 1,
        trouble=_CHOLESKY.trouble,
        kind=_CHOLESKY.kind,
    ),
}
COMMANDS = ("lu", "solve", "cholesky", "qr", "lstsq")
