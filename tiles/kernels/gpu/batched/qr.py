"""QR of stacks on a GPU: panels by a kernel with a block for each matrix, the rest by products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.batched.arrays import (
    Batch,
    batch,
    column_major,
    column_major_copy,
    gemm,
)
from hetero_la.tiles.kernels.gpu.common import source
from hetero_la.tiles.kernels.gpu.qr import LANES, STRIP_BYTES, THREADS, leaf_source
from hetero_la.tiles.kernels.gpu.sources import kernel

_FEW_THREADS = 128  # of a block, for few rows: then several blocks share a multiprocessor


class StackPanel(NamedTuple):
    """A panel of each matrix: where it begins, how wide it is, and its R and T."""

    first: int
    width: int
    r: Array
    t: Array


def qr(a: Array, columns: int) -> tuple[Array, Array, dict[str, Array]]:
    """Return packed factors, no columns, and tau and info."""
    packed = column_major_copy(a)
    found, panels = factor(packed)
    _pack(packed, panels)
    return packed, a[:, :, :0], found


def qr_and_q(a: Array, columns: int) -> tuple[Array, Array, dict[str, Array]]:
    """Return packed factors, the first columns of Q, and tau and info."""
    import cupy

    (count, m, _), packed = a.shape, column_major_copy(a)
    found, panels = factor(packed)
    q = column_major(count, m, columns, a.dtype)
    q[...] = cupy.eye(m, columns, dtype=q.dtype)
    V, Q = batch(packed), batch(q)
    for panel in reversed(panels):
        first = panel.first
        shape = (m - first, columns - first)
        _apply(V.at(first, first), panel, Q.at(first, first), shape, "n")
    _pack(packed, panels)
    return packed, q, found


def factor(a: Array) -> tuple[dict[str, Array], list[StackPanel]]:
    """Factor, and leave V in each panel and R beside the panels."""
    import cupy

    count, m, n = a.shape
    A, k = batch(a), min(m, n)
    tau, exponents = cupy.empty((count, k), a.dtype), cupy.empty((count, n), np.int32)
    # Columns whose squares leave the range are brought near 1: their matrix has an `info`.
    scale = kernel("scale_columns", source("triangles", a.dtype))
    scale((count * n,), (256,), (A.block.pointer, m, m, exponents.data.ptr))
    panels = []
    for first in range(0, k, LANES):
        width = min(LANES, k - first)
        panel = StackPanel(
            first, width, *(column_major(count, LANES, LANES, a.dtype) for _ in "RT")
        )
        _leaf(A.at(first, first), m - first, panel, tau)
        right = first + width
        if right < n:
            shape = (m - first, n - right)
            _apply(A.at(first, first), panel, A.at(first, right), shape, "c")
        panels.append(panel)
    return {"tau": tau, "info": (exponents != 0).any(axis=1).astype(np.int32)}, panels


def _leaf(A: Batch, rows: int, panel: StackPanel, tau: Array) -> None:
    strip = STRIP_BYTES // A.block.dtype.itemsize
    threads = _FEW_THREADS if rows <= _FEW_THREADS // 32 * strip else THREADS
    resident = rows <= threads // 32 * strip
    leaves = kernel("geqrf_leaves", leaf_source(A.block.dtype, resident, threads))
    leaves(
        (A.matrices,), (threads,),
        (
            A.block.pointer, A.block.ld, A.step, rows, panel.width, panel.r.data.ptr,
            panel.t.data.ptr, LANES * LANES, tau[:, panel.first :].data.ptr, tau.shape[1],
        ),
    )  # fmt: skip


def _apply(V: Batch, panel: StackPanel, C: Batch, shape: tuple[int, int], trans: str) -> None:
    """Compute C <- C - V T V^H C, or with T^H."""
    (rows, columns), w, dtype = shape, panel.width, V.block.dtype
    w1, w2 = (column_major(C.matrices, w, columns, dtype) for _ in "WX")
    W, X = batch(w1), batch(w2)
    gemm(1, V, C, 0, W, (w, columns, rows), "cn")
    gemm(1, batch(panel.t), W, 0, X, (w, columns, w), trans + "n")
    gemm(-1, V, X, 1, C, (rows, columns, w))


def multiply(a: Array, panels: list[StackPanel], b: Array, *, adjoint: bool) -> None:
    """Overwrite B with Q B, or Q^H B, from what `factor` leaves."""
    V, B = batch(a), batch(b)
    for panel in panels if adjoint else reversed(panels):
        first = panel.first
        shape = (a.shape[1] - first, b.shape[2])
        _apply(V.at(first, first), panel, B.at(first, 0), shape, "c" if adjoint else "n")


def triangles(a: Array, panels: list[StackPanel]) -> Array:
    """Return copies of what `factor` leaves of the first rows, with R in the upper triangles."""
    order = min(a.shape[1:])
    r = column_major_copy(a[:, :order, :order])
    _pack(r, panels)
    return r


def _pack(a: Array, panels: list[StackPanel]) -> None:
    """Move R to the upper triangles of the panels' diagonal blocks."""
    import cupy

    for first, width, r, _ in panels:
        here = slice(first, first + width)
        upper = cupy.tri(width, width, dtype=bool).T
        tile = a[:, here, here]
        cupy.copyto(tile, r[:, :width, :width], where=cupy.broadcast_to(upper, tile.shape))
