"""Kernel times from a device's figures: a rule for each kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hetero_la.scheduler.rates import Shapes
from hetero_la.tiles.kernels.spec import SPECS, TRIANGULAR

if TYPE_CHECKING:
    from hetero_la.scheduler.device_model import DeviceModel

Rule = Callable[["DeviceModel", str, Shapes, np.dtype], float]


def rule(kind: str) -> Rule:
    """How to tell the time of kernel `kind`, without its fixed cost."""
    return _RULES.get(kind, _roofline)


#: Kernels that move elements of the matrix; others without flops handle indices, or whole
#: cache lines whatever the size of an element.
_MOVES = frozenset({"laswp", "lacpy"})


def measured_seconds(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float | None:
    """Time of a kernel that was measured over its sizes, fixed cost included; else None."""
    seconds = d.rates.estimate(kind, shapes)
    if seconds is None:
        return None
    if SPECS[kind].flops(shapes):
        seconds *= d.work(dtype)
    elif kind in _MOVES:
        seconds *= dtype.itemsize / np.dtype(d.dtype).itemsize
    return max(seconds, d.call_seconds)


def _roofline(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    """For a kernel without a rule of its own: its flops or its bytes, whichever is slower."""
    elements = sum(math.prod(shape) for shape in shapes)
    flops = d.work(dtype) * SPECS[kind].flops(shapes)
    return max(flops / d.gemm_rate, elements * dtype.itemsize / d.bandwidth)


def _gemm(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    k = shapes[0][0] if kind == "gemm_cn" else shapes[0][1]
    m = shapes[0][1] if kind == "gemm_cn" else shapes[0][0]
    n = shapes[1][0] if kind == "gemm_nc" else shapes[1][1]
    return d.work(dtype) * d.multiply_seconds(m, n, k)


def _herk(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    (m, k), (_, n) = shapes
    return d.work(dtype) * d.multiply_seconds(m - n / 2, n, k)


def _larfb(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    (m, _), (k, _), (_, n) = shapes
    products = 2 * d.multiply_seconds(m, n, k) + d.multiply_seconds(k, n, k)
    return d.work(dtype) * products


def _trmm(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    order, columns = shapes[2] if kind != "trmm_rc" else shapes[2][::-1]
    if d.kind == "cpu":  # BLAS leaves the zeros of the triangle out
        return d.work(dtype) * d.multiply_seconds(order, columns, order / 2)
    copied = order * columns * dtype.itemsize / d.bandwidth
    return d.work(dtype) * d.multiply_seconds(order, columns, order) + copied


def _trsm(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    return d.work(dtype) * d.solve_seconds(shapes[1][0], SPECS[kind].flops(shapes))


#: How many times as long as a column of a panel of LU one of QR takes.
_REFLECTOR = {"cpu": 2.0, "gpu": 1.5}


def _getrf(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    rows, order = shapes[0][0], min(shapes[0])
    # Recursion multiplies at half, a quarter, an eighth ... of the width.
    inner = max(order / 4, 1.0)
    flops = SPECS[kind].flops(shapes)
    products = flops / (2 * rows * inner**2) * d.multiply_seconds(rows, inner, inner)
    scale = dtype.itemsize / np.dtype(d.dtype).itemsize
    chain = d.panel.seconds(rows, order, scale)
    return d.work(dtype) * products + chain * (_REFLECTOR[d.kind] if kind == "geqrf" else 1)


def _potrf(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    # A tile stays in cache, or in one multiprocessor's reach: no column waits for memory.
    order = shapes[0][0]
    flops = SPECS[kind].flops(shapes)
    return d.work(dtype) * flops / d.gemm_rate + order * d.factor_column


def _trtri(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    order = shapes[1][0]
    scale = dtype.itemsize / np.dtype(d.dtype).itemsize
    solve = d.solve_seconds(order, SPECS[kind].flops(shapes))
    return d.work(dtype) * solve + d.inverse.seconds(order, order, scale)


def _swap(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    # An element costs a cache line or a memory sector, whatever its size.
    return 2 * shapes[0][0] * shapes[-1][1] * d.swap_seconds


def _laswp(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    scale = dtype.itemsize / np.dtype(d.dtype).itemsize
    return shapes[0][0] * shapes[1][1] * scale * d.gather_seconds


def _indices(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    rows = sum(shape[-1] for shape in shapes)
    return shapes[0][0] * d.index_seconds + 4 * rows / d.bandwidth


_RULES: dict[str, Rule] = {
    "gemm": _gemm, "gemm_nc": _gemm, "gemm_cn": _gemm, "herk": _herk,
    "larfb_c": _larfb, "larfb_n": _larfb, "gemqrt_c": _larfb, "gemqrt_n": _larfb,
    "trmm": _trmm, "trmm_n": _trmm, "trmm_rc": _trmm,
    "getrf": _getrf, "geqrf": _getrf, "potrf": _potrf, "trtri": _trtri, "trtri_n": _trtri,
    "swap": _swap, "laswp": _laswp, "netperm": _indices, "compose": _indices,
    **dict.fromkeys(TRIANGULAR, _trsm),
}  # fmt: skip
