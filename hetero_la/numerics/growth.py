"""The growth of LU without pivoting: what its factors are worth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.numerics.lapack_vectors import StepValues


def growth_limit(dtype: Any) -> float:
    """Return the growth at which half of the digits are lost, 1 / sqrt(eps).

    Examples
    --------
    >>> growth_limit(np.float64)
    67108864.0
    """
    return float(np.finfo(dtype).eps) ** -0.5


def require_little_growth(steps: StepValues, largest: float) -> float:
    """Return the growth of factors without pivoting; raise LinAlgError if they are worth nothing.

    The backward error of A = L U is at most a small multiple of n eps ``|L| |U|`` (Higham,
    Accuracy and Stability of Numerical Algorithms, theorem 9.3), so the growth is measured by the
    largest entries of L, of U and of A: max |L| max |U| / max |A|.

    Parameters
    ----------
    steps : StepValues
        Of the run, with ``growth`` and ``info``.
    largest : float
        The largest entry of A.

    Returns
    -------
    float
        The growth of all steps; 1 of an empty matrix, and of zeros.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a pivot is zero, or the growth exceeds `growth_limit`; it names the step.
    """
    lower, upper, growth = 1.0, 0.0, 1.0
    limit = growth_limit(steps.dtype)
    for k in range(steps.layout.kt):
        of_l, of_u = (float(size) for size in steps.values["growth", k])
        lower, upper = np.maximum(lower, of_l), np.maximum(upper, of_u)  # NaN stays
        growth = float(lower * upper) / largest if largest else 1.0
        at = f"in step {k} of LU without pivoting"
        if zero := int(steps.values["info", k][0]):
            pivot = steps.layout.row(k) + zero
            raise LinAlgError(f"pivot {pivot} is zero {at}; growth so far: {growth:.3g}")
        if not growth <= limit:
            raise LinAlgError(
                f"the growth {at} is {growth:.3g}, above {limit:.3g}: the matrix needs pivoting"
            )
    return growth
