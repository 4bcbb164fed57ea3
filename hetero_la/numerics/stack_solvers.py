"""Solves with each matrix of a stack on the host, by the way that its structure asks for.

Each function of stacks overwrites right-hand sides, column-major matrices, with solutions, and
returns the reciprocal condition numbers; 0 or NaN where a matrix is singular, of which the solution
is not valid.  With `threads`, other threads do the same with other matrices: then what takes long
is called through ctypes, since SciPy's wrappers keep the interpreter's lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.numerics.band_matrices import gather_bands
from hetero_la.numerics.conditioning import reciprocal_condition, stack_norm1
from hetero_la.numerics.refinement import refine_stack
from hetero_la.tiles.arrays.copies import copy_on_host
from hetero_la.tiles.kernels.cpu.blas import triangular
from hetero_la.tiles.kernels.cpu.lapack import (
    hermitian_norm1,
    keep,
    lapack_function,
    lu_and_solve,
    lu_solve,
    sytrf,
)


def solve_general(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, transposed: bool, threads: bool
) -> np.ndarray:
    """Solve with general matrices, or their transposes, by LU, and refine.

    `x` is a copy of `b`, which is overwritten.

    Examples
    --------
    >>> b = np.array([[[1.0], [2.0]]])
    >>> x = b.copy()
    >>> rconds = solve_general(np.array([[[0.0, 1.0], [4.0, 0.0]]]), b, x, False, False)
    >>> x[0].T
    array([[0.5, 1. ]])
    """
    a = a.swapaxes(1, 2) if transposed else a
    lu, anorms = np.empty_like(a.swapaxes(1, 2), order="C").swapaxes(1, 2), stack_norm1(a)
    each = zip(a, anorms.tolist(), lu, x, strict=True)
    pivots, found = zip(*(factor_and_solve(*one, threads=threads) for one in each), strict=True)
    rconds = np.array(found)

    def solve_again(i: int, residual: Any) -> Any:
        return lu_solve(lu[i], pivots[i], residual)

    refine_stack(a, anorms, solve_again, b, x, rconds)
    return rconds


def factor_and_solve(
    a: np.ndarray, anorm: float, lu: np.ndarray, x: np.ndarray, *, threads: bool = False
) -> tuple[np.ndarray, float]:
    """Solve with one general matrix of 1-norm `anorm`, and store its factors in `lu`.

    Returns the interchanges, and the reciprocal condition number, which is a rough one.

    Examples
    --------
    >>> a, lu, x = 2 * np.eye(2), np.empty((2, 2), order="F"), np.ones((2, 1), order="F")
    >>> factor_and_solve(a, 2.0, lu, x)
    (array([0, 1], dtype=int32), 1.0)
    >>> x.T
    array([[0.5, 0.5]])
    """
    copy_on_host(lu, a)
    found = lu_and_solve(lu, x, threads)
    singular = found["info", 0][0]
    rcond = 0.0 if singular else reciprocal_condition(anorm, lu, x, None, roughly=True)
    return found["ipiv", 0], rcond


def solve_diagonals(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide by the diagonals.

    Examples
    --------
    >>> b = np.ones((2, 2, 1))
    >>> solve_diagonals(np.array([[[2.0, 9.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 0.0]]]), b)
    array([0.5, 0. ])
    >>> b[0].T
    array([[0.5 , 0.25]])
    """
    diagonals = a.diagonal(axis1=1, axis2=2)
    sizes = abs(diagonals)
    with np.errstate(all="ignore"):  # the numbers returned tell
        b /= diagonals[:, :, None]
        rconds: np.ndarray = sizes.min(axis=1) / sizes.max(axis=1)
    return rconds


def solve_triangles(
    a: np.ndarray, b: np.ndarray, lower: bool, transposed: bool, threads: bool
) -> np.ndarray:
    """Substitute with the lower or the upper triangles, or their transposes.

    Examples
    --------
    >>> b = np.ones((1, 2, 1)).swapaxes(1, 2).copy().swapaxes(1, 2)
    >>> solve_triangles(np.array([[[2.0, 9.0], [1.0, 1.0]]]), b, True, False, False)
    array([0.33333333])
    >>> b[0].T
    array([[0.5, 0.5]])
    """
    trtrs, trcon = (lapack_function(name, a.dtype.char) for name in ("trtrs", "trcon"))
    by_rows = a.strides[2] < a.strides[1]  # which are columns of the transposes
    lines = np.ascontiguousarray(a if by_rows else a.swapaxes(1, 2)).swapaxes(1, 2)
    lower, turned = lower != by_rows, transposed != by_rows
    letters = f"L{'UL'[lower]}{'NT'[turned]}N".encode()
    norm, triangle = "1I"[by_rows], "UL"[lower]
    rconds = np.zeros(len(a))
    for i, (one, x) in enumerate(zip(lines, b, strict=True)):
        if not one.diagonal().all():
            continue
        rconds[i] = trcon(one, norm=norm, uplo=triangle)[0]
        if threads:
            triangular("trsm", letters, one, x)
        else:
            keep(x, trtrs(one, x, lower=lower, trans=turned, overwrite_b=True)[0])
    return rconds


def solve_tridiagonals(a: np.ndarray, b: np.ndarray, transposed: bool) -> np.ndarray:
    """Solve with the three middle diagonals, or with the transposes; the order is at least 3.

    Examples
    --------
    >>> b = np.array([[[4.0], [5.0], [4.0]]])
    >>> rconds = solve_tridiagonals(np.eye(3)[None] * 2 + np.ones((1, 3, 3)), b, False)
    >>> b[0].T.round(12)
    array([[1., 1., 1.]])
    """
    names = ("gttrf", "gtcon", "gttrs")
    gttrf, gtcon, gttrs = (lapack_function(name, a.dtype.char) for name in names)
    below, middle, above = (
        np.ascontiguousarray(a.diagonal(k, axis1=1, axis2=2)) for k in (-1, 0, 1)
    )
    sums = abs(middle).astype(float)
    sums[:, :-1] += abs(below)
    sums[:, 1:] += abs(above)
    norms, letter, rconds = sums.max(axis=1), "NT"[transposed], np.zeros(len(a))
    for i, x in enumerate(b):
        *factors, info = gttrf(below[i], middle[i], above[i])
        if not info:
            rconds[i] = gtcon(*factors, norms[i])[0]
            keep(x, gttrs(*factors, x, trans=letter, overwrite_b=True)[0])
    return rconds


def solve_bands(
    a: np.ndarray, b: np.ndarray, lower: int, upper: int, transposed: bool
) -> np.ndarray:
    """Solve with diagonals `lower` below to `upper` above the main one, or with the transposes.

    Examples
    --------
    >>> b = np.ones((1, 2, 1))
    >>> solve_bands(np.array([[[2.0, 0.0], [1.0, 1.0]]]), b, 1, 0, False)
    array([0.33333333])
    >>> b[0].T
    array([[0.5, 0.5]])
    """
    names = ("gbtrf", "gbcon", "gbtrs")
    gbtrf, gbcon, gbtrs = (lapack_function(name, a.dtype.char) for name in names)
    bands = gather_bands(a, lower, upper, room=lower)
    norms = abs(bands).sum(axis=1, dtype=float).max(axis=1)
    rconds = np.zeros(len(a))
    for i, x in enumerate(b):
        lu, piv, info = gbtrf(bands[i], lower, upper, overwrite_ab=True)
        if not info:
            rconds[i] = gbcon(lower, upper, lu, piv, norms[i])[0]
            found = gbtrs(lu, lower, upper, x, piv, trans=int(transposed), overwrite_b=True)
            keep(x, found[0])
    return rconds


def solve_symmetric(
    a: np.ndarray, b: np.ndarray, lower: bool, conjugate: bool, threads: bool
) -> np.ndarray:
    """Solve with matrices of which a triangle is given, by Bunch and Kaufman's factorization.

    Examples
    --------
    >>> b = np.array([[[1.0], [2.0]]])
    >>> rconds = solve_symmetric(np.array([[[0.0, 1.0], [9.0, 0.0]]]), b, False, False, False)
    >>> b[0].T
    array([[2., 1.]])
    """
    kind = "he" if conjugate and a.dtype.kind == "c" else "sy"
    con, trs = (lapack_function(kind + name, a.dtype.char) for name in ("con", "trs"))
    rconds = np.zeros(len(a))
    for i, (one, x) in enumerate(zip(a, b, strict=True)):
        factors = np.array(one, order="F")
        # The norm is read from a lower triangle, here perhaps that of the transpose.
        norm = hermitian_norm1(factors if lower else factors.T)
        ipiv, info = sytrf(factors, kind, lower, threads)
        if not info:
            rconds[i] = con(factors, ipiv, norm, lower=lower)[0]
            keep(x, trs(factors, ipiv, x, lower=lower, overwrite_b=True)[0])
    return rconds
