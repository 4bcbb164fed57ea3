"""Table of the commands, which tells how the command line runs each routine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.api.cholesky import solve_positive
from hetero_la.api.structure import as_general, structure_of
from hetero_la.cli.common.command import (
    Command,
    CommandResult,
    KeywordOptions,
    MatrixProblem,
    RightHandSides,
)
from hetero_la.execution.execute import execute
from hetero_la.execution.report import Report
from hetero_la.numerics.triangles import zero_upper_triangle
from hetero_la.testing import residuals


def _ratio(routine: str, *arrays: Any, **options: Any) -> Callable[[], float]:
    """Return the function that computes the error ratio of a routine's results."""
    return partial(getattr(residuals, ROUTINES[routine].ratio), *arrays, **options)


def _lu(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a = problem.a
    pivot = problem.choices.pivot
    factors = hetero_la.lu_factor(a, overwrite_a=overwrite, pivot=pivot, **options)
    report = Report(factors.plan, factors.timing)
    ratio = _ratio("lu", a, *factors)
    return CommandResult(tuple(factors), report, ratio, factors.info > 0)


def _cholesky(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, lower = problem.a, not problem.choices.upper
    factors = hetero_la.cho_factor(a, lower, overwrite_a=overwrite, **options)
    zero_upper_triangle(factors.c if lower else factors.c.T)
    report = Report(factors.plan, factors.timing)
    return CommandResult((factors.c,), report, _ratio("cholesky", a, *factors))


def _qr(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, mode = problem.a, problem.choices.mode
    if mode in ("economic", "full"):
        return _explicit_qr(a, a.shape[0] if mode == "full" else min(a.shape), options)
    factors = hetero_la.qr_factor(a, overwrite_a=overwrite, **options)
    arrays = tuple(factors) if mode == "raw" else (np.triu(factors.qr),)
    report = Report(factors.plan, factors.timing)
    return CommandResult(arrays, report, _ratio("qr", a, *factors))


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
    full, pivot = as_general(a, structure_of(known), lower), problem.choices.pivot
    x, report = hetero_la.solve_with_report(full, b, pivot=pivot, **options)
    ratio = _ratio("solve", a, x, b, assume_a=known, lower=lower)
    return CommandResult((x,), report, ratio)


def _solve_positive(
    problem: MatrixProblem, overwrite: bool, options: KeywordOptions
) -> CommandResult:
    a, b, lower = problem.a, problem.b, not problem.choices.upper
    x, report = solve_positive(a, b, lower=lower, **options)
    ratio = _ratio("solve_positive", a, x, b, assume_a="pos", lower=lower)
    return CommandResult((x,), report, ratio)


def _lstsq(problem: MatrixProblem, overwrite: bool, options: KeywordOptions) -> CommandResult:
    a, b = problem.a, problem.b  # "gels" runs as a task graph alone, which is what is timed
    x, _, rank, _, report = hetero_la.lstsq_with_report(a, b, lapack_driver="gels", **options)
    ratio = _ratio("lstsq", a, x, b)
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


_LU = Command(
    ROUTINES["lu"],
    _lu,
    made=lambda how, overwrite: 0 if overwrite else 1,
    options=("pivot",),
)
_SOLVE = Command(
    ROUTINES["solve"],
    _solve,
    made=lambda how, overwrite: 1 if how.assume_a == "gen" else 4,
    rhs=RightHandSides.ANY,
    options=("assume_a", "upper", "pivot"),
    names=lambda how: ("x",),
    reference=_scipy_solve,
)

#: Commands by routine; "solve_positive" is `solve` with ``--assume-a pos``, and those that end in
#: "_nopivot" are for ``--pivot none``.
COMMANDS = {
    "lu": _LU,
    "lu_nopivot": replace(_LU, routine=ROUTINES["lu_nopivot"]),
    "solve": _SOLVE,
    "solve_nopivot": replace(_SOLVE, routine=ROUTINES["solve_nopivot"]),
    "cholesky": Command(
        ROUTINES["cholesky"],
        _cholesky,
        made=lambda how, overwrite: 0 if overwrite and not how.upper else 1,
        options=("upper",),
        names=lambda how: ("u" if how.upper else "l",),
        arguments=lambda how: {"lower": not how.upper},
    ),
    "qr": Command(
        ROUTINES["qr"],
        _qr,
        made=lambda how, overwrite: {"raw": 1 - overwrite, "r": 2 - overwrite}.get(how.mode, 3),
        options=("mode",),
        names=lambda how: {"raw": ("qr", "tau"), "r": ("r",)}.get(how.mode, ("q", "r")),
        arguments=lambda how: {"mode": how.mode},
    ),
    "lstsq": Command(
        ROUTINES["lstsq"],
        _lstsq,
        made=lambda how, overwrite: 1,
        rhs=RightHandSides.IN_RANGE,
        names=lambda how: ("x",),
        arguments=lambda how: {"lapack_driver": "gelsy"},
    ),
    "solve_positive": replace(
        _SOLVE,
        routine=ROUTINES["solve_positive"],
        run=_solve_positive,
        made=lambda how, overwrite: 1,
        reference=_scipy_solve_positive,
    ),
}
#: Names of the subcommands.
NAMES = tuple(name for name in COMMANDS if "_" not in name)
