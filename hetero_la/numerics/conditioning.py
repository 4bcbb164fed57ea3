"""Matrix 1-norms, and reciprocal condition numbers from factors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs
from scipy.sparse.linalg import LinearOperator, onenormest

from hetero_la.numerics.triangles import solve_with_triangle
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, linalg_module, to_host

#: Elements per block, so that their moduli stay in cache.
_BLOCK = 1 << 17


def norm1(a: Any) -> float:
    """Compute the 1-norm in double precision, without a second array of the size of `a`.

    Examples
    --------
    >>> norm1(np.array([[1.0, -2.0], [3.0, 4.0]]))
    6.0
    """
    xp, (m, n) = array_module(a), a.shape
    if not a.size:
        return 0.0
    if is_device_array(a):
        step = max((1 << 22) // m, 1)
        parts = (xp.abs(a[:, j : j + step]) for j in range(0, n, step))
        return max(float(part.sum(axis=0, dtype=np.float64).max()) for part in parts)
    by_rows = a.strides[1] < a.strides[0]
    threads = min(
        os.cpu_count() or 1, 8, -(-a.size // _BLOCK)
    )  # one thread does not saturate the memory
    pieces = np.array_split(np.arange(m if by_rows else n), threads)
    ranges = [range(piece[0], piece[-1] + 1) for piece in pieces if len(piece)]
    sums = _row_sums if by_rows else _column_sums
    if len(ranges) == 1:
        return float(sums(a, ranges[0]).max())
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(functools.partial(sums, a), ranges))
    with np.errstate(over="ignore"):
        return float(np.sum(found, axis=0).max() if by_rows else np.concatenate(found).max())


def _row_sums(a: np.ndarray, rows: range) -> np.ndarray:
    """Sum the moduli of each column over the given rows."""
    total, step = np.zeros(a.shape[1]), max(_BLOCK // a.shape[1], 1)
    with np.errstate(over="ignore"):  # infinity is a valid result
        for start in range(rows.start, rows.stop, step):
            total += np.abs(a[start : min(start + step, rows.stop)]).sum(axis=0, dtype=np.float64)
    return total


def _column_sums(a: np.ndarray, columns: range) -> np.ndarray:
    """Sum the moduli of each of the given columns."""
    total, step = np.zeros(len(columns)), max(_BLOCK // a.shape[0], 1)
    for start in range(columns.start, columns.stop, step):
        stop, at = min(start + step, columns.stop), start - columns.start
        with np.errstate(over="ignore"):  # infinity is a valid result
            total[at : at + stop - start] = np.abs(a[:, start:stop]).sum(axis=0, dtype=np.float64)
    return total


def hermitian_norm1(a: Any) -> float:
    """Compute the 1-norm, in double precision, of a Hermitian matrix from its lower triangle."""
    xp, n = array_module(a), a.shape[0]
    sums = xp.zeros(n)
    block = max((1 << 22) // max(n, 1), 1)
    with np.errstate(over="ignore"):  # infinity is a valid result
        for j in range(0, n, block):
            part = xp.tril(xp.abs(a[j:, j : j + block]))
            sums[j : j + block] += part.sum(axis=0, dtype=np.float64)
            sums[j:] += xp.tril(part, -1).sum(axis=1, dtype=np.float64)
    return float(sums.max()) if n else 0.0


def reciprocal_condition(anorm: float, lu: Any, piv: Any) -> float:
    """Estimate 1 / (||A||_1 ||A^-1||_1) from LU factors, in O(n^2) operations.

    LAPACK's ``xGECON`` on the host; on a GPU the same estimator (Higham and Tisseur,
    SIAM J. Matrix Anal. Appl. 21, 2000) over cuSOLVER's solves.

    Parameters
    ----------
    anorm : float
        1-norm of the matrix.
    lu : array, shape (n, n)
        Its packed factors.
    piv : array of int, shape (n,)
        Row interchanges.

    Examples
    --------
    >>> reciprocal_condition(1.0, np.eye(3), np.arange(3))
    1.0
    """
    if not is_device_array(lu):
        (gecon,) = get_lapack_funcs(("gecon",), (lu,))
        return _in_range(anorm, lu, lambda norm: gecon(lu, norm)[0])
    xp, solver = array_module(lu), linalg_module(lu)
    return estimate_reciprocal_condition(
        anorm, lu, lambda b, trans: solver.lu_solve(
            (lu, xp.asarray(piv)), b, trans=trans, check_finite=False
        ),
    )  # fmt: skip


def reciprocal_condition_positive(anorm: float, factor: Any) -> float:
    """Estimate 1 / (||A||_1 ||A^-1||_1) from a lower Cholesky factor (``xPOCON`` on the host).

    Examples
    --------
    >>> reciprocal_condition_positive(4.0, 2 * np.eye(3))
    1.0
    """
    if not is_device_array(factor):
        (pocon,) = get_lapack_funcs(("pocon",), (factor,))
        return _in_range(anorm, factor, lambda norm: pocon(factor, norm, uplo="L")[0])

    def solve(b: Any, trans: int) -> Any:
        y = solve_with_triangle(factor, b, lower=True)
        return solve_with_triangle(factor, y, lower=True, adjoint=True)

    return estimate_reciprocal_condition(anorm, factor, solve)


def reciprocal_condition_upper(r: Any) -> float:
    """Estimate 1 / (||R||_1 ||R^-1||_1) of an upper triangle (``xTRCON`` on the host).

    Examples
    --------
    >>> reciprocal_condition_upper(np.diag([1.0, 0.5]))
    0.5
    """
    if not is_device_array(r):
        (trcon,) = get_lapack_funcs(("trcon",), (r,))
        return float(trcon(r)[0]) if len(r) else np.inf
    anorm = norm1(array_module(r).triu(r))
    return estimate_reciprocal_condition(
        anorm, r, lambda b, trans: solve_with_triangle(r, b, lower=False, adjoint=trans == 2)
    )


def _in_range(anorm: float, factor: Any, estimate: Callable[[float], float]) -> float:
    """Apply LAPACK's estimator to a norm that may overflow in single precision."""
    if not len(factor):
        return np.inf
    norm = min(anorm, float(np.finfo(factor.dtype).max))
    return float(estimate(norm)) * (norm / anorm) if anorm else 0.0


def estimate_reciprocal_condition(
    anorm: float, like: Any, solve: Callable[[Any, int], Any]
) -> float:
    """Estimate 1 / (anorm ||A^-1||_1) from solves with A and, for `trans` = 2, with A^H.

    Parameters
    ----------
    anorm : float
        1-norm of A.
    like : array, shape (n, ...)
        An array of A's order and dtype, on the device on which `solve` expects right-hand sides.
    solve : callable
        Takes right-hand sides, of shape (n, p), and `trans`.

    Examples
    --------
    >>> estimate_reciprocal_condition(2.0, np.eye(2), lambda b, trans: b / [[2.0], [1.0]])
    0.5
    """
    xp, n, dtype = array_module(like), len(like), like.dtype
    if n == 0:
        return np.inf

    def apply(x: np.ndarray, trans: int) -> np.ndarray:
        columns = x.astype(dtype).reshape(n, -1)
        found = to_host(solve(xp.asfortranarray(xp.asarray(columns)), trans))
        return found.reshape(x.shape)

    inverse = LinearOperator(
        (n, n), dtype=dtype,
        matvec=lambda x: apply(x, 0), rmatvec=lambda x: apply(x, 2),
        matmat=lambda x: apply(x, 0), rmatmat=lambda x: apply(x, 2),
    )  # fmt: skip
    with np.errstate(all="ignore"):  # overflow gives a norm that is not finite
        ainvnorm = onenormest(inverse) if n > 4 else np.abs(inverse @ np.eye(n)).sum(axis=0).max()
    return float(1 / (anorm * ainvnorm)) if np.isfinite(ainvnorm) and ainvnorm > 0 else 0.0
