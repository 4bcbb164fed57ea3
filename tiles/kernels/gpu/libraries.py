"""Libraries' routines on whole matrices: products with Q, singular values, solves, comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.queue import block
from hetero_la.tiles.kernels.spec import LETTER

_LEFT, _LOWER = 0, 0
_MOST = 2**29  # most entries of reflectors in a call of ormqr, which fails for 2^30


def multiply_by_q(qr: Array, tau: Array, c: Array, *, adjoint: bool) -> None:
    """Compute C <- Q C or Q^H C in place, on the current stream.

    Parameters
    ----------
    qr : cupy.ndarray, shape (m, k)
        Householder vectors below the diagonal; column-major.
    tau : cupy.ndarray, shape (k,)
        Their scalars.
    c : cupy.ndarray, shape (m, p)
        The matrix C, column-major.
    adjoint : bool
        Whether to multiply by Q^H instead of Q.
    """
    m, k = len(c), len(tau)
    starts = range(0, k, max(_MOST // m, 1))
    for first in starts if adjoint else reversed(starts):
        last = min(first + starts.step, k)
        _multiply_by_some(qr[first:, first:last], tau[first:last], c[first:], adjoint)


def _multiply_by_some(qr: Array, tau: Array, c: Array, adjoint: bool) -> None:
    real = c.dtype.kind == "f"
    letter = (1 if real else 2) if adjoint else 0
    V, C = block(qr), block(c)
    _cusolver(
        "ormqr" if real else "unmqr", c.dtype,
        (_LEFT, letter, *c.shape, len(tau), V.pointer, V.ld, tau.data.ptr, C.pointer, C.ld),
    )  # fmt: skip


def _cusolver(routine: str, dtype: np.dtype, arguments: tuple[int, ...], *results: int) -> None:
    """Call a routine of cuSOLVER; `results` are its arguments that do not size its workspace."""
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusolver

    name, handle = LETTER[dtype.char] + routine, device.get_cusolver_handle()
    size = getattr(cusolver, name + "_bufferSize")(handle, *arguments)
    work, info = cupy.empty(max(size, 1), dtype), cupy.empty(1, np.int32)
    getattr(cusolver, name)(handle, *arguments, *results, work.data.ptr, size, info.data.ptr)


def solve_tridiagonal(lower: Array, diagonal: Array, upper: Array, b: Array) -> Array:
    """Solve A X = B for a tridiagonal matrix with pivoting (cuSPARSE, ``gtsv2``).

    Parameters
    ----------
    lower, diagonal, upper : cupy.ndarray, shape (n,)
        Rows of LAPACK's band storage: entries (j + 1, j), (j, j) and (j - 1, j); n is at least 3.
    b : cupy.ndarray, shape (n, nrhs)
        Right-hand sides.

    Returns
    -------
    cupy.ndarray, shape (n, nrhs)
        X, column-major; of a singular matrix, anything.
    """
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse

    x = b.copy(order="F")
    # cuSPARSE numbers the entries beside the diagonal by rows: the first and the last are zero.
    below, above = cupy.zeros_like(diagonal), cupy.zeros_like(diagonal)
    below[1:], above[:-1] = lower[:-1], upper[1:]
    diagonal = cupy.ascontiguousarray(diagonal)
    name, (n, nrhs) = LETTER[x.dtype.char] + "gtsv2", x.shape
    pointers = [array.data.ptr for array in (below, diagonal, above, x)]
    arguments = (device.get_cusparse_handle(), n, nrhs, *pointers, n)
    size = getattr(cusparse, name + "_bufferSizeExt")(*arguments)
    work = cupy.empty(max(size, 1), np.uint8)
    getattr(cusparse, name)(*arguments, work.data.ptr)
    return x


def svd(a: Array, compute_uv: bool) -> Any:
    """Return singular values, the largest first; with `compute_uv`, as `numpy.linalg.svd` does.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the iteration does not converge.
    """
    import cupy
    import cupyx

    with cupyx.errstate(linalg="raise"):  # by default, CuPy does not check
        return cupy.linalg.svd(a, compute_uv=compute_uv)


def cusolver_seconds(kernel: str, a: np.ndarray, b: np.ndarray | None = None) -> float:
    """Return the time that cuSOLVER takes to factor, and to solve, with the data on the GPU.

    Parameters
    ----------
    kernel : {"getrf", "getrf_nopiv", "potrf", "geqrf"}
        Kernel of the factorization; cuSOLVER's LU always pivots.
    a : numpy.ndarray, shape (m, n)
        The matrix.
    b : numpy.ndarray, optional
        Right-hand sides, for the routines that solve.
    """
    import cupy

    a = cupy.asfortranarray(cupy.asarray(a))
    b = None if b is None else cupy.asfortranarray(cupy.asarray(b))
    run = _LIBRARY_ROUTINES[kernel]
    small = min(64, *a.shape)
    run(cupy.eye(small, dtype=a.dtype, order="F"), None if b is None else b[:small].copy())
    cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    run(a, b)
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - began


def _lu(a: Array, b: Array | None) -> None:
    from cupyx.scipy.linalg import lu_factor, lu_solve

    factors = lu_factor(a, overwrite_a=True, check_finite=False)
    if b is not None:
        lu_solve(factors, b, overwrite_b=True, check_finite=False)


def _cholesky(a: Array, b: Array | None) -> None:
    from cupyx.scipy.linalg import solve_triangular

    _cusolver("potrf", a.dtype, (_LOWER, len(a), a.data.ptr, len(a)))
    if b is not None:
        y = solve_triangular(a, b, lower=True, overwrite_b=True, check_finite=False)
        solve_triangular(a, y, trans=2, lower=True, overwrite_b=True, check_finite=False)


def _qr(a: Array, b: Array | None) -> None:
    import cupy
    from cupyx.scipy.linalg import solve_triangular

    (m, n), k = a.shape, min(a.shape)
    tau = cupy.empty(k, a.dtype)
    _cusolver("geqrf", a.dtype, (m, n, a.data.ptr, m), tau.data.ptr)
    if b is not None:
        c = cupy.asfortranarray(b[:, None] if b.ndim == 1 else b)
        multiply_by_q(a[:, :k], tau, c, adjoint=True)
        solve_triangular(a[:k, :k], c[:k], check_finite=False)


_LIBRARY_ROUTINES: dict[str, Callable[[Any, Any], None]] = {
    "getrf": _lu,
    "getrf_nopiv": _lu,
    "potrf": _cholesky,
    "geqrf": _qr,
}
