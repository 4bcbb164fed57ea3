"""CPU kernels of LU."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.arrays.device import Array, KernelOptions
from hetero_la.tiles.kernels.cpu.blas import (
    flag_unless,
    ints,
    invert_lower,
    lapack,
    norm1,
    triangular,
    view,
)
from hetero_la.tiles.kernels.registry import implements

_GATHERED = 2**19  # bytes of the columns that laswp gathers at once


@implements("getrf", "cpu")
def getrf(a: Array, ipiv: Array, info: Array, options: KernelOptions) -> None:
    m, n = a.shape
    lapack("getrf", a)(*ints(m, n), *view(a), ipiv.ctypes.data, info.ctypes.data)
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
    invert_lower(w, b"LU")
    flag_unless(norm1(w), options.inverse_bound, w)


@implements("swap", "cpu")
def swap(ipiv: Array, net: Array, a: Array, options: KernelOptions) -> None:
    one_based = ipiv + 1
    lapack("laswp", a)(
        *ints(a.shape[1]), *view(a), *ints(1, len(ipiv)), one_based.ctypes.data, *ints(1)
    )


@implements("trmm", "cpu")
def trmm(a: Array, w: Array, b: Array, options: KernelOptions) -> None:
    if w[0, 0] == 1:
        triangular("trmm", b"LLNU", w, b)
    else:
        triangular("trsm", b"LLNU", a, b)


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
    # Few columns at a time: they fit in cache, as a panel does not.  Short columns one by one
    # would make workers wait for the interpreter lock.
    below = a[a.shape[0] - len(perm) :].T
    together = max(_GATHERED // max(len(perm) * a.itemsize, 1), 1)
    rows, permuted = perm.astype(np.intp), np.empty((together, len(perm)), a.dtype)
    for first in range(0, len(below), together):
        columns = below[first : first + together]
        out = permuted[: len(columns)]
        np.take(columns, rows, axis=1, out=out, mode="clip")  # the mode that needs no copy of out
        columns[...] = out
