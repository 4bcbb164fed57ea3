"""Least squares with a triangular matrix of any rank, to which QR reduces the general problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.linalg import LinAlgError

from hetero_la.numerics.triangles import solve_with_triangle
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_device_array,
    on_device_of_arrays,
    to_device_of,
    to_host,
)
from hetero_la.tiles.kernels.cpu.lapack import threads_for_reflectors
from hetero_la.tiles.kernels.gpu_libraries.finite import is_finite


@on_device_of_arrays
def square_lstsq(
    a: Any, b: Any, cond: float, driver: str, *, lower: bool = False
) -> tuple[Any, np.int64, Any]:
    """Find the minimum-norm least-squares solution of A X = B for a triangle A.

    Parameters
    ----------
    a : array, shape (n, n)
        A triangular matrix, with zeros in the other triangle.
    b : array, shape (n, nrhs)
        Right-hand sides; on any GPU if `a` is on one.
    cond : float
        Relative bound below which singular values count as zeros, as in LAPACK's drivers.
    driver : {"gelsd", "gelss", "gelsy"}
        LAPACK's driver, on the host.  On a GPU "gelsd" and "gelss" select the rule for the rank,
        and the singular values are cuSOLVER's; cuSOLVER has no "gelsy", so the host solves it.
    lower : bool, optional
        Whether A is lower triangular.

    Returns
    -------
    x : array, shape (n, nrhs)
        X.
    rank : numpy.int64
        Of A.
    s : array, shape (n,), or None
        Singular values, the largest first; None for "gelsy".

    Raises
    ------
    numpy.linalg.LinAlgError
        If the singular value decomposition does not converge.

    Examples
    --------
    >>> x, rank, s = square_lstsq(np.diag([2.0, 0.0]), np.ones((2, 1)), 1e-16, "gelsd")
    >>> x.T, rank, s
    (array([[0.5, 0. ]]), np.int64(1), array([2., 0.]))
    """
    xp, nrhs = array_module(a), b.shape[1]
    b = to_device_of(a, b)
    if not len(a):
        return xp.zeros((0, nrhs), a.dtype), np.int64(0), xp.empty(0)
    require_convergence(a, driver)
    if driver != "gelsy" and is_device_array(a):
        return lstsq_by_svd(a, b, cond, driver, lower=lower)
    right = to_host(b) if nrhs else np.zeros((len(a), 1), a.dtype)  # LAPACK refuses nrhs = 0
    here = to_host(a)
    with threads_for_reflectors(here, right):
        x, _, rank, s = scipy.linalg.lstsq(
            here, right, cond, lapack_driver=driver, check_finite=False
        )
    return xp.asarray(x[:, :nrhs]), np.int64(rank), None if s is None else xp.asarray(s)


def require_convergence(a: Any, driver: str) -> None:
    """Raise LinAlgError if `a` is not finite: LAPACK does not always notice."""
    if driver != "gelsy" and not is_finite(a):
        raise LinAlgError("SVD did not converge in Linear Least Squares")


def lstsq_by_svd(
    a: Any, b: Any, cond: float, driver: str, *, lower: bool
) -> tuple[Any, np.int64, Any]:
    """Solve as `square_lstsq` does, by a singular value decomposition on the device of the arrays.

    Singular vectors take far longer than the values, and are needed only if the rank is not
    full: otherwise X is found by substitution.
    """
    s = _svd(a, False)
    rank = int((s > float(threshold(float(s[0]), cond, driver, a.dtype))).sum())
    if rank == len(a) and a.diagonal().all():
        return solve_with_triangle(a, b, lower=lower), np.int64(rank), s
    u, values, vh = _svd(a, True)
    y = (u[:, :rank].conj().T @ b) / values[:rank, None]
    return vh[:rank].conj().T @ y, np.int64(rank), s


def threshold(largest: Any, cond: float, driver: str, dtype: Any) -> Any:
    """Return the bound up to which singular values count as zeros, as in xLALSD and xGELSS.

    `largest` is the largest of them, or an array of those of several matrices.

    Examples
    --------
    >>> threshold(np.array([4.0, 8.0]), 0.25, "gelsd", "float64")
    array([1., 2.])
    """
    info = np.finfo(dtype)
    if driver == "gelsd" and not 0 < cond < 1:
        cond = float(info.eps) / 2
    return np.maximum(cond * largest, float(info.tiny) if driver == "gelss" else 0.0)


def _svd(a: Any, compute_uv: bool) -> Any:
    if is_device_array(a):
        from hetero_la.tiles.kernels.gpu_libraries.cusolver import svd

        return svd(a, compute_uv)
    return np.linalg.svd(a) if compute_uv else np.linalg.svd(a, compute_uv=False)
