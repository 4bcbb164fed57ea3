"""Iterative refinement of solutions with a large backward error, as in LAPACK's ``xGERFS``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg.blas import dasum

from hetero_la.numerics.conditioning import enqueued_norm1, random_weights
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_host
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.gpu_libraries import norms

#: Most steps, besides one taken ahead; they end sooner once the backward error is small enough.
_STEPS = 3

#: Up to this fraction of n, and always one, right-hand sides are all refined until the error is at
#: rounding level: on a GPU, where the steps are only enqueued; and on the host and in stacks, where
#: such a step takes about a tenth of the factorization.
_FEW, _FEWER = 1 / 8, 1 / 64

#: With more right-hand sides, those with a backward error above this many eps are refined: the
#: error ratio's limit is 15 eps (30 units of rounding).
_ENOUGH = 12

#: Combined backward error of an inverse's columns, over n eps, up to which it is that of rounding:
#: 0.05 to 0.15 for random matrices, up to 1 for diagonally dominant ones, whose columns' errors
#: are in different rows, and 1e4 and more where it was lost.
_COMBINED = 2

#: Columns per group in the first check, and in the second one, of the groups that failed the first.
_GROUPS = (8, 2)

#: Up to this order, and on the host up to so many multiplications, checking groups takes longer
#: than the residual of all columns.
_SMALL, _FEW_PRODUCTS = 128, 1 << 22


def refine(
    a: Any, anorm: float, solve: Callable[[Any], Any], b: Any, x: Any, rcond: float = 0.0
) -> Any:
    """Improve X where its backward error is above a few units of rounding.

    A step costs ``O(n^2 nrhs)``: the residual ``R = B - A X`` in working precision,
    ``A D = R`` from the factors, ``X + D``.  In working precision this makes the
    backward error small, not the forward error [1]_.  If the condition is at most 1 / sqrt(eps),
    and the error at most eps^(3/4), one step does, and is not checked.

    One right-hand side is always refined.  Of more than n / 64 on the host, and n / 8 on a GPU,
    with which a step would take a notable part of the time of factoring, only those are refined
    whose error is close to what error ratios allow.  If there are many, they are found from the
    residuals of random combinations of eight columns, and then of two; if a column is found, all
    others are checked one by one.

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
    rcond : float, optional
        Reciprocal condition number, if it is known; it may be too large by a factor of about n,
        with which a step still divides errors by 100 at least.

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
    n, nrhs = x.shape
    if not x.size:
        return x
    on_gpu = is_device_array(x)
    few = nrhs <= max(1, n * (_FEW if on_gpu else _FEWER))
    small = n <= _SMALL or (not on_gpu and n * n * nrhs <= _FEW_PRODUCTS)
    if small and not few and not on_gpu and _are_accurate_together(a, anorm, b, x):
        return x
    if few or small:
        sure = _needs_one_step(rcond, x.dtype)
        _refine_in_place(a, anorm, solve, b, x, 1 if few else _ENOUGH, sure)
        return x
    suspect = np.arange(nrhs)
    for width in _GROUPS:
        suspect = _columns_to_refine(a, anorm, b, x, suspect, width)
    step = int(_FEW * n)  # all at once would take memory for several copies of X
    for chosen in suspect, np.setdiff1d(np.arange(nrhs), suspect):
        needed = False
        for start in range(0, len(chosen), step):
            columns = array_module(x).asarray(chosen[start : start + step])
            part = x[:, columns]
            if _refine_in_place(a, anorm, solve, b[:, columns], part, _ENOUGH):
                x[:, columns], needed = part, True
        if not needed:
            break
    return x


def tolerance(n: int, nrhs: int, dtype: Any) -> float:
    """Return the backward error above which solutions with a stack's matrices are refined.

    Examples
    --------
    >>> tolerance(32, 1, "float64"), tolerance(32, 2, "float32")
    (2.220446049250313e-16, 1.430511474609375e-06)
    """
    return (1 if nrhs <= max(1, _FEWER * n) else _ENOUGH) * float(np.finfo(dtype).eps)


def step_ahead(a: Any, anorm: Any, solve: Callable[[Any], Any], b: Any, x: Any) -> Any:
    """Take the step with which `refine` begins on a GPU, and return the backward error then.

    Both are only enqueued.  With more than n / 8 right-hand sides, for which `refine` looks first,
    nothing is done, and the error is None.  See `refine` for the parameters.

    Examples
    --------
    >>> a, b, x = 2 * np.eye(9), np.full((9, 1), 4.0), np.full((9, 1), 2.1)
    >>> error = step_ahead(a, 2.0, lambda residual: residual / 2, b, x)
    >>> bool(error < 1e-15), x[0]
    (True, array([2.]))
    """
    n, nrhs = x.shape
    if nrhs > _FEW * n:
        return None
    x += solve(residual_of(a, x, b))
    return solution_error(a, anorm, b, x)


def is_settled(error: Any, rcond: float, dtype: Any) -> bool:
    """Return whether the error after one step is small, and the condition needs no more steps.

    Examples
    --------
    >>> is_settled(2e-16, 0.1, "float64"), is_settled(2e-16, 1e-9, "float64")
    (True, False)
    """
    return _needs_one_step(rcond, dtype) and is_small(error, dtype)


def _needs_one_step(rcond: float, dtype: Any) -> bool:
    return rcond >= float(np.finfo(dtype).eps) ** 0.5


def is_accurate(a: Any, anorm: float, b: Any, x: Any, *, hermitian: bool = False) -> bool:
    """Return whether the backward error of each column is that of rounding.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix; if `hermitian`, its lower triangle.
    anorm : float
        Its 1-norm.
    b, x : array, shape (n, nrhs)
        Right-hand sides and solution.

    Examples
    --------
    >>> a, b = np.array([[2.0, 9.0], [1.0, 2.0]]), np.array([[3.0], [3.0]])
    >>> is_accurate(a, 3.0, b, np.ones((2, 1)), hermitian=True)
    True
    >>> is_accurate(a, 3.0, b, np.full((2, 1), 1.01), hermitian=True)
    False
    """
    return is_small(solution_error(a, anorm, b, x, hermitian=hermitian), x.dtype)


def is_small(error: Any, dtype: Any) -> bool:
    """Return whether a backward error is that of rounding.

    Examples
    --------
    >>> is_small(1e-15, "float64"), is_small(1e-12, "float64")
    (True, False)
    """
    return float(error) <= _ENOUGH * float(np.finfo(dtype).eps)


def solution_error(a: Any, anorm: Any, b: Any, x: Any, *, hermitian: bool = False) -> Any:
    """Compute `backward_error` of a solution; see `is_accurate` for the parameters.

    Examples
    --------
    >>> float(solution_error(np.eye(2), 1.0, np.ones((2, 1)), np.full((2, 1), 2.0)))
    0.5
    """
    with np.errstate(all="ignore"):  # overflow shows in the result
        return backward_error(anorm, x, residual_of(a, x, b, hermitian=hermitian))


def inverse_error(a: Any, x: Any) -> Any:
    """Compute the norm of the residual of an inverse X, times a random vector.

    The columns' errors, each over the norm of its column, do not cancel in a sum with random signs.
    On a GPU the norm stays there, and is not waited for.

    Examples
    --------
    >>> bool(inverse_error(np.diag([2.0, 4.0]), np.diag([0.5, 0.25])) < 1e-15)
    True
    """
    n = len(x)
    with np.errstate(all="ignore"):  # overflow shows in the result
        if is_device_array(x):
            combined = norms.signed_weights(x)
        else:
            signs = np.random.default_rng(n).choice([-1, 1], n)
            combined = (signs / np.abs(x).sum(axis=0, dtype=float)).astype(x.dtype)[:, None]
        return enqueued_norm1(residual_of(a, x @ combined, combined))


def inverse_is_accurate(error: Any, anorm: float, like: Any) -> bool:
    """Return whether `inverse_error` says that the columns of an inverse have rounding errors.

    Parameters
    ----------
    error : float
        The error.
    anorm : float
        1-norm of the matrix.
    like : array, shape (n, n)
        An array of its dtype.

    Examples
    --------
    >>> a = np.array([[2.0, 1.0], [1.0, 1.0]])
    >>> x = np.array([[1.0, -1.0], [-1.0, 2.0]])
    >>> [inverse_is_accurate(inverse_error(a, c * x), 3.0, a) for c in (1, 1.001)]
    [True, False]
    """
    return float(error) <= _COMBINED * len(like) * float(np.finfo(like.dtype).eps) * anorm


def refine_stack(
    a: np.ndarray, anorm: np.ndarray, solve: Callable[[int, Any], Any], b: np.ndarray,
    x: np.ndarray, rconds: np.ndarray,
) -> None:  # fmt: skip
    """Improve each X of a stack as `refine` does; `solve` also takes the number of the matrix.

    Parameters
    ----------
    a : array, shape (count, n, n)
        The matrices.
    anorm : array, shape (count,)
        Their 1-norms.
    b, x : array, shape (count, n, nrhs)
        Right-hand sides and solutions; `x` is overwritten.
    rconds : array, shape (count,)
        Reciprocal condition numbers; what has less than eps is no solution, and stays.

    Examples
    --------
    >>> a, b = np.eye(2)[None] * [[[2.0]], [[4.0]]], np.ones((2, 2, 1))
    >>> x = np.array([[[0.5], [0.5]], [[0.25], [0.2]]])
    >>> refine_stack(a, np.array([2.0, 4.0]), lambda i, r: r / (2.0, 4.0)[i], b, x, np.ones(2))
    >>> x[1].T
    array([[0.25, 0.25]])
    """
    (_, n, nrhs), dtype = x.shape, x.dtype
    enough, sure = tolerance(n, nrhs, dtype), rconds >= np.finfo(dtype).eps
    with np.errstate(all="ignore"):  # overflow shows in the result
        given, solved, sizes = b, x, np.ones((len(x), 1))
        if nrhs > 1:  # see `_are_accurate_together`
            weights = _weights_of(x)
            given, solved = b @ weights, x @ weights
        else:
            sizes = np.abs(x).sum(axis=1, dtype=np.float64)
        errors = np.abs(given - a @ solved).sum(axis=1, dtype=np.float64)
        small = (errors <= enough * anorm[:, None] * sizes).all(axis=1)
    for i in np.flatnonzero(~small & sure).tolist():
        x[i] = refine(a[i], float(anorm[i]), partial(solve, i), b[i], x[i], float(rconds[i]))


def residual_of(a: Any, x: Any, b: Any, *, hermitian: bool = False) -> Any:
    """Return B - A X, where the arrays are; if `hermitian`, from the lower triangle of A.

    Examples
    --------
    >>> residual_of(2 * np.eye(2), np.ones((2, 1)), np.full((2, 1), 3.0)).ravel()
    array([1., 1.])
    """
    if hermitian:
        on_host, on_gpu = lapack.hermitian_residual, norms.hermitian_residual
    else:
        on_host, on_gpu = lapack.residual, norms.residual
    return on_gpu(a, x, b) if is_device_array(a) else on_host(a, x, b)


def _refine_in_place(
    a: Any, anorm: float, solve: Callable[[Any], Any], b: Any, x: Any, enough: float,
    sure: bool = False,
) -> bool:  # fmt: skip
    """Refine X until its backward error is at most `enough` eps; return whether it changed.

    `sure` says that the condition is at most 1 / sqrt(eps).
    """
    # The first step nearly always pays where one eps is wanted: a GPU takes it without a wait.
    at_once = enough == 1 and is_device_array(x)
    eps = float(np.finfo(x.dtype).eps)
    enough *= eps
    previous: Any = np.inf
    for step in range(_STEPS):
        left = residual_of(a, x, b)  # what overflows there is checked below
        if sure and at_once:
            x += solve(left)
            return True
        error = backward_error(anorm, x, left)
        # Done, or no longer getting better, or NaN.
        if (step or not at_once) and not enough < float(error) < float(previous) / 2:
            break
        previous = error
        x += solve(left)
        # The next error is about this one's square times the condition.
        if sure and float(error) <= eps**0.75:
            break
    return bool(previous < np.inf)


def backward_error(anorm: Any, x: Any, residual: Any) -> Any:
    """Compute the largest backward error of a column; a common norm would hide small columns.

    On a GPU it stays there, as an array, and so may the norm of the matrix.

    Examples
    --------
    >>> backward_error(2.0, np.ones((2, 1)), np.full((2, 1), 1e-3))
    0.0005
    """
    if is_device_array(x):
        return norms.backward_error(anorm, x, residual)
    if x.shape[1] == 1:  # for a small matrix each call counts
        size = anorm * _sum_of_moduli(x[:, 0])
        return _sum_of_moduli(residual[:, 0]) / size if size else 0.0
    with np.errstate(all="ignore"):  # overflow shows in the result
        sums, errors = (np.abs(one).sum(axis=0, dtype=np.float64) for one in (x, residual))
        sizes = anorm * sums
        return float(np.where(sizes == 0, 0, errors / sizes).max())


def _sum_of_moduli(x: np.ndarray) -> float:
    return float(dasum(x) if x.dtype == np.float64 else np.abs(x).sum(dtype=np.float64))


def _are_accurate_together(a: np.ndarray, anorm: float, b: np.ndarray, x: np.ndarray) -> bool:
    """Return whether a combination of all columns has a small residual (see below)."""
    with np.errstate(all="ignore"):  # overflow counts as not small
        weights = _weights_of(x)
        left = lapack.residual(a, x @ weights, b @ weights)
        error = np.abs(left).sum(dtype=np.float64)
        return bool(error <= _ENOUGH * float(np.finfo(x.dtype).eps) * anorm)


def _weights_of(x: np.ndarray) -> np.ndarray:
    """Return weights with which to add columns, of the size of their inverse 1-norms.

    Columns may be equal: the random weights do not cancel.
    """
    sizes, weights = np.abs(x).sum(axis=-2, dtype=np.float64), random_weights(x.shape[-1])
    found: np.ndarray = np.where(sizes > 0, weights / sizes, weights).astype(x.dtype)[..., None]
    return found


def _columns_to_refine(
    a: Any, anorm: float, b: Any, x: Any, columns: np.ndarray, width: int
) -> np.ndarray:
    """Return the members of `columns` in groups whose combined residual is not small.

    Rounding errors of the columns of a group do not cancel in a sum with random weights, but
    add up in the root mean square: the sum's residual is hardly ever below that of any column.
    """
    xp, groups = array_module(x), -(-len(columns) // width)
    if not groups:
        return columns
    solved, given = (xp.zeros((len(x), groups), x.dtype, order="F") for _ in "xb")
    random = random_weights(len(columns))
    with np.errstate(all="ignore"):  # overflow counts as not small
        for start in range(0, len(columns), groups):
            some = xp.asarray(columns[start : start + groups])
            part, count = x[:, some], len(some)
            sizes = xp.abs(part).sum(axis=0, dtype=np.float64)
            weights = xp.asarray(random[start : start + count])
            weights = xp.where(sizes > 0, weights / sizes, 0).astype(x.real.dtype)
            solved[:, :count] += part * weights
            given[:, :count] += b[:, some] * weights
        sums = xp.abs(residual_of(a, solved, given)).sum(axis=0, dtype=np.float64)
        small = to_host(sums <= _ENOUGH * float(np.finfo(x.dtype).eps) * anorm)
    return columns[~np.resize(small, len(columns))]
