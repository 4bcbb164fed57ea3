"""Kernels on few vectors, for what follows from a factorization; the same on every device.

They are made of other kernels and of array functions.  All of them read columns of the matrix or
of its factors once, so that memory's speed is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module, is_device_array
from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.registry import implementation, implements
from hetero_la.tiles.kernels.spec import VECTOR_FORMS, Triangular

#: Elements of a part of a matrix on the host whose moduli stay in cache.
_BLOCK = 1 << 15


class _Call(Protocol):
    """A call of another kernel on the device of the arrays."""

    def __call__(self, kernel: str, *arrays: Array) -> None: ...


def _on_every_device(name: str, function: Callable[..., None], **fixed: Any) -> None:
    """Register a function of a `_Call` and the kernel's arrays as kernel `name`."""

    def on_cpu(*arrays: Array, options: KernelOptions) -> None:
        def call(kernel: str, *given: Array) -> None:
            implementation(kernel, "cpu")(*given, options=options)

        with np.errstate(all="ignore"):  # of singular factors, which `info` tells
            function(call, *arrays, **fixed)

    def on_gpu(q: Any, *arrays: Array, options: KernelOptions) -> None:
        def call(kernel: str, *given: Array) -> None:
            implementation(kernel, "gpu")(q, *given, options=options)

        function(call, *arrays, **fixed)

    implements(name, "cpu")(on_cpu)
    implements(name, "gpu")(on_gpu)


def _kernel(function: Callable[..., None]) -> Callable[..., None]:
    _on_every_device(function.__name__.strip("_"), function)
    return function


def _copy_columns(target: Array, source: Array) -> None:
    target.T[...] = source.T  # a GPU's threads go along the columns


def _trsv(call: _Call, a: Array, v: Array, x: Array, solve: str, form: Triangular) -> None:
    _copy_columns(x, v)
    if not is_device_array(x) and not x.any():
        return  # a correction that is not needed
    order, adjoint = a.shape[1], form.trans == "c"
    if form.triangle == "l":
        top = len(x) - len(a)
        diagonal, others, rest = a[:order], a[order:], x[top + order :]
    else:
        top = len(a) - order
        diagonal, others, rest = a[top:], a[:top], x[:top]
    rows = x[top : top + order]
    if adjoint and len(rest):
        call("gemm_cn", others, rest, rows)
    call(solve, diagonal, rows)
    if not adjoint and len(rest):
        call("gemm", others, rows, rest)


for _name, _form in VECTOR_FORMS.items():
    _on_every_device(_name, _trsv, solve=_name.replace("trsv", "trsm"), form=_form)


@_kernel
def copy(call: _Call, a: Array, m: Array) -> None:
    _copy_columns(m, a)


@_kernel
def sums(call: _Call, a: Array, s: Array) -> None:
    rows, columns = a.shape
    step = columns if is_device_array(a) else max(_BLOCK // rows, 1)
    for first in range(0, columns, step):
        some = slice(first, first + step)
        s[some] = abs(a[:, some]).sum(axis=0, dtype=np.float64)


@_kernel
def sums_h(call: _Call, a: Array, s: Array) -> None:
    xp, (rows, columns) = array_module(a), a.shape
    step = columns if is_device_array(a) else max(_BLOCK // rows, 1)
    s[...] = 0
    for first in range(0, columns, step):
        some = slice(first, min(first + step, columns))
        moduli = xp.tril(abs(a[first:, some]))
        s[some] += moduli.sum(axis=0, dtype=np.float64)
        s[first:] += xp.tril(moduli, -1).sum(axis=1, dtype=np.float64)


@_kernel
def largest(call: _Call, *arrays: Array) -> None:
    *parts, g = arrays
    g[0] = array_module(g).concatenate(parts).max()


@_kernel
def largest_h(call: _Call, *arrays: Array) -> None:
    *parts, g = arrays
    g[0] = _added_at_the_end(parts).max()


def _added_at_the_end(parts: Sequence[Array]) -> Array:
    """Return the sum of arrays that all end at the same row."""
    longest = max(parts, key=len)
    total = array_module(longest).zeros_like(longest, order="F")
    for part in parts:
        total[len(total) - len(part) :] += part
    return total


@_kernel
def gather(call: _Call, b: Array, *rest: Array) -> None:
    *perm, v = rest
    xp, (n, columns) = array_module(v), b.shape
    v[:, :columns] = xp.take(b, perm[0], axis=0) if perm else b
    if v.shape[1] > columns:
        # LAPACK's vectors: all equal, and of alternating signs and growing.
        row = xp.arange(n)
        v[:, columns] = 1 / n
        slope = (1 + row / max(n - 1, 1)) * 2 / (3 * n)
        v[:, columns + 1] = xp.where(row % 2, -slope, slope)


@_kernel
def take(call: _Call, v: Array, x: Array) -> None:
    _copy_columns(x, v[:, : x.shape[1]])


@_kernel
def axpy(call: _Call, v: Array, x: Array) -> None:
    transposed = x.T
    transposed += v.T[: x.shape[1]]


@_kernel
def signs(call: _Call, v: Array, s: Array) -> None:
    xp, y = array_module(v), v[:, -2:]
    if y.dtype.kind == "f":
        s[...] = xp.where(y < 0, -1, 1)
        return
    size = abs(y)
    s[...] = xp.where(size == 0, 1, y / xp.where(size == 0, 1, size))


@_kernel
def units(call: _Call, z: Array, u: Array) -> None:
    u[...] = array_module(z).arange(len(z))[:, None] == abs(z).argmax(axis=0)


@_kernel
def invnorm(call: _Call, v: Array, z: Array, w: Array, g: Array) -> None:
    xp = array_module(g)
    norms = [abs(y).sum(axis=0, dtype=np.float64).max() for y in (v[:, -2:], w)]
    g[0] = xp.maximum(xp.maximum(*norms), abs(z).max())


@_kernel
def diagonal(call: _Call, a: Array, d: Array) -> None:
    d[...] = a.diagonal()


@_kernel
def product(call: _Call, a: Array, x: Array, p: Array) -> None:
    p[...] = 0
    call("gemm", a, x, p)


@_kernel
def product_h(call: _Call, a: Array, x: Array, p: Array) -> None:
    xp, order = array_module(a), a.shape[1]
    lower = xp.tril(a[:order], -1)
    tile = lower + lower.conj().T + xp.diag(a[:order].diagonal().real)
    p[...] = 0
    call("gemm", xp.asfortranarray(tile), x[:order], p[:order])
    if len(a) > order:
        call("gemm_cn", a[order:], x[order:], p[:order])
        call("gemm", a[order:], x[:order], p[order:])


@_kernel
def residual(call: _Call, *arrays: Array) -> None:
    *products, b, x, norm, r, error = arrays
    xp = array_module(r)
    left = _added_at_the_end([b, *products])
    sizes, errors = (abs(one).sum(axis=0, dtype=np.float64) for one in (x, left))
    sizes *= norm
    error[0] = xp.where(sizes == 0, 0, errors / sizes).max()
    r[...] = xp.where(error > float(np.finfo(x.dtype).eps), left, 0)  # 0 for a NaN, too
