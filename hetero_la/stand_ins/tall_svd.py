"""Singular value decompositions of tall and wide matrices, by QR and the decomposition of R."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.api.host_arrays import Work
from hetero_la.api.qr import pad_with_zero_rows, qr_factor
from hetero_la.api.qr_factors import QRFactors
from hetero_la.api.stacks import array_function
from hetero_la.numerics.range_scaling import scaling_exponent, times_power_of_two
from hetero_la.tiles.arrays.transfer import to_device_of, to_host

#: Ratio of rows to columns from which LAPACK's xGESDD begins with a QR factorization, too.
_TALL = 11 / 6


def _values(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    return _work(m, n, 0, min(m, n))


def _vectors(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    k = min(m, n)
    return _work(m, n, k, (m + n + 1) * k)


def _inverse(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    return _work(m, n, min(m, n), m * n)


def _work(m: int, n: int, columns: int, results: int) -> Work | None:
    """Return what a GPU does; the decomposition of R, for which it waits, is always the host's."""
    if max(m, n) < _TALL * min(m, n):
        return None
    return Work("qr", columns, results, known=(("overwrite_a", True),), turned=m < n)


@array_function(None, _values, stacks=False, a=2)
def singular_values(a: Any, overwrite_a: bool = False) -> np.ndarray:
    """Compute the singular values of a matrix.

    Parameters
    ----------
    a : array, shape (m, n)
        NumPy or CuPy array of float32, float64, complex64 or complex128, not empty; with at least
        11/6 times as many rows as columns, or columns as rows, a NumPy array may go to a GPU.
    overwrite_a : bool, optional
        Whether the factors may take the place of `a`.

    Returns
    -------
    array, shape (min(m, n),)
        The values, the largest first.

    Raises
    ------
    numpy.linalg.LinAlgError
        If LAPACK's iteration does not converge, for example because of a NaN.

    Examples
    --------
    >>> singular_values(np.array([[3.0], [4.0]]))
    array([5.])
    """
    _, r, up = _triangle(a, overwrite_a)
    return times_power_of_two(np.linalg.svd(r, compute_uv=False), -up)


@array_function(None, _vectors, stacks=False, a=2)
def svd(a: Any, overwrite_a: bool = False) -> tuple[Any, np.ndarray, Any]:
    """Compute the singular value decomposition A = U diag(s) V^H.

    See `singular_values` for parameters and errors.

    Returns
    -------
    u : array, shape (m, k)
        Left singular vectors, on the device of `a`; k = min(m, n).
    s : array, shape (k,)
        Singular values, the largest first.
    vh : array, shape (k, n)
        Right singular vectors, conjugated, in rows.

    Examples
    --------
    >>> u, s, vh = svd(np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    >>> s
    array([5., 2.])
    >>> np.allclose((u * s) @ vh, [[3, 0], [4, 0], [0, 2], [0, 0]])
    True
    """
    factors, r, up = _triangle(a, overwrite_a)
    u, s, vh = np.linalg.svd(r)
    long = _q_times(factors, u)
    s = times_power_of_two(s, -up)
    return (vh.T, s, long.T) if _is_wide(a) else (long, s, vh)


@array_function(None, _inverse, stacks=False, a=2)
def pinv(a: Any, cond: float, overwrite_a: bool = False) -> Any:
    """Compute the pseudoinverse of a matrix.

    See `singular_values` for other parameters and errors.

    Parameters
    ----------
    cond : float
        Singular values up to this fraction of the largest count as zeros.

    Returns
    -------
    array, shape (n, m)
        The pseudoinverse, on the device of `a`.

    Examples
    --------
    >>> pinv(np.array([[4.0], [0.0]]), 1e-15)
    array([[0.25, 0.  ]])
    """
    factors, r, up = _triangle(a, overwrite_a)
    u, s, vh = np.linalg.svd(r)
    rank = int((s > cond * s[0]).sum())
    long = _q_times(factors, (u[:, :rank] / s[:rank]) @ vh[:rank])
    found = long.conj() if _is_wide(a) else long.conj().T
    return times_power_of_two(found, up)


def _is_wide(a: Any) -> bool:
    return bool(len(a) < a.shape[1])


def _triangle(a: Any, overwrite_a: bool) -> tuple[QRFactors, np.ndarray, int]:
    """Factor A, or A^T for m < n, scaled by 2 to a power: return the factors, R and that power."""
    up = scaling_exponent(a)
    tall = times_power_of_two(a.T if _is_wide(a) else a, up)
    factors = qr_factor(tall, overwrite_a, False)
    return factors, to_host(factors.r), up


def _q_times(factors: QRFactors, c: np.ndarray) -> Any:
    """Return the product of Q and a small matrix, on the device of Q."""
    long = pad_with_zero_rows(to_device_of(factors.qr, c), len(factors.qr))
    return factors.multiply(long, check_finite=False)
