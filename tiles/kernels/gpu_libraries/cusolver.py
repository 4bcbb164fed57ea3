"""cuSOLVER's routines on whole matrices: what one tile takes, products with Q, singular values.

LU of small matrices is a kernel of our own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.queue import block
from hetero_la.tiles.kernels.gpu_libraries import resident_lu
from hetero_la.tiles.kernels.spec import LETTER

#: Names of the vectors, each with the number of the only step, and the vectors, on the GPU.
Vectors = dict[tuple[str, int], Array]
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


def _cusolver(
    routine: str, dtype: np.dtype, arguments: tuple[int, ...], *results: int, info: int = 0
) -> None:
    """Call a routine of cuSOLVER; `results` are its arguments that do not size its workspace.

    `info` is the address of LAPACK's info; 0 if nobody reads it.
    """
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusolver

    name, handle = LETTER[dtype.char] + routine, device.get_cusolver_handle()
    size = getattr(cusolver, name + "_bufferSize")(handle, *arguments)
    work = cupy.empty(max(size, 1), dtype)
    if not info:
        unread = cupy.empty(1, np.int32)
        info = unread.data.ptr
    if routine == "getrf":  # it has no argument for the workspace's size
        getattr(cusolver, name)(handle, *arguments, work.data.ptr, *results, info)
    else:
        getattr(cusolver, name)(handle, *arguments, *results, work.data.ptr, size, info)


def lu(a: Array, b: Array | None = None) -> Vectors:
    """Overwrite A with L and U: small matrices in one launch of a kernel of ours."""
    if resident_lu.is_resident(a.shape, a.dtype):
        found = resident_lu.getrf(a)
    else:
        found = _getrf(a)
        found[:-1] -= 1
    return {("ipiv", 0): found[:-1], ("info", 0): found[-1:]}


def _getrf(a: Array) -> Array:
    """Overwrite A with L and U; return the row interchanges, from 1 on, and info behind them."""
    import cupy

    A, found = block(a), cupy.empty(min(a.shape) + 1, np.int32)
    _cusolver(
        "getrf", a.dtype, (*a.shape, A.pointer, A.ld), found.data.ptr,
        info=found[-1:].data.ptr,
    )  # fmt: skip
    return found


def _getrs(a: Array, ipiv: Array, b: Array, *, adjoint: bool = False) -> None:
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusolver

    A, B, unread = block(a), block(b), cupy.empty(1, np.int32)
    letter = (1 if a.dtype.kind == "f" else 2) if adjoint else 0
    getattr(cusolver, LETTER[a.dtype.char] + "getrs")(
        device.get_cusolver_handle(), letter, *b.shape, A.pointer, A.ld, ipiv.data.ptr,
        B.pointer, B.ld, unread.data.ptr,
    )  # fmt: skip


def lu_solve(a: Array, piv: Array, b: Array, *, adjoint: bool) -> None:
    """Overwrite B with A^-1 B or A^-H B, from L and U and the row interchanges."""
    _getrs(a, piv + np.int32(1), b, adjoint=adjoint)


def cholesky(a: Array, b: Array | None = None) -> Vectors:
    """Overwrite the lower triangle of A with L."""
    return {("info", 0): _potrf(a)}


def _potrf(a: Array) -> Array:
    import cupy

    A, info = block(a), cupy.empty(1, np.int32)
    _cusolver("potrf", a.dtype, (_LOWER, len(a), A.pointer, A.ld), info=info.data.ptr)
    return info


def qr(a: Array, b: Array | None = None) -> Vectors:
    """Overwrite A with its packed factors, and B, if given, with Q^H B."""
    tau = _geqrf(a)
    if b is not None and b.size:
        multiply_by_q(a[:, : len(tau)], tau, b, adjoint=True)
    return _qr_vectors(tau)


def _geqrf(a: Array) -> Array:
    import cupy

    A, tau = block(a), cupy.empty(min(a.shape), a.dtype)
    _cusolver("geqrf", a.dtype, (*a.shape, A.pointer, A.ld), tau.data.ptr)
    return tau


def _qr_vectors(tau: Array) -> Vectors:
    return {("tau", 0): tau, ("method", 0): np.zeros(1, np.int32)}


def qr_and_q(a: Array, b: Array) -> Vectors:
    """Overwrite A with its packed factors, and B with the first columns of Q."""
    tau = _geqrf(a)
    order = len(tau)
    b[:, :order] = a[:, :order]
    B = block(b)
    routine = "orgqr" if a.dtype.kind == "f" else "ungqr"
    _cusolver(routine, a.dtype, (*b.shape, order, B.pointer, B.ld, tau.data.ptr))
    return _qr_vectors(tau)


def qr_and_lstsq(a: Array, b: Array) -> Vectors:
    """Overwrite A with its packed factors, and B with X, and below it the rest of Q^H B."""
    found, n = qr(a, b), a.shape[1]
    solve_upper(a[:n], b[:n], adjoint=False)
    return found


def qr_and_minimum_norm(a: Array, b: Array) -> Vectors:
    """Overwrite A with its packed factors, and B with the shortest X of A^H X = B."""
    tau, n = _geqrf(a), a.shape[1]
    solve_upper(a[:n], b[:n], adjoint=True)
    multiply_by_q(a[:, : len(tau)], tau, b, adjoint=False)
    return _qr_vectors(tau)


def solve_upper(a: Array, b: Array, *, adjoint: bool) -> None:
    """Overwrite B with R^-1 B or R^-H B, R the upper triangle of A."""
    from cupyx.scipy.linalg import solve_triangular

    b[...] = solve_triangular(a, b, trans=2 if adjoint else 0, check_finite=False)


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


def _compared_lu(a: Array, b: Array | None) -> None:
    found = _getrf(a)
    if b is not None:
        _getrs(a, found, b if b.ndim == 2 else b[:, None])


def _compared_cholesky(a: Array, b: Array | None) -> None:
    from cupyx.scipy.linalg import solve_triangular

    _potrf(a)
    if b is not None:
        y = solve_triangular(a, b, lower=True, overwrite_b=True, check_finite=False)
        solve_triangular(a, y, trans=2, lower=True, overwrite_b=True, check_finite=False)


def _compared_qr(a: Array, b: Array | None) -> None:
    import cupy

    tau = _geqrf(a)
    if b is not None:
        c = cupy.asfortranarray(b[:, None] if b.ndim == 1 else b)
        multiply_by_q(a[:, : len(tau)], tau, c, adjoint=True)
        solve_upper(a[: len(tau), : len(tau)], c[: len(tau)], adjoint=False)


_LIBRARY_ROUTINES: dict[str, Callable[[Any, Any], None]] = {
    "getrf": _compared_lu,
    "getrf_nopiv": _compared_lu,
    "potrf": _compared_cholesky,
    "geqrf": _compared_qr,
}
