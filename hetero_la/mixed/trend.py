"""What a few columns tell of the condition of a matrix, before all of it is factored."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.execution.execute import execute
from hetero_la.planning.decisions import Problem
from hetero_la.tiles.arrays.transfer import array_module, to_host

#: Fraction of the columns that are factored, and of rows and columns of a Hermitian matrix.
_SOME, _SOME_HERMITIAN = 8, 4
#: Fewest columns from which anything is told.
_FEWEST = 16
#: Order from which on LU of some columns tells anything.
FEWEST_COLUMNS = _FEWEST * _SOME
#: Powers of the decay of pivots that are about the condition number: measured for graded singular
#: values, or eigenvalues, with condition numbers from 1e4 to 1e12 and orders from 256 to 1500.
_POWER, _POWER_DEFINITE = 2.2, 1.5


def sample_of(problem: Problem) -> Problem:
    """Return the run that looks at a part of a matrix.

    Examples
    --------
    >>> sample_of(Problem("qr", 4000, 800, 1, np.dtype("float32")))[:4]
    ('lu', 4000, 100, 0)
    """
    routine, m, n, _, dtype = problem
    if routine == "cholesky":
        return Problem("cholesky", m // _SOME_HERMITIAN, n // _SOME_HERMITIAN, 0, dtype)
    return Problem("lu", m, n // _SOME, 0, dtype)


def predicted_condition(a: Any) -> float:
    """Predict the condition number of A from the pivots of LU of every eighth column.

    Pivots whose logarithms fall along a line, as with graded singular values, are taken to go on
    so.  A few singular values that are far smaller than all others are not seen.  That takes a
    fiftieth of the operations.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.standard_normal((256, 256), np.float32)
    >>> predicted_condition(a) < 1e4
    True
    >>> q, _ = np.linalg.qr(a)
    >>> predicted_condition((q * np.logspace(0, -12, 256, dtype=np.float32)) @ q.T) > 1e8
    True
    """
    n = a.shape[1]
    if n < FEWEST_COLUMNS:
        return 1.0
    some = array_module(a).asfortranarray(some_columns(a))
    result = execute("lu", some, overwrite_a=True)
    return condition_by_pivots(result.factors.diagonal(), n)


def some_columns(a: Any) -> Any:
    """Return the columns that are looked at."""
    return a[:, ::_SOME]


def predicted_condition_definite(a: Any) -> float:
    """Predict it of a Hermitian matrix, by Cholesky of every fourth row and column.

    Examples
    --------
    >>> predicted_condition_definite(np.eye(64, dtype=np.float32))
    1.0
    """
    n = len(a)
    if n < _FEWEST * _SOME_HERMITIAN:
        return 1.0
    every = slice(None, None, _SOME_HERMITIAN)
    some = array_module(a).array(a[every, every], order="F")
    result = execute("cholesky", some, overwrite_a=True)
    if result.info:
        return np.inf
    return _predicted(abs(to_host(result.factors.diagonal())) ** 2, n) ** _POWER_DEFINITE


def condition_by_pivots(pivots: Any, n: int) -> float:
    """Predict the condition number of a matrix of n columns from the pivots of some of them."""
    return _predicted(abs(to_host(pivots)), n) ** _POWER


def _predicted(pivots: np.ndarray, n: int) -> float:
    """Return the decay that is seen, or is to be expected at the end of the line, if larger."""
    if not (np.isfinite(pivots).all() and pivots.all()):
        return np.inf
    logs, k = np.log2(pivots.astype(np.float64)), len(pivots)
    early, late = (float(np.median(part)) for part in (logs[k // 8 : k // 2], logs[-(k // 4) :]))
    # The medians are about the values at 5/16 and at 7/8 of the columns.
    line = (early - late) / (9 / 16 * k) * n
    return float(2.0 ** min(max(float(logs.max()) - late, line, 0.0), 300.0))
