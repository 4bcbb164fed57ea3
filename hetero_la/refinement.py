"""Iterative refinement of a solution, as LAPACK's ``xGERFS`` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_la.tiles.transfer import array_module

#: Steps at most; a step is not taken once the backward error is at rounding level.
_STEPS = 3


def refine(a: Any, anorm: float, solve: Callable[[Any], Any], b: Any, x: Any) -> Any:
    """Improve X where its backward error is above a few units of rounding.

    A step costs ``O(n^2 nrhs)``: the residual ``R = B - A X`` in working precision,
    ``A D = R`` from the factors, ``X + D``.  In working precision this makes the
    backward error small, not the forward error [1]_.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix.
    anorm : float
        Its 1-norm.
    solve : callable
        Solves with its factors.
    b, x : array, shape (n, nrhs)
        Right-hand sides and solution; `x` is overwritten.

    Returns
    -------
    array, shape (n, nrhs)
        `x`.

    References
    ----------
    .. [1] R. D. Skeel, Iterative refinement implies numerical stability for Gaussian
       elimination, Math. Comp. 35, 1980.

    Examples
    --------
    >>> a = np.array([[2.0, 0.0], [0.0, 4.0]])
    >>> b, x = np.array([[2.0], [4.0]]), np.array([[1.1], [1.0]])
    >>> refine(a, 4.0, lambda residual: np.linalg.solve(a, residual), b, x)
    array([[1.],
           [1.]])
    """
    eps = np.finfo(x.dtype).eps
    previous = np.inf
    for _ in range(_STEPS):
        with np.errstate(over="ignore", invalid="ignore"):  # seen below
            residual = b - a @ x
        error = _backward_error(anorm, x, residual)
        if not eps < error < previous / 2:  # done, or no longer getting better, or NaN
            break
        previous = error
        x += solve(residual)
    return x


def _backward_error(anorm: float, x: Any, residual: Any) -> float:
    """The largest of a column's: beside a large one, a small one's would not show in a norm."""
    xp = array_module(x)
    with np.errstate(all="ignore"):  # what is out of range is told by the result
        sizes = anorm * xp.abs(x).sum(axis=0, dtype=np.float64)
        errors = xp.abs(residual).sum(axis=0, dtype=np.float64) / sizes
    return float(xp.where(sizes == 0, 0, errors).max())
