"""Whole routines by LAPACK: what a matrix that needs no tiles takes, in a call or two.

Each function overwrites a column-major matrix, and the columns beside it, with what the routine's
task graph leaves there, and returns the vectors of its one step.  These arrays are whole, so that
SciPy's wrappers work in place; they cost a microsecond, where ctypes (`blas`) takes six.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.lapack

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.spec import LETTER

#: Names of the vectors, and the vectors.
Vectors = dict[str, np.ndarray]
#: Columns that LAPACK factors or applies at once, if the workspace has room for so many.
BLOCK = 64


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


def _of(a: Array, name: str) -> Callable[..., Any]:
    return lapack_function(name, a.dtype.char)


def _info(info: int) -> np.ndarray:
    return np.array([info], np.int32)


def lu(a: Array, b: Array) -> Vectors:
    """Overwrite A with L and U."""
    _, ipiv, info = _of(a, "getrf")(a, overwrite_a=True)
    return {"ipiv": ipiv, "info": _info(info)}


def lu_and_solve(a: Array, b: Array) -> Vectors:
    """Overwrite A with L and U, and B with X; not B if A is singular."""
    found = lu(a, b)
    if not found["info"][0]:
        _of(a, "getrs")(a, found["ipiv"], b, overwrite_b=True)
    return found


def lu_and_invert(a: Array, b: Array) -> Vectors:
    """Overwrite A with L and U, and B with A^-1; not B if A is singular."""
    found = lu(a, b)
    if not found["info"][0]:
        b[...] = a
        _of(a, "getri")(b, found["ipiv"], lwork=BLOCK * len(a), overwrite_lu=True)
    return found


def cholesky(a: Array, b: Array) -> Vectors:
    """Overwrite the lower triangle of A with L."""
    _, info = _of(a, "potrf")(a, lower=True, clean=False, overwrite_a=True)
    return {"info": _info(info)}


def cholesky_and_solve(a: Array, b: Array) -> Vectors:
    """Overwrite the lower triangle of A with L, and B with X; not B if A is not definite."""
    found = cholesky(a, b)
    if not found["info"][0]:
        _of(a, "potrs")(a, b, lower=True, overwrite_b=True)
    return found


def qr(a: Array, b: Array) -> Vectors:
    """Overwrite A with its packed factors, and B with Q^H B."""
    _, tau, _, _ = _of(a, "geqrf")(a, lwork=BLOCK * max(a.shape[1], 1), overwrite_a=True)
    if b.size:
        letter = "T" if a.dtype.kind == "f" else "C"
        size = BLOCK * (b.shape[1] + BLOCK + 1)  # with room for the triangle T of a block
        _of(a, "ormqr")("L", letter, a[:, : len(tau)], tau, b, size, overwrite_c=True)
    return {"tau": tau, "method": np.zeros(1, np.int32)}


def qr_and_q(a: Array, b: Array) -> Vectors:
    """Overwrite A with its packed factors, and B with the first columns of Q."""
    found = qr(a, b[:, :0])
    order = len(found["tau"])
    b[:, :order] = a[:, :order]
    _of(a, "orgqr")(b, found["tau"], lwork=BLOCK * b.shape[1], overwrite_a=True)
    return found
