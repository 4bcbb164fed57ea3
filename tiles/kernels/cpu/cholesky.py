"""CPU kernels of Cholesky."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.kernels.cpu.blas import (
    blas,
    chars,
    flag_unless,
    ints,
    invert_lower,
    lapack,
    norm1,
    product,
    real_scalar,
    view,
)
from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.registry import implements


@implements("potrf", "cpu")
def potrf(a: Array, info: Array, options: KernelOptions) -> None:
    lapack("potrf", a)(*chars(b"L"), *ints(len(a)), *view(a), info.ctypes.data)


@implements("trtri_n", "cpu")
def trtri_n(a: Array, w: Array, options: KernelOptions) -> None:
    w[...] = np.tril(a)
    size = norm1(w)
    invert_lower(w, b"LN")
    with np.errstate(all="ignore"):
        size *= norm1(w)
    flag_unless(size, options.inverse_bound, w)


@implements("herk", "cpu")
def herk(p: Array, c: Array, options: KernelOptions) -> None:
    width = c.shape[1]
    name = "herk" if c.dtype.kind == "c" else "syrk"
    # herk's scalars are real, also for complex matrices.
    blas(name, c)(
        *chars(b"LN"), *ints(width, p.shape[1]), real_scalar(-1, c), *view(p),
        real_scalar(1, c), *view(c),
    )  # fmt: skip
    if len(c) > width:
        product(b"NC", -1, p[width:], p[:width], 1, c[width:])
