"""BLAS and LAPACK on views, in place; and the CPU kernels that several factorizations share.

SciPy's f2py wrappers copy any view that is not contiguous; the function
pointers that ``scipy.linalg.cython_blas`` and ``cython_lapack`` export take a
leading dimension, so nothing is copied, and ctypes releases the GIL.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import byref, c_char, c_int, c_void_p
from typing import Any

import numpy as np
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack

from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.registry import implements
from hetero_la.tiles.kernels.spec import LETTER, TRIANGULAR, Triangular


@functools.cache
def _routine(library: Any, name: str, result: Any = None) -> Any:
    """Return the C function behind a Cython export; every argument is a pointer."""
    capsule = library.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature: bytes = get_name(capsule)
    count = signature.count(b",") + 1
    return ctypes.CFUNCTYPE(result, *[c_void_p] * count)(get_pointer(capsule, signature))


def blas(name: str, a: Array) -> Any:
    return _routine(scipy.linalg.cython_blas, LETTER[a.dtype.char] + name)


def lapack(name: str, a: Array, result: Any = None) -> Any:
    return _routine(scipy.linalg.cython_lapack, LETTER[a.dtype.char] + name, result)


def ints(*values: int) -> list[Any]:
    return [byref(c_int(v)) for v in values]


def chars(letters: bytes) -> list[Any]:
    return [byref(c_char(letter)) for letter in letters]


def view(a: Array) -> list[Any]:
    """Return pointer and leading dimension of a column-major view, as BLAS takes them."""
    ld = a.strides[1] // a.itemsize if a.shape[1] > 1 else a.shape[0]
    return [c_void_p(a.ctypes.data), byref(c_int(max(ld, 1)))]


def scalar(value: float, a: Array) -> Any:
    # The array must outlive the call, so the pointer object keeps it alive.
    return np.array(value, a.dtype).ctypes.data_as(c_void_p)


def real_scalar(value: float, a: Array) -> Any:
    return np.array(value, a.real.dtype).ctypes.data_as(c_void_p)


def triangular(name: str, letters: bytes, a: Array, b: Array) -> None:
    """Call trmm or trsm, in place of `b`; `letters` are SIDE, UPLO, TRANS, DIAG."""
    blas(name, b)(*chars(letters), *ints(*b.shape), scalar(1, b), *view(a), *view(b))


def product(letters: bytes, alpha: float, a: Array, b: Array, beta: float, c: Array) -> None:
    """Compute C <- alpha op(A) op(B) + beta C; `letters` are TRANSA, TRANSB."""
    (m, n), k = c.shape, a.shape[letters[0] == ord("N")]
    blas("gemm", c)(
        *chars(letters), *ints(m, n, k), scalar(alpha, c), *view(a), *view(b),
        scalar(beta, c), *view(c),
    )  # fmt: skip


def invert_lower(w: Array, letters: bytes) -> None:
    """Compute W <- W^-1 for a lower triangle; `letters` are UPLO, DIAG.

    If a diagonal element is zero, W becomes NaN.
    """
    info = c_int()
    lapack("trtri", w)(*chars(letters), *ints(w.shape[0]), *view(w), byref(info))
    if info.value:
        w[...] = np.nan


def norm1(a: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.abs(a).sum(axis=0).max())


def flag_unless(size: float, bound: float, w: Array) -> None:
    """Set W[0, 0] to NaN, so that W is not used, if `size` exceeds a bound or is not finite."""
    if not (size <= bound and size < np.inf):  # also where it is NaN
        w[0, 0] = np.nan


@implements("gemm", "cpu", letters=b"NN")
@implements("gemm_nc", "cpu", letters=b"NC")
@implements("gemm_cn", "cpu", letters=b"CN")
def gemm(a: Array, b: Array, c: Array, options: KernelOptions, letters: bytes) -> None:
    product(letters, -1, a, b, 1, c[: a.shape[letters[0] == ord("C")]])


@implements("gemm_block", "cpu")
def gemm_block(*arrays: Array, options: KernelOptions) -> None:
    *parts, b, c = arrays
    whole = side_by_side(parts)
    for a in parts if whole is None else (whole,):
        product(b"NN", -1, a, b[: a.shape[1]], 1, c)
        b = b[a.shape[1] :]


def side_by_side(parts: Sequence[Array]) -> Array | None:
    """Return adjacent parts of a column-major array as one view; None if they are not adjacent."""
    first, stop = parts[0], parts[0].ctypes.data
    for part in parts:
        if part.ctypes.data != stop or part.strides != first.strides:
            return None
        stop += part.shape[1] * part.strides[1]
    width = sum(part.shape[1] for part in parts)
    # By default, strides of a single column would be taken for those of a row-major array.
    return np.lib.stride_tricks.as_strided(first, (len(first), width), first.strides)


@implements("trmm", "cpu", letters=b"LLNU")
@implements("trmm_n", "cpu", letters=b"LLNN")
@implements("trmm_rc", "cpu", letters=b"RLCN")
def trmm(a: Array, w: Array, b: Array, options: KernelOptions, letters: bytes) -> None:
    name, factor = ("trsm", a) if np.isnan(w[0, 0]) else ("trmm", w)
    triangular(name, letters, factor, b)


def trsm(a: Array, b: Array, options: KernelOptions, form: Triangular) -> None:
    letters = f"L{form.triangle}{form.trans}{'u' if form.unit else 'n'}".upper().encode()
    triangular("trsm", letters, a, b[: min(a.shape)])


for _name, _form in TRIANGULAR.items():
    implements(_name, "cpu", form=_form)(trsm)


@implements("laset_0", "cpu", diagonal=0)
@implements("laset_1", "cpu", diagonal=1)
def laset(a: Array, options: KernelOptions, diagonal: int) -> None:
    a[...] = 0
    np.fill_diagonal(a, diagonal)
