"""Backward errors of solutions, and bounds of their forward errors, as in LAPACK's ``xGERFS``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hetero_la.numerics.conditioning import estimate_norm1
from hetero_la.tiles.arrays.transfer import array_module, is_column_major, is_device_array, to_host
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.gpu_libraries import norms

#: Elements of a block, so that its moduli stay in the cache.
_BLOCK = 1 << 17
#: Most columns that are looked at: each takes a pass over the matrix, and on the host two.
MOST_COLUMNS = 8


class Residual(NamedTuple):
    """The residual R = B - A X of a solution, and what its rounding is measured by.

    Attributes
    ----------
    left : array, shape (n, p)
        R.
    moduli : array, shape (n, p)
        ``|A| |X| + |B|``.
    """

    left: Any
    moduli: Any


def columns_to_judge(nrhs: int) -> slice:
    """Return which right-hand sides are looked at: up to `MOST_COLUMNS`, evenly apart.

    Examples
    --------
    >>> columns_to_judge(3), columns_to_judge(1000)
    (slice(None, None, 1), slice(None, None, 125))
    """
    return slice(None, None, -(-nrhs // MOST_COLUMNS) or 1)


def residual_and_moduli(a: Any, x: Any, b: Any, *, hermitian: bool = False) -> Residual:
    """Compute B - A X and |A| |X| + |B|, in working precision.

    On a GPU that is one pass over the matrix, on the host two.

    Parameters
    ----------
    a : array, shape (m, n)
        The matrix; if `hermitian`, its lower triangle.
    x, b : array, shape (n, p) and (m, p)
        Solution and right-hand sides.

    Examples
    --------
    >>> a, x, b = np.array([[2.0, -1.0], [0.0, 4.0]]), np.ones((2, 1)), np.array([[1.0], [5.0]])
    >>> residual_and_moduli(a, x, b).left.T, residual_and_moduli(a, x, b).moduli.T
    (array([[0., 1.]]), array([[4., 9.]]))
    """
    if is_device_array(a):
        return Residual(*norms.residual_and_moduli(a, x, b, hermitian=hermitian))
    residual = lapack.hermitian_residual if hermitian else lapack.residual
    times = _hermitian_moduli_times if hermitian else _moduli_times
    with np.errstate(all="ignore"):  # overflow shows in the result
        return Residual(residual(a, x, b), abs(b) + times(a, abs(x)))


def largest_modulus(a: Any) -> float:
    """Return the largest modulus of a matrix, 0 of an empty one; NaN counts as larger than any.

    Examples
    --------
    >>> largest_modulus(np.array([[3 - 4j, 1j]]))
    5.0
    """
    if is_device_array(a):
        return float(norms.largest_modulus(a))
    parts = [abs(block).max() for _, _, block in _blocks(a)]
    return float(np.stack(parts).max()) if parts else 0.0


def _blocks(a: Any) -> Iterator[tuple[slice, slice, Any]]:
    """Cut a matrix on the host into blocks of columns, or of rows if these are contiguous."""
    m, n = a.shape
    every = slice(None)
    if not a.size:
        return
    by_columns = is_column_major(a)
    step = max(_BLOCK // (m if by_columns else n), 1)
    for start in range(0, n if by_columns else m, step):
        some = slice(start, start + step)
        yield (every, some, a[:, some]) if by_columns else (some, every, a[some])


def _moduli_times(a: Any, size: Any) -> Any:
    """Return |A| X for a matrix on the host."""
    found = np.zeros((len(a), size.shape[1]), size.dtype)
    for rows, columns, block in _blocks(a):
        found[rows] += lapack.product(abs(block), size[columns])
    return found


def _hermitian_moduli_times(a: Any, size: Any) -> Any:
    """Return |A| X for a Hermitian matrix on the host, of which the lower triangle is read."""
    n, found = len(a), np.zeros_like(size)
    step = max(_BLOCK // max(n, 1), 1)
    for start in range(0, n, step):
        here, rest = slice(start, start + step), slice(start + step, None)
        tile, below = abs(np.tril(a[here, here], -1)), abs(a[rest, here])
        own = abs(a.diagonal()[here].real)[:, None]
        found[here] += own * size[here] + tile @ size[here] + tile.T @ size[here]
        if not len(below):
            break
        found[here] += lapack.product(below.T, size[rest])
        found[rest] += lapack.product(below, size[here])
    return found


def componentwise_errors(found: Residual) -> np.ndarray:
    """Return ``|r_i| / (|A| |x| + |b|)_i`` for each entry of a residual, on the host.

    The largest one is the componentwise backward error [1]_: the smallest e for which x solves a
    system exactly that differs from A x = b by at most e in each entry, relatively.  An entry is
    0 where both are 0.

    References
    ----------
    .. [1] W. Oettli and W. Prager, Compatibility of approximate solution of linear equations with
       given error bounds for coefficients and right-hand sides, Numer. Math. 6, 1964.

    Examples
    --------
    >>> componentwise_errors(Residual(np.array([[1.0], [0.0]]), np.array([[4.0], [0.0]]))).T
    array([[0.25, 0.  ]])
    """
    left, moduli = (abs(to_host(part)).astype(np.float64) for part in found)
    with np.errstate(all="ignore"):
        return np.where(left == 0, 0.0, left / moduli)


def normwise_error(anorm: float, x: Any, b: Any, left: Any) -> float:
    """Return the largest ``||r||_1 / (||A||_1 ||x||_1 + ||b||_1)`` of a column of the residual.

    It is the normwise backward error (Rigal and Gaches, J. ACM 14, 1967).

    Examples
    --------
    >>> normwise_error(2.0, np.ones((2, 1)), np.ones((2, 1)), np.array([[1.0], [0.5]]))
    0.25
    """
    with np.errstate(all="ignore"):  # overflow shows in the result
        sums = [to_host(abs(part).sum(axis=0, dtype=np.float64)) for part in (x, b, left)]
        errors = sums[2] / (anorm * sums[0] + sums[1])
        return float(np.where(sums[2] == 0, 0.0, errors).max(initial=0.0))


def forward_error_bound(solve: Callable[[Any, int], Any], x: Any, found: Residual) -> float:
    """Estimate a bound of the relative error of X, ``max |x - x*| / max |x|`` in each column.

    As in LAPACK's ``xGERFS``, the norm of ``|A^-1| (|r| + (n + 1) eps (|A| |x| + |b|))``, where
    the second part is for the rounding of r.  Of several columns the largest entries, each over
    the column's largest of X, are taken together, in one estimate: a bound for all of them.  On
    the host the estimator is LAPACK's, of four to eleven solves; on a GPU it takes three.

    Parameters
    ----------
    solve : callable
        Solves with A, or for `trans` = 2 with A^H; takes columns and `trans`.
    x : array, shape (n, p)
        The solution.
    found : Residual
        Its residual.

    Examples
    --------
    >>> exact = Residual(np.zeros((2, 1)), np.array([[4.0], [8.0]]))
    >>> bound = forward_error_bound(lambda b, trans: b / [[2.0], [4.0]], np.ones((2, 1)), exact)
    >>> round(bound / float(np.finfo(float).eps), 6)  # 3 eps / 2 times 2
    3.0
    """
    xp, n = array_module(x), len(x)
    rounding = (n + 1) * float(np.finfo(x.dtype).eps) / 2
    with np.errstate(all="ignore"):  # overflow gives a bound that is not finite
        sizes = abs(x).max(axis=0)
        weights = (abs(found.left) + rounding * found.moduli) / xp.where(sizes > 0, sizes, 1)
        # Its norm of A^-1 diag(weights) by rows is the 1-norm of the adjoint.
        weight = weights.max(axis=1)[:, None]
        scale = float(weight.max())
        if not 0 < scale < np.inf:
            return scale
        weight = (weight / scale).astype(x.dtype)
        estimate = norms.estimate_norm1 if is_device_array(x) else estimate_norm1
        norm = estimate(x, lambda y: weight * solve(y, 2), lambda y: solve(weight * y, 0))
        return scale * float(norm)
