"""Whole routines by LAPACK: what a matrix that needs no tiles takes, in a call or two.

Each function overwrites a column-major matrix, and the columns beside it, with what the routine's
task graph leaves there, and returns the vectors of its one step.  These arrays are whole, so that
SciPy's wrappers work in place; they cost a microsecond, where ctypes (`blas`) takes six.  Some of
the wrappers keep the interpreter's lock: with `threads`, other threads call LAPACK meanwhile, and
ctypes is used instead, except for the smallest matrices.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.blas
import scipy.linalg.lapack

from hetero_la.tiles.kernels.cpu.blas import chars, ints, lapack, real_scalar, triangular, view
from hetero_la.tiles.kernels.cpu.blas_threads import blas_threads, one_thread_if_alone
from hetero_la.tiles.kernels.cpu.cholesky import potrf
from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.spec import LETTER
from hetero_la.tiles.storage.pivots import interchanged

#: Names of the vectors, each with the number of the only step, and the vectors.
Vectors = dict[tuple[str, int], np.ndarray]
#: Order from which potrf takes longer than ctypes.
_LONG = 128
#: Columns of L^-1 that are found at once.
_COLUMNS = 256
#: Columns up to which products of a triangle with each take no longer than trmm.
_FEW = 4
_INFO, _IPIV, _TAU = ("info", 0), ("ipiv", 0), ("tau", 0)
#: Columns that LAPACK factors or applies at once, if the workspace has room for so many.
BLOCK = 64
#: Least and most elements, and most columns or rows, of real matrices to which one thread applies
#: reflectors faster than several, or than two.
_LEAST_REFLECTED, _MOST_REFLECTED, _NARROW, _NARROW_FOR_TWO = 1 << 14, 1 << 18, 256, 150
_UNBOUND = contextlib.nullcontext()
#: LAPACK's info of a matrix that has no failure: of small matrices each call counts.
_REGULAR = np.zeros(1, np.int32)
_REGULAR.flags.writeable = False


@functools.cache
def lapack_function(name: str, letter: str) -> Callable[..., Any]:
    """Return SciPy's wrapper of a function, by its name without the type letter and NumPy's type.

    Examples
    --------
    >>> lapack_function("lange", "d")("1", np.ones((2, 2)))
    2.0
    """
    real = LETTER[letter] in "sd"
    name = {"ormqr": "unmqr", "orgqr": "ungqr"}.get(name, name) if not real else name
    function: Callable[..., Any] = getattr(scipy.linalg.lapack, LETTER[letter] + name)
    return function


@functools.cache
def _blas_function(name: str, letter: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(scipy.linalg.blas, LETTER[letter] + name)
    return function


def residual(a: Array, x: Array, b: Array) -> Array:
    """Return B - A X.

    NumPy's own BLAS has threads besides SciPy's.  For milliseconds after a product they wait for
    more work, and take turns with those of the next factorization, which takes twice as long.

    Examples
    --------
    >>> residual(2 * np.eye(2), np.ones((2, 1)), np.ones((2, 1)))
    array([[-1.],
           [-1.]])
    """
    turned = a.flags.c_contiguous and not a.flags.f_contiguous
    given = a.T if turned else a
    if x.shape[1] == 1:
        gemv = _blas_function("gemv", a.dtype.char)
        y: Array = gemv(-1, given, x[:, 0], 1, b[:, 0], trans=int(turned))
        return y[:, None]
    return _blas_function("gemm", a.dtype.char)(-1, given, x, 1, b, trans_a=turned)


def product(a: Array, x: Array) -> Array:
    """Return A X, by the BLAS that `residual` uses, for the same reason.

    Examples
    --------
    >>> product(2 * np.eye(2), np.ones((2, 1)))
    array([[2.],
           [2.]])
    """
    return residual(a, -x, np.zeros((len(a), x.shape[1]), x.dtype, order="F"))


def hermitian_residual(a: Array, x: Array, b: Array) -> Array:
    """Return B - A X for a Hermitian or symmetric matrix, of which the lower triangle is read.

    Examples
    --------
    >>> a = np.array([[2.0, 9.0], [1.0, 2.0]])
    >>> hermitian_residual(a, np.ones((2, 1)), np.full((2, 1), 3.0)).ravel()
    array([0., 0.])
    """
    kind = "sy" if a.dtype.kind == "f" else "he"
    turned = a.flags.c_contiguous and not a.flags.f_contiguous
    given = a.T if turned else a  # of a Hermitian matrix A^T is the conjugate
    if turned and kind == "he":
        x, b = x.conj(), b.conj()
    if x.shape[1] == 1:
        multiply = _blas_function(f"{kind}mv", a.dtype.char)
        left = multiply(-1, given, x[:, 0], 1, b[:, 0], lower=not turned)[:, None]
    else:
        multiply = _blas_function(f"{kind}mm", a.dtype.char)
        left = multiply(-1, given, x, 1, b, lower=not turned)
    return left.conj() if turned and kind == "he" else left


def triangle_product(
    a: Array, x: Array, *, lower: bool, unit: bool = False, adjoint: bool = False
) -> Array:
    """Return T X or T^H X for a triangle T of a square matrix that is contiguous.

    Examples
    --------
    >>> a = np.array([[1.0, 9.0], [2.0, 3.0]])
    >>> triangle_product(a, np.ones((2, 1)), lower=True, adjoint=True).T
    array([[3., 3.]])
    """
    if a.flags.f_contiguous:
        return _triangle_product(a, x, lower=lower, trans=2 * adjoint, unit=unit)
    # The conjugate of T^H X is that of a transpose, which is contiguous, times that of X.
    if adjoint:
        return _triangle_product(a.T, x.conj(), lower=not lower, trans=0, unit=unit).conj()
    return _triangle_product(a.T, x, lower=not lower, trans=1, unit=unit)


def _triangle_product(a: Array, x: Array, *, lower: bool, trans: int, unit: bool) -> Array:
    """Return T X, T^T X or T^H X for a triangle T of a column-major matrix."""
    if x.shape[1] > _FEW:
        trmm = _blas_function("trmm", a.dtype.char)
        return trmm(1, a, x, lower=lower, trans_a=trans, diag=unit)
    trmv, found = _blas_function("trmv", a.dtype.char), np.empty(x.shape, a.dtype, order="F")
    for column in range(x.shape[1]):
        found[:, column] = trmv(a, x[:, column], lower=lower, trans=trans, diag=unit)
    return found


def _of(a: Array, name: str) -> Callable[..., Any]:
    return lapack_function(name, a.dtype.char)


def hermitian_norm1(a: Array) -> float:
    """Return the 1-norm of a Hermitian or symmetric matrix, contiguous, from its lower triangle."""
    real = a.real.dtype
    norm = lapack("lansy", a, ctypes.c_float if real.itemsize == 4 else ctypes.c_double)
    work, letters = np.empty(len(a), real), b"1L"
    if not a.flags.f_contiguous:  # of the transpose, the norm is the same
        a, letters = a.T, b"1U"
    found: float = norm(*chars(letters), *ints(len(a)), *view(a), work.ctypes.data)
    return found


def keep(a: Array, found: Array) -> None:
    """Store in `a` what was found, where a wrapper has copied it: in single precision, perhaps.

    Some of the wrappers want numbers of four bytes at multiples of eight.
    """
    if found is not a:
        a[...] = found


def _info(info: int) -> np.ndarray:
    return np.array([info], np.int32) if info else _REGULAR


def lu(a: Array, b: Array | None = None, threads: bool = False) -> Vectors:
    """Overwrite A with L and U."""
    found, ipiv, info = _of(a, "getrf")(a, overwrite_a=True)
    keep(a, found)
    return {_IPIV: ipiv, _INFO: _info(info)}


def lu_and_solve(a: Array, b: Array, threads: bool = False) -> Vectors:
    """Overwrite A with L and U, and B with X; not B if A is singular."""
    found = lu(a, b)
    if not found[_INFO][0]:
        _substitute(a, found[_IPIV], b, threads)
    return found


def lu_solve(a: Array, ipiv: np.ndarray, b: Array, trans: int = 0) -> Array:
    """Return X with A X = B, A^T X = B (`trans` = 1) or A^H X = B (2), where `a` has L and U.

    Examples
    --------
    >>> lu, ipiv, _ = scipy.linalg.lapack.dgetrf(np.array([[0.0, 2.0], [4.0, 0.0]]))
    >>> lu_solve(lu, ipiv, np.array([[2.0], [4.0]])).ravel()
    array([1., 1.])
    """
    x = np.array(b, order="F")
    if trans:
        keep(x, _of(a, "getrs")(a, ipiv, x, trans=trans, overwrite_b=True)[0])
    else:
        _substitute(a, ipiv, x)
    return x


def _substitute(a: Array, ipiv: np.ndarray, b: Array, threads: bool = False) -> None:
    """Overwrite B with X, where A holds L and U.

    OpenBLAS's laswp, and so its getrs for several right-hand sides, wakes all threads, even for
    the smallest matrices, which takes milliseconds where the cores have other work.
    """
    if b.shape[1] == 1:
        keep(b, _of(a, "getrs")(a, ipiv, b, overwrite_b=True)[0])
    else:
        b[...] = b[interchanged(ipiv, len(a))]
        _substitute_permuted(a, b, threads)


def _substitute_permuted(a: Array, b: Array, threads: bool = False) -> None:
    """Overwrite B, whose rows have been permuted, with X."""
    if threads and len(a) >= _LONG:
        for letters in (b"LLNU", b"LUNN"):
            triangular("trsm", letters, a, b)
        return
    trsm = _blas_function("trsm", a.dtype.char)
    keep(b, trsm(1, a, b, lower=True, diag=True, overwrite_b=True))
    keep(b, trsm(1, a, b, overwrite_b=True))


def solve_column(
    a: Array, x: Array, *, hermitian: bool, adjoint: bool = False, upper: bool = False
) -> None:
    """Overwrite a vector x with the solution of L U y = x, or of L L^H y = x if `hermitian`.

    With `adjoint`, that of the adjoint matrix; with `upper`, of U^H U y = x.  Nothing keeps it from
    overflow.

    Examples
    --------
    >>> a, x = np.array([[2.0, 0.0], [1.0, 1.0]], order="F"), np.array([4.0, 4.0])
    >>> solve_column(a, x, hermitian=True)
    >>> x
    array([0., 2.])
    """
    trsv, lower = _blas_function("trsv", a.dtype.char), {"lower": 1, "diag": int(not hermitian)}
    plain = [lower, lower | {"trans": 2}] if hermitian else [lower, {}]
    turned = plain if hermitian else [{"trans": 2}, lower | {"trans": 2}]
    plain = [{"trans": 2}, {}] if upper else plain
    for form in turned if adjoint else plain:
        keep(x, trsv(a, x, overwrite_x=True, **form))


def cho_solve(c: Array, b: Array, lower: bool, overwrite_b: bool = False) -> Array:
    """Return X with L L^H X = B or U^H U X = B, L or U being a triangle of `c`.

    Examples
    --------
    >>> cho_solve(np.array([[2.0, 9.0], [1.0, 1.0]]), np.array([4.0, 3.0]), True)
    array([0.5, 1. ])
    """
    dtype = np.result_type(c, b)
    if not b.size:
        return np.empty(b.shape, dtype)
    if c.flags.c_contiguous and not c.flags.f_contiguous and dtype.kind == "f":
        c, lower = c.T, not lower  # LAPACK would get a copy
    if b.size > len(b):
        potrs = lapack_function("potrs", dtype.char)
        found: Array = potrs(c, b, lower=lower, overwrite_b=overwrite_b)[0]
        return found
    # Of one column, potrs takes up to three times as long.
    x = b.ravel().astype(dtype, copy=not overwrite_b)
    solve_column(c.astype(dtype, copy=False), x, hermitian=True, upper=not lower)
    return x.reshape(b.shape)


def lu_and_invert(a: Array, b: Array, threads: bool = False) -> Vectors:
    """Overwrite B with A^-1, and A; if A is singular, A with L and U, and B not.

    The columns of A^-1 are solutions, each with a small backward error, which getri's are not.
    """
    found, n = lu(a, b), len(a)
    if found[_INFO][0]:
        return found
    rows = interchanged(found[_IPIV], n)
    if n < _LONG:
        b[...] = 0
        b[np.arange(n), rows] = 1
        _substitute_permuted(a, b)
        return found
    b[...] = 0
    np.fill_diagonal(b, 1)
    for start in range(0, n, _COLUMNS):  # L^-1 has zeros above these columns' diagonal
        triangular("trsm", b"LLNU", a[start:, start:], b[start:, start : start + _COLUMNS])
    for start in range(0, n, 4 * _COLUMNS):  # an interrupt need not wait for all of them
        triangular("trsm", b"LUNN", a, b[:, start : start + 4 * _COLUMNS])
    a[...] = b  # L and U are not needed any more
    b.T[rows] = a.T
    return found


def cholesky(a: Array, b: Array | None = None, threads: bool = False) -> Vectors:
    """Overwrite the lower triangle of A with L."""
    if not threads or len(a) < _LONG:
        found, info = _of(a, "potrf")(a, lower=True, clean=False, overwrite_a=True)
        keep(a, found)
        return {_INFO: _info(info)}
    vector = np.zeros(1, np.int32)
    potrf(a, vector, KernelOptions())
    return {_INFO: vector}


def cholesky_and_solve(a: Array, b: Array, threads: bool = False) -> Vectors:
    """Overwrite the lower triangle of A with L, and B with X; not B if A is not definite."""
    found = cholesky(a, b, threads)
    if found[_INFO][0]:
        return found
    if threads and len(a) >= _LONG:
        for letters in (b"LLNN", b"LLCN"):
            triangular("trsm", letters, a, b)
    else:
        keep(b, cho_solve(a, b, True, overwrite_b=True))
    return found


def sytrf(a: Array, kind: str, lower: bool, threads: bool = False) -> tuple[np.ndarray, int]:
    """Overwrite a triangle of A by Bunch and Kaufman's factorization; return pivots and info.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix, column-major.
    kind : {"sy", "he"}
        Whether it is symmetric or Hermitian.
    lower : bool
        Which triangle is given.
    threads : bool, optional
        Whether other threads call LAPACK meanwhile.
    """
    if not threads or len(a) < _LONG:
        function = lapack_function(kind + "trf", a.dtype.char)
        found, pivots, failed = function(a, lower=lower, lwork=BLOCK * len(a), overwrite_a=True)
        keep(a, found)
        return pivots, failed
    ipiv, info = np.empty(len(a), np.intc), ctypes.c_int()
    work = np.empty(BLOCK * len(a), a.dtype)
    lapack(kind + "trf", a)(
        *chars(b"L" if lower else b"U"), *ints(len(a)), *view(a), ipiv.ctypes.data,
        work.ctypes.data, *ints(len(work)), ctypes.byref(info),
    )  # fmt: skip
    return ipiv, info.value


def qr(a: Array, b: Array | None = None, threads: bool = False) -> Vectors:
    """Overwrite A with its packed factors, and B, if given, with Q^H B."""
    with threads_for_reflectors(a):
        found, tau, _, _ = _of(a, "geqrf")(a, lwork=BLOCK * a.shape[1], overwrite_a=True)
    keep(a, found)
    if b is not None and b.size:
        _multiply(a, tau, b, "T" if a.dtype.kind == "f" else "C")
    return {_TAU: tau, ("method", 0): np.zeros(1, np.int32)}


def _multiply(a: Array, tau: np.ndarray, b: Array, letter: str) -> None:
    """Overwrite B with Q B, or with Q^H B."""
    size = BLOCK * (b.shape[1] + BLOCK + 1)  # with room for the triangle T of a block
    ormqr, reflectors = _of(a, "ormqr"), a[:, : len(tau)]
    with threads_for_reflectors(a, b):
        found = ormqr("L", letter, reflectors, tau, b, size, overwrite_c=True)[0]
    keep(b, found)


def threads_for_reflectors(*arrays: Array) -> contextlib.AbstractContextManager[object]:
    """Return a bound on BLAS for LAPACK's work with reflectors: one thread, if these are short.

    Half of that work is products with single columns, for each of which OpenBLAS wakes its threads:
    with 16 of them geqrf of 2000 x 60 takes 3.2 ms, with one 1.3.  Beside other threads of Python,
    which share the number, there is no bound.

    Parameters
    ----------
    *arrays : array, shape (m, n)
        What is factored or multiplied, and right-hand sides, on the host.

    Examples
    --------
    >>> with threads_for_reflectors(np.eye(3)):
    ...     pass
    """
    if arrays[0].size < _LEAST_REFLECTED:  # to set the number would take as long
        return _UNBOUND
    threads = blas_threads()
    narrow = _NARROW if threads > 2 else _NARROW_FOR_TWO
    small = all(
        a.dtype.kind == "f" and a.size <= _MOST_REFLECTED and min(a.shape) <= narrow for a in arrays
    )
    return one_thread_if_alone() if small and threads > 1 else _UNBOUND


def qr_and_q(a: Array, b: Array, threads: bool = False) -> Vectors:
    """Overwrite A with its packed factors, and B with the first columns of Q."""
    found = qr(a, b[:, :0])
    order = len(found[_TAU])
    b[:, :order] = a[:, :order]
    with threads_for_reflectors(b):
        q = _of(a, "orgqr")(b, found[_TAU], lwork=BLOCK * b.shape[1], overwrite_a=True)[0]
    keep(b, q)
    return found


def qr_and_lstsq(a: Array, b: Array, threads: bool = False) -> Vectors:
    """Overwrite A with its packed factors, and B with X, and below it the rest of Q^H B."""
    found, n = qr(a, b), a.shape[1]
    triangular("trsm", b"LUNN", a[:n], b[:n])
    return found


def qr_and_minimum_norm(a: Array, b: Array, threads: bool = False) -> Vectors:
    """Overwrite A with its packed factors, and B with the shortest X of A^H X = B."""
    found, n = qr(a, b[:, :0]), a.shape[1]
    triangular("trsm", b"LUCN", a[:n], b[:n])
    _multiply(a, found[_TAU], b, "N")
    return found


def gelsd(a: Array, b: Array, cond: float) -> tuple[np.ndarray, int, int]:
    """Overwrite the first rows of B with the shortest least-squares X; return s, rank and info.

    SciPy's wrapper keeps the interpreter's lock.

    Parameters
    ----------
    a : array, shape (m, n)
        The matrix, column-major, which is overwritten.
    b : array, shape (max(m, n), nrhs)
        Right-hand sides, column-major.
    cond : float
        Singular values up to this fraction of the largest count as zeros.

    Examples
    --------
    >>> a, b = np.array([[2.0], [0.0]], order="F"), np.array([[4.0], [3.0]], order="F")
    >>> gelsd(a, b, 1e-9), b.T
    ((array([2.]), 1, 0), array([[2., 3.]]))
    """
    m, n = a.shape
    call, sizes = lapack("gelsd", a), _gelsd_workspace(a.dtype, m, n, b.shape[1])
    s, rank, info = np.empty(min(m, n), a.real.dtype), ctypes.c_int(), ctypes.c_int()
    work = [np.empty(size, dtype) for size, dtype in sizes]
    call(
        *ints(m, n, b.shape[1]), *view(a), *view(b), s.ctypes.data, real_scalar(cond, a),
        ctypes.byref(rank), work[0].ctypes.data, *ints(len(work[0])),
        *(more.ctypes.data for more in work[1:]), ctypes.byref(info),
    )  # fmt: skip
    return s, rank.value, info.value


@functools.cache
def _gelsd_workspace(dtype: np.dtype, m: int, n: int, nrhs: int) -> list[tuple[int, Any]]:
    """Return sizes and dtypes of the workspaces of gelsd."""
    sizes = _of(np.empty(0, dtype), "gelsd_lwork")(m, n, nrhs)[:-1]
    others = [dtype.type(0).real.dtype] if dtype.kind == "c" else []
    dtypes = [dtype, *others, np.dtype(np.int32)]
    return [(int(size.real), kind) for size, kind in zip(sizes, dtypes, strict=True)]
