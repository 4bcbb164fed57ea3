"""How wrong a result is, in units of rounding: LAPACK's test ratios."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetero_la.tiles.pivots import permutation

__all__ = ["RATIO_LIMIT", "lu_ratio", "solve_ratio"]

#: A result passes if its ratio is below this, as in LAPACK's own tests.
RATIO_LIMIT = 30.0

#: Rows and columns of the blocks that are worked on at a time.
_BLOCK = 1024


def _blocks(stop: int) -> Iterator[slice]:
    for start in range(0, stop, _BLOCK):
        yield slice(start, min(start + _BLOCK, stop))


def _eps(dtype: np.dtype) -> float:
    """The unit roundoff, 2^-53 or 2^-24."""
    return float(np.finfo(dtype).eps) / 2


def _one_norm(a: NDArray) -> float:
    """Largest column sum of moduli, without a second array of `a`'s size."""
    sums = np.zeros(a.shape[1])
    for rows in _blocks(a.shape[0]):
        sums += np.abs(a[rows]).sum(axis=0, dtype=np.float64)
    return float(sums.max(initial=0.0))


def _ratio(residual: float, *scales: float) -> float:
    """Divide `residual` by every scale in turn; what cannot be judged is infinite.

    One division at a time, because the product of the scales may underflow.
    """
    if residual == 0:
        return 0.0
    for scale in scales:
        if not 0 < scale < np.inf:
            return float("inf")
        residual /= scale
    return residual if np.isfinite(residual) else float("inf")


def _lower(lu: NDArray, rows: slice, depth: int) -> NDArray:
    """Rows of the unit lower trapezoid, up to column `depth`."""
    block = np.tril(lu[rows, :depth], rows.start - 1)
    d = np.arange(rows.start, min(rows.stop, depth))
    block[d - rows.start, d] = 1
    return block


def lu_ratio(a: ArrayLike, lu: ArrayLike, piv: ArrayLike) -> float:
    """``||P A - L U||_1 / (n ||A||_1 eps)``.

    Parameters
    ----------
    a : (m, n) array_like
        The matrix that was factored.
    lu : (m, n) array_like
        Packed factors, as `scipy.linalg.lu_factor` returns them.
    piv : (min(m, n),) array_like of int
        Row ``i`` was swapped with row ``piv[i]``, counting from 0.

    Returns
    -------
    float
        The ratio; 0 for an empty matrix, infinite where the factors are not
        finite.  It is good if it is below `RATIO_LIMIT`.

    Examples
    --------
    >>> import scipy.linalg
    >>> from hetero_la.matrices import generate
    >>> from hetero_la.residuals import RATIO_LIMIT, lu_ratio
    >>> a = generate("orthog", 50)
    >>> lu, piv = scipy.linalg.lu_factor(a)
    >>> lu_ratio(a, lu, piv) < RATIO_LIMIT
    True
    >>> lu_ratio(a, lu, piv[::-1]) < RATIO_LIMIT
    False
    """
    a, lu, piv = np.asarray(a), _inexact(lu), np.asarray(piv)
    m, n = a.shape
    if lu.shape != a.shape or piv.shape != (min(m, n),):
        raise ValueError(
            f"factors of shape {lu.shape} and pivots of shape {piv.shape} "
            f"do not belong to a matrix of shape {a.shape}"
        )
    order = permutation(piv, m)
    sums = np.zeros(n)
    with np.errstate(all="ignore"):
        for columns in _blocks(n):
            upper = np.triu(lu[: min(m, columns.stop), columns], -columns.start)
            for rows in _blocks(m):
                depth = min(rows.stop, len(upper))
                block = a[order[rows], columns].astype(lu.dtype)
                block -= _lower(lu, rows, depth) @ upper[:depth]
                sums[columns] += np.abs(block).sum(axis=0, dtype=np.float64)
        residual = float(sums.max(initial=0.0))
        return _ratio(residual, _one_norm(a), max(n, 1), _eps(lu.dtype))


def solve_ratio(a: ArrayLike, x: ArrayLike, b: ArrayLike) -> float:
    """``||B - A X||_1 / (||A||_1 ||X||_1 eps)``.

    Parameters
    ----------
    a : (m, n) array_like
        The matrix.
    x : (n,) or (n, nrhs) array_like
        The solution.
    b : (m,) or (m, nrhs) array_like
        The right-hand sides.

    Returns
    -------
    float
        The ratio; 0 where nothing is to be solved, infinite where the solution
        is not finite.  It is good if it is below `RATIO_LIMIT`.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la.residuals import solve_ratio
    >>> a, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 4.0])
    >>> solve_ratio(a, np.array([1.0, 1.0]), b)
    0.0
    """
    a, x, b = np.asarray(a), _inexact(x), np.asarray(b)
    if a.ndim != 2 or x.shape[:1] != a.shape[1:] or b.shape != a.shape[:1] + x.shape[1:]:
        raise ValueError(f"shapes {a.shape}, {x.shape} and {b.shape} of A, X and B do not match")
    x, b = _as_columns(x), _as_columns(b)
    sums = np.zeros(x.shape[1])
    with np.errstate(all="ignore"):
        for rows in _blocks(a.shape[0]):
            block = b[rows] - a[rows] @ x
            sums += np.abs(block).sum(axis=0, dtype=np.float64)
        residual = float(sums.max(initial=0.0))
        return _ratio(residual, _one_norm(a), _one_norm(x), _eps(x.dtype))


def _inexact(x: ArrayLike) -> NDArray[Any]:
    x = np.asarray(x)
    return x if x.dtype.kind in "fc" else x.astype(np.float64)


def _as_columns(x: NDArray[Any]) -> NDArray[Any]:
    return x[:, None] if x.ndim == 1 else x
