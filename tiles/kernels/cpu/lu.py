"""CPU kernels of LU."""

from __future__ import annotations

from ctypes import byref, c_int

import numpy as np

from hetero_la.tiles.kernels.cpu.blas import (
    flag_unless,
    ints,
    invert_lower,
    lapack,
    norm1,
    product,
    triangular,
    view,
)
from hetero_la.tiles.kernels.cpu.blas_threads import blas_threads
from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.registry import implements

_LEAF = 8  # columns that getrf_nopiv eliminates one by one
_PIVOTED_LEAF = 32  # columns that getrf has LAPACK factor
#: Times as many rows as columns, and elements, from which getrf is by products of our own.
_TALL, _LARGE = 8, 2**19
_GATHERED = 2**19  # bytes of the columns that laswp gathers at once


@implements("getrf", "cpu")
def getrf(a: Array, ipiv: Array, info: Array, options: KernelOptions) -> None:
    info[0] = 0
    # OpenBLAS factors a panel that is much taller than wide on one thread.
    tall = len(a) >= _TALL * a.shape[1] and a.size >= _LARGE and blas_threads() > 1
    _factor(a, ipiv, info, 0, _PIVOTED_LEAF if tall else a.shape[1])
    ipiv -= 1


def _factor(a: Array, ipiv: Array, info: Array, first: int, leaf: int) -> None:
    """Factor a panel recursively, by products; its first pivot has the number `first`, from 0 on.

    Pivots are numbered from 1 on, from the top of `a`.
    """
    columns = a.shape[1]
    if columns <= leaf:
        singular = c_int()
        lapack("getrf", a)(*ints(*a.shape), *view(a), ipiv.ctypes.data, byref(singular))
        if singular.value and not info[0]:
            info[0] = first + singular.value
        return
    left = columns // 2
    _factor(a[:, :left], ipiv[:left], info, first, leaf)
    _swap(a[:, left:], ipiv[:left])
    _eliminate_beside(a, left)
    _factor(a[left:, left:], ipiv[left:], info, first + left, leaf)
    _swap(a[left:, :left], ipiv[left:])
    ipiv[left:] += left


def _swap(a: Array, ipiv: Array) -> None:
    lapack("laswp", a)(*ints(a.shape[1]), *view(a), *ints(1, len(ipiv)), ipiv.ctypes.data, *ints(1))


def _eliminate_beside(a: Array, left: int) -> None:
    """Update the columns beside the `left` ones that are factored."""
    top, below = a[:left, left:], a[left:, left:]
    triangular("trsm", b"LLNU", a[:left, :left], top)
    if len(below):
        product(b"NN", -1, a[left:, :left], top, 1, below)


@implements("getrf_nopiv", "cpu")
def getrf_nopiv(a: Array, info: Array, options: KernelOptions) -> None:
    order = min(a.shape)
    info[0] = 0
    with np.errstate(all="ignore"):  # growth shows overflow
        _eliminate(a[:, :order], info, 0)
    if a.shape[1] > order:
        triangular("trsm", b"LLNU", a[:, :order], a[:, order:])


def _eliminate(a: Array, info: Array, first: int) -> None:
    """Factor a panel recursively; its first pivot has the number `first`, from 0 on."""
    columns = a.shape[1]
    if columns <= _LEAF:
        _eliminate_columns(a, info, first)
        return
    left = columns // 2
    _eliminate(a[:, :left], info, first)
    _eliminate_beside(a, left)
    _eliminate(a[left:, left:], info, first + left)


def _eliminate_columns(a: Array, info: Array, first: int) -> None:
    for j in range(a.shape[1]):
        if a[j, j]:
            a[j + 1 :, j] /= a[j, j]
            a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
        elif not info[0]:
            info[0] = first + j + 1


@implements("growth", "cpu")
def growth(p: Array, *rest: Array, options: KernelOptions) -> None:
    *above, g = rest
    order = min(p.shape)
    g[0] = max(_largest(np.tril(p[:order], -1)), _largest(p[order:]))
    g[1] = max(_largest(np.triu(p[:order])), *map(_largest, above), 0.0)


def _largest(a: Array) -> float:
    return float(np.abs(a).max(initial=0))


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
