"""CPU kernels: BLAS and LAPACK on views, in place.

SciPy's f2py wrappers copy any view that is not contiguous; the function
pointers that ``scipy.linalg.cython_blas`` and ``cython_lapack`` export take a
leading dimension, so nothing is copied, and ctypes releases the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char, c_int, c_void_p
from typing import Any

import numpy as np
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack

from hetero_la.tiles.kernels.registry import implementation, implements
from hetero_la.tiles.kernels.spec import Array, DeviceKind, Event, KernelOptions, Queue
from hetero_la.tiles.transfer import (
    copy_and_wait,
    is_column_major,
    is_device_array,
    pinned_empty,
)

_TURNED_ROWS = 64
_LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}


@functools.cache
def _routine(library: Any, name: str) -> Any:
    """The C function behind a Cython export; every argument is a pointer."""
    capsule = library.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature: bytes = get_name(capsule)
    count = signature.count(b",") + 1
    return ctypes.CFUNCTYPE(None, *[c_void_p] * count)(get_pointer(capsule, signature))


def _blas(name: str, a: Array) -> Any:
    return _routine(scipy.linalg.cython_blas, _LETTER[a.dtype.name] + name)


def _lapack(name: str, a: Array) -> Any:
    return _routine(scipy.linalg.cython_lapack, _LETTER[a.dtype.name] + name)


def _ints(*values: int) -> list[Any]:
    return [byref(c_int(v)) for v in values]


def _chars(letters: bytes) -> list[Any]:
    return [byref(c_char(letter)) for letter in letters]


def _ld(a: Array) -> int:
    """Leading dimension of a column-major view."""
    if a.shape[1] > 1:
        return max(a.strides[1] // a.itemsize, 1)
    return max(a.shape[0], 1)


def _view(a: Array) -> list[Any]:
    """Pointer and leading dimension, as BLAS takes them."""
    return [c_void_p(a.ctypes.data), byref(c_int(_ld(a)))]


def _scalar(value: float, a: Array) -> Any:
    # The array must outlive the call, so the pointer object keeps it alive.
    return np.array(value, a.dtype).ctypes.data_as(c_void_p)


@implements("getrf", "cpu")
def getrf(a: Array, ipiv: Array, info: Array, options: KernelOptions) -> None:
    m, n = a.shape
    _lapack("getrf", a)(*_ints(m, n), *_view(a), ipiv.ctypes.data, info.ctypes.data)
    ipiv -= 1


@implements("netperm", "cpu")
def netperm(ipiv: Array, net: Array, options: KernelOptions) -> None:
    rows: dict[int, int] = {}
    for i, p in enumerate(ipiv.tolist()):
        rows[i], rows[p] = rows.get(p, p), rows.get(i, i)
    net[0] = -1
    net[:, : len(rows)] = np.array([list(rows), list(rows.values())], np.int32)


@implements("trtri", "cpu")
def trtri(a: Array, w: Array, options: KernelOptions) -> None:
    order = w.shape[0]
    w[...] = np.tril(a[:order, :order], -1)
    np.fill_diagonal(w, 1)
    _lapack("trtri", w)(*_chars(b"LU"), *_ints(order), *_view(w), byref(c_int()))
    with np.errstate(all="ignore"):
        norm = float(np.abs(w).sum(axis=0).max())
    if not (norm <= options.inverse_bound and norm < np.inf):  # also where it is NaN
        w[0, 0] = np.nan


@implements("swap", "cpu")
def swap(ipiv: Array, net: Array, a: Array, options: KernelOptions) -> None:
    one_based = ipiv + 1
    _lapack("laswp", a)(
        *_ints(a.shape[1]), *_view(a), *_ints(1, len(ipiv)), one_based.ctypes.data, *_ints(1)
    )


def _triangular(name: str, uplo_trans_diag: bytes, a: Array, b: Array) -> None:
    _blas(name, b)(
        *_chars(b"L" + uplo_trans_diag), *_ints(*b.shape), _scalar(1, b), *_view(a), *_view(b)
    )


@implements("trmm", "cpu")
def trmm(a: Array, w: Array, b: Array, options: KernelOptions) -> None:
    if w[0, 0] == 1:
        _triangular("trmm", b"LNU", w, b)
    else:
        _triangular("trsm", b"LNU", a, b)


@implements("trsm", "cpu")
def trsm(a: Array, b: Array, options: KernelOptions) -> None:
    _triangular("trsm", b"UNN", a, b)


@implements("gemm", "cpu")
def gemm(a: Array, b: Array, c: Array, options: KernelOptions) -> None:
    (m, n), k = c.shape, a.shape[1]
    _blas("gemm", c)(
        *_chars(b"NN"), *_ints(m, n, k), _scalar(-1, c), *_view(a), *_view(b),
        _scalar(1, c), *_view(c),
    )  # fmt: skip


@implements("compose", "cpu")
def compose(ipiv: Array, *rest: Array, options: KernelOptions) -> None:
    *after, perm = rest
    rows = np.arange(len(perm), dtype=perm.dtype)
    for i, p in enumerate(ipiv.tolist()):
        rows[i], rows[p] = rows[p], rows[i]
    if after:
        top = len(perm) - len(after[0])
        perm[:top] = rows[:top]
        np.take(rows[top:], after[0], out=perm[top:])
    else:
        perm[...] = rows


@implements("laswp", "cpu")
def laswp(perm: Array, a: Array, options: KernelOptions) -> None:
    # One column at a time: a column fits in cache, a panel does not.
    below = a[a.shape[0] - len(perm) :]
    for column in below.T:
        column[...] = column[perm]


class CpuDevice:
    """The host's cores; a call has ended when it returns.

    Parameters
    ----------
    name : str, optional
        Readable name.
    pinned : bool, optional
        Allocate in pinned memory, which GPUs copy from and to at full speed.
    """

    kind: DeviceKind = "cpu"
    index = -1
    #: Whether arrays of other CPU devices in the process are used where they are.
    by_reference = True

    def __init__(self, name: str = "cpu0", *, pinned: bool = False) -> None:
        self.name = name
        self._empty = pinned_empty if pinned else functools.partial(np.empty, order="F")

    def activate(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def free_bytes(self) -> int:
        return available_memory()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._empty(shape, dtype)

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        if all(a.size for a in arrays):
            implementation(kernel, "cpu")(*arrays, options=options)

    def record(self, queue: Queue) -> Event:
        return None

    def wait(self, queue: Queue, event: Event) -> None:
        if event is not None:  # a GPU's: what it stands for must have ended
            event.synchronize()

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        if is_device_array(source) or is_device_array(target):
            copy_and_wait(target, source)
        elif source.ndim == 2 and not is_column_major(source):
            # Row-major: rows in blocks whose columns stay in cache while they are turned.
            for row in range(0, source.shape[0], _TURNED_ROWS):
                rows = slice(row, row + _TURNED_ROWS)
                np.copyto(target[rows], source[rows])
        else:
            np.copyto(target, source)

    def synchronize(self) -> None:
        pass


class VirtualGpu(CpuDevice):
    """A CPU in the role of a GPU: its memory is its own, so panels are copied to it."""

    kind: DeviceKind = "gpu"
    by_reference = False


def available_memory() -> int:
    """Bytes of host memory that can be had without swapping."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def iter_blas_libraries() -> Iterator[str]:
    """Names and versions of the BLAS libraries in use."""
    from threadpoolctl import threadpool_info

    for entry in threadpool_info():
        if entry["user_api"] == "blas":
            yield f"{entry['internal_api']} {entry['version']} ({entry['num_threads']} threads)"
