"""QR on a GPU: panels by recursion down to blocks, whose leaves are a kernel each.

A leaf keeps its rows in registers.  A block's T is computed from V^H V in the end, so that few
kernels are enqueued: the host takes nearly as long for that as the GPU for the kernels.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.gpu.cholesky_qr import CholeskyQR
from hetero_la.tiles.kernels.gpu.common import MOST_JOINED, PAIRED, UNIT_BYTES, ceil_div, source
from hetero_la.tiles.kernels.gpu.products import multiply
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.gpu.sources import Source
from hetero_la.tiles.kernels.registry import implements

THREADS = 512  # of a block of geqrf_leaf
STRIP_BYTES = 256  # of a column of the strip that a warp holds
LANES = 32  # most columns of a leaf
_BLOCK = 2 * MOST_JOINED  # most columns of a block
_BLOCK_BYTES = 2048  # most bytes of a block's row: wider blocks cost more memory traffic than gain
_NATIVE = KernelOptions()
_CHUNK = 2**28  # bytes of each workspace of larfb: at this width a product loses no speed


@functools.cache
def leaf_source(dtype: np.dtype, resident: bool, threads: int = THREADS) -> Source:
    rows = STRIP_BYTES // dtype.itemsize
    defines = (f"THREADS={threads}", f"ROWS={rows}", f"RESIDENT={int(resident)}")
    return Source("reflectors", dtype, defines)


def _leaf_kernel(q: GpuQueue, dtype: np.dtype, resident: bool) -> tuple[Any, int]:
    """Return the leaf's kernel, for rows in registers or in memory, and its resident blocks."""
    kernel = q.function("geqrf_leaf", leaf_source(dtype, resident))
    return kernel, q.resident_blocks(kernel, THREADS)


@dataclass(slots=True)
class _QrPanel:
    q: GpuQueue
    A: Block
    R: Block
    T: Block
    tau: int
    rows: int
    ib: int
    leaf_kernel: Any
    blocks: int

    def factor(self, first: int, width: int) -> None:
        """Factor columns ``first .. first + width`` of the rows from `first` on."""
        most = min(_BLOCK, _BLOCK_BYTES // self.A.dtype.itemsize)
        widest = self.ib << (most // self.ib).bit_length() - 1
        if width <= widest:
            self.factor_block(first, width)
            return
        # At least half: for move_upper, there are two diagonal blocks.
        left = widest * ceil_div(ceil_div(width, widest), 2)
        self.factor(first, left)
        self.update(first, left, width - left)
        self.factor(first + left, width - left)
        self.move_upper(first, width, left)
        self.join(first, left, width - left)

    def factor_block(self, first: int, width: int) -> None:
        """Factor such columns leaf by leaf, and join the leaves' T at the end."""
        q, V, T = self.q, self.A.at(first, first), self.T.at(first, first)
        for start in range(0, width, self.ib):
            columns = min(self.ib, width - start)
            self.leaf(first + start, columns)
            self.update(first + start, columns, width - start - columns)
        if width <= self.ib:
            return
        self.move_upper(first, width, self.ib)
        G = q.matrix("join", width, width, V.dtype)
        q.gemm(1, V, V, 0, G, (width, width, self.rows - first), trans="cn")
        joined = self.ib
        while joined < width:
            grid = (ceil_div(joined, PAIRED), ceil_div(width, 2 * joined))
            q.launch(
                q.function("join_pairs", source("triangles", V.dtype)), grid, 128,
                T.pointer, T.ld, G.pointer, G.ld, width, joined,
            )  # fmt: skip
            joined *= 2

    def update(self, first: int, left: int, right: int) -> None:
        """Apply the reflectors of `left` columns to the `right` ones beside them."""
        if right:
            A, T = self.A.at(first, first), self.T.at(first, first)
            _apply(self.q, A, T, A.at(0, left), (self.rows - first, right, left), "c")

    def move_upper(self, first: int, width: int, diagonal: int) -> None:
        """Move the part above diagonal blocks of order `diagonal` to R."""
        A, R, T = (x.at(first, first) for x in (self.A, self.R, self.T))
        self.q.launch(
            self.q.function("move_upper", source("triangles", A.dtype)), (width,), 128,
            A.pointer, A.ld, R.pointer, R.ld, T.pointer, T.ld, diagonal,
        )  # fmt: skip

    def join(self, first: int, left: int, right: int) -> None:
        """Compute T12 <- -T1 V1^H V2 T2; only rows of V1 where V2 is not zero count."""
        q, V, T = self.q, self.A.at(first + left, first), self.T.at(first, first)
        T12, W = T.at(0, left), q.matrix("join", left, right, V.dtype)
        rows = self.rows - first - left
        q.gemm(1, V, V.at(0, left), 0, T12, (left, right, rows), trans="cn")
        q.gemm(1, T12, T.at(left, left), 0, W, (left, right, right))
        q.gemm(-1, T, W, 0, T12, (left, right, left))

    def leaf(self, first: int, width: int) -> None:
        # Cooperative: all blocks start together or not at all.  Else two panels on
        # one GPU, each holding half of it, would wait for the rest of their blocks.
        q, A, R, T = self.q, *(x.at(first, first) for x in (self.A, self.R, self.T))
        rows, itemsize = self.rows - first, A.dtype.itemsize
        units = 2 * (self.blocks + 1) * LANES * 2  # a complex number takes two
        exchange = q.workspace("reflectors", units * UNIT_BYTES, zeroed=True)
        q.launch(
            self.leaf_kernel, (min(ceil_div(rows, _block_rows(A.dtype)), self.blocks),), THREADS,
            A.pointer, A.ld, rows, width, R.pointer, R.ld, T.pointer, T.ld,
            self.tau + first * itemsize, exchange, q.numbers(width), q.timeout_flag,
            cooperative=True,
        )  # fmt: skip


def _block_rows(dtype: np.dtype) -> int:
    return THREADS // 32 * STRIP_BYTES // dtype.itemsize


def _apply(
    q: GpuQueue, V: Block, T: Block, C: Block, shape: tuple[int, int, int], trans: str,
    options: KernelOptions = _NATIVE,
) -> None:  # fmt: skip
    """Compute C <- C - V T V^H C, or with T^H; `shape`: rows and columns of C, columns of V."""
    rows, columns, w = shape
    step = min(columns, max(_CHUNK // (w * C.dtype.itemsize), 1))
    W, X = (q.matrix(name, w, step, C.dtype) for name in ("V^H C", "T V^H C"))
    for first in range(0, columns, step):
        part, count = C.at(0, first), min(step, columns - first)
        multiply(q, 1, V, part, 0, W, (w, count, rows), options, "cn")
        multiply(q, 1, T, W, 0, X, (w, count, w), options, trans + "n")
        multiply(q, -1, V, X, 1, part, (rows, count, w), options)


@implements("geqrf", "gpu")
def geqrf(
    q: GpuQueue, a: Array, tau: Array, r: Array, t: Array, method: Array, options: KernelOptions
) -> None:
    (rows, columns), order = a.shape, len(tau)
    A, R, T = block(a), block(r), block(t)
    ib = options.inner_blocking(LANES)
    kernel, blocks = _leaf_kernel(q, A.dtype, True)
    in_registers = rows <= blocks * _block_rows(A.dtype)
    exponents = q.workspace("exponents", 4 * order)
    scale = q.function("scale_columns", source("triangles", A.dtype))
    q.launch(scale, (order,), 1024, A.pointer, A.ld, rows, exponents)
    arguments = (q, A, R, T, tau.data.ptr)
    method.data.memset_async(0, method.nbytes, q.stream)
    # LAPACK's last reflector of a square panel is the identity, which cannot be reconstructed.
    tried = rows > order and options.qr_panel != "householder"
    if options.qr_panel == "auto":
        tried = tried and not in_registers
    if not (tried and CholeskyQR(*arguments, method.data.ptr, rows, order).factor()):
        if not in_registers:
            kernel, blocks = _leaf_kernel(q, A.dtype, False)
        _QrPanel(*arguments, rows, ib, kernel, blocks).factor(0, order)
    unscale = q.function("unscale", source("triangles", A.dtype))
    q.launch(unscale, (order,), 256, R.pointer, R.ld, exponents)
    if columns > order:
        _apply(q, A, T, A.at(0, order), (rows, columns - order, order), "c")


@implements("larfb_c", "gpu", trans="c")
@implements("larfb_n", "gpu", trans="n")
def larfb(q: GpuQueue, v: Array, t: Array, c: Array, options: KernelOptions, trans: str) -> None:
    _apply(q, block(v), block(t), block(c), (*c.shape, len(t)), trans, options)


@implements("gemqrt_c", "gpu", trans="c")
@implements("gemqrt_n", "gpu", trans="n")
def gemqrt(q: GpuQueue, a: Array, t: Array, c: Array, options: KernelOptions, trans: str) -> None:
    A, rows, columns = block(a), len(a), len(t)
    V = q.matrix("V", rows, columns, A.dtype)
    copy = q.function("copy_reflectors", source("triangles", A.dtype))
    q.launch(copy, (columns,), 256, A.pointer, A.ld, V.pointer, V.ld, rows)
    _apply(q, V, block(t), block(c), (*c.shape, columns), trans, options)


@implements("lacpy", "gpu")
def lacpy(q: GpuQueue, r: Array, a: Array, options: KernelOptions) -> None:
    R, A = block(r), block(a)
    copy = q.function("copy_upper", source("triangles", R.dtype))
    q.launch(copy, (len(r),), 256, R.pointer, R.ld, A.pointer, A.ld)
