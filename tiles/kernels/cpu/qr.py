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


@implements("larfb_c", "cpu", letter=b"C")
@implements("larfb_n", "cpu", letter=b"N")
def larfb(v: Array, t: Array, c: Array, options: KernelOptions, letter: bytes) -> None:
    _apply(letter, v, t, c)


@implements("gemqrt_c", "cpu", letter=b"C")
@implements("gemqrt_n", "cpu", letter=b"N")
def gemqrt(a: Array, t: Array, c: Array, options: KernelOptions, letter: bytes) -> None:
    v = np.asfortranarray(np.tril(a[:, : len(t)], -1))
    np.fill_diagonal(v, 1)
    _apply(letter, v, t, c)


@implements("lacpy", "cpu")
def lacpy(r: Array, a: Array, options: KernelOptions) -> None:
    order = len(r)
    for j in range(order):
        a[: j + 1, j] = r[: j + 1, j]
