"""CPU kernels of QR."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.kernels.cpu.blas import ints, lapack, product, view
from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.registry import implements


@implements("geqrf", "cpu")
def geqrf(a: Array, tau: Array, r: Array, t: Array, method: Array, options: KernelOptions) -> None:
    m, order = len(a), len(tau)
    v, t[...], method[...] = a[:, :order], 0, 0
    # Recursive, by products (Elmroth and Gustavson, 2000); T comes with it.
    lapack("geqrt3", a)(*ints(m, order), *view(v), *view(t), *ints(0))
    tau[...] = t.diagonal()
    r[...] = np.triu(v[:order])
    for j in range(order):
        v[:j, j] = 0
        v[j, j] = 1
    if a.shape[1] > order:
        _apply(b"C", v, t, a[:, order:])


def _apply(letter: bytes, v: Array, t: Array, c: Array) -> None:
    v = v[:, : len(t)]
    w = np.empty((len(t), c.shape[1]), c.dtype, order="F")
    product(b"CN", 1, v, c, 0, w)
    x = np.empty_like(w)
    product(letter + b"N", 1, t, w, 0, x)
    product(b"NN", -1, v, x, 1, c)


@implements("larfb_c", "cpu")
def larfb_c(v: Array, t: Array, c: Array, options: KernelOptions) -> None:
    _apply(b"C", v, t, c)


@implements("larfb_n", "cpu")
def larfb_n(v: Array, t: Array, c: Array, options: KernelOptions) -> None:
    _apply(b"N", v, t, c)


def _unpacked(a: Array, columns: int) -> Array:
    v = np.tril(a[:, :columns], -1)
    np.fill_diagonal(v, 1)
    return np.asfortranarray(v)


@implements("gemqrt_c", "cpu")
def gemqrt_c(a: Array, t: Array, c: Array, options: KernelOptions) -> None:
    _apply(b"C", _unpacked(a, len(t)), t, c)


@implements("gemqrt_n", "cpu")
def gemqrt_n(a: Array, t: Array, c: Array, options: KernelOptions) -> None:
    _apply(b"N", _unpacked(a, len(t)), t, c)


@implements("lacpy", "cpu")
def lacpy(r: Array, a: Array, options: KernelOptions) -> None:
    order = len(r)
    for j in range(order):
        a[: j + 1, j] = r[: j + 1, j]
