"""LU panels on a GPU: recursion down to a kernel that keeps rows in registers.

Where the panel is too tall for that, a kernel keeps fewer columns of them in shared memory; where
too few columns fit, they stay in the GPU's memory.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.gpu.common import (
    UNIT_BYTES,
    ceil_div,
    solve_unit_lower,
    source,
    swap_pivots,
)
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.gpu.sources import Source
from hetero_la.tiles.kernels.registry import implements

_UNROLL = 8  # columns that getrf_leaf unrolls; its width is a multiple of this


class _Shape(NamedTuple):
    """Launch shape of getrf_leaf: a block has one row for each of its threads."""

    threads: int
    row_bytes: int  # most bytes of registers for a row
    most_rows: int  # most rows of a panel for which it is the fastest

    def columns(self, dtype: np.dtype) -> int:
        """Return the most columns of a leaf."""
        return self.row_bytes // dtype.itemsize


#: The wide leaf takes half as many launches, but twice as many multiprocessors, which are better
#: left to the trailing update of a tall matrix.
SHAPES = _Shape(256, 512, 8192), _Shape(512, 256, 2**31)


#: Of getrf_tall_leaf: threads of a block, most columns, and columns of a group of narrower leaves.
TALL_THREADS, TALL_COLUMNS, _GROUP = 512, 32, 16
#: Columns of a leaf that stay in the GPU's memory, or its cache, and the fewest in shared memory
#: that take less time.
_STREAMED, _FEWEST = 4, 4


class _Leaf(NamedTuple):
    """A compiled leaf: its most columns, and the shape of its launches."""

    kernel: Any
    columns: int
    threads: int
    blocks: int  # most of them
    rows: int  # most of a block
    shared: int = 0  # bytes of shared memory of a block
    group: int = 0  # columns of a group of tall leaves; 0: it is none of these


@functools.cache
def leaf_source(shape: _Shape, columns: int, dtype: np.dtype) -> Source:
    width = _UNROLL * ceil_div(columns, _UNROLL)
    defines = (f"IB={width}", f"THREADS={shape.threads}", f"UNROLL={_UNROLL}")
    return Source("panel", dtype, defines)


@functools.cache
def tall_source(dtype: np.dtype, resident: bool) -> Source:
    defines = (f"IB={TALL_COLUMNS}", f"THREADS={TALL_THREADS}", f"RESIDENT={int(resident)}")
    return Source("tall_panel", dtype, defines)


class TallShape(NamedTuple):
    """Launch shape of getrf_tall_leaf."""

    rows: int  # of a block
    columns: int  # of a leaf; 0 if too few fit into shared memory
    group: int  # columns of a group of leaves


def tall_shape(rows: int, blocks: int, elements: int, ib: int) -> TallShape:
    """Return the shape of the leaves of a tall panel.

    Parameters
    ----------
    rows : int
        Rows of the panel.
    blocks : int
        Blocks that are resident.
    elements : int
        Elements that fit into the shared memory of one of them.
    ib : int
        Most columns of a leaf.

    Examples
    --------
    Leaves share a group evenly, so that products begin at multiples of 16 rows: these are fastest.

    >>> tall_shape(1_000_000, 132, 28_000, 64)
    TallShape(rows=7584, columns=0, group=16)
    >>> tall_shape(250_000, 132, 28_000, 64)
    TallShape(rows=1920, columns=8, group=16)
    >>> tall_shape(100_000, 132, 28_000, 64)
    TallShape(rows=768, columns=32, group=32)
    """
    each = 32 * ceil_div(ceil_div(rows, blocks), 32)
    most = min(elements // each, TALL_COLUMNS)
    if most < _FEWEST:
        return TallShape(each, 0, _GROUP)
    most = min(most, ib)
    group = max(most // _GROUP, 1) * _GROUP
    return TallShape(each, ceil_div(group, ceil_div(group, most)), group)


def _leaf(q: GpuQueue, rows: int, dtype: np.dtype, ib: int) -> _Leaf:
    """Return the fastest leaf for a panel."""
    for shape in SHAPES:
        columns = min(ib, shape.columns(dtype))
        kernel = q.function("getrf_leaf", leaf_source(shape, columns, dtype))
        blocks = q.resident_blocks(kernel, shape.threads)
        if rows <= min(shape.most_rows, blocks * shape.threads):
            return _Leaf(kernel, columns, shape.threads, blocks, shape.threads)
    return _tall_leaf(q, rows, dtype, ib)


def _tall_leaf(q: GpuQueue, rows: int, dtype: np.dtype, ib: int) -> _Leaf:
    """Return a leaf with its columns in shared memory or, if too few fit, in the GPU's memory."""
    kernel = q.function("getrf_tall_leaf", tall_source(dtype, True))
    memory = q.allow_shared_memory(kernel)
    blocks = q.resident_blocks(kernel, TALL_THREADS, memory)
    shape = tall_shape(rows, blocks, memory // dtype.itemsize, ib)
    if shape.columns:
        shared = shape.rows * shape.columns * dtype.itemsize
        return _Leaf(kernel, shape.columns, TALL_THREADS, blocks, shape.rows, shared, shape.group)
    kernel = q.function("getrf_tall_leaf", tall_source(dtype, False))
    blocks = q.resident_blocks(kernel, TALL_THREADS)
    each, _, group = tall_shape(rows, blocks, 0, ib)
    return _Leaf(kernel, min(ib, _STREAMED), TALL_THREADS, blocks, each, 0, group)


@dataclass(slots=True)
class _LuPanel:
    q: GpuQueue
    A: Block
    rows: int
    ipiv: int
    info: int
    leaf: _Leaf

    def factor(self, first: int, width: int) -> None:
        """Factor columns ``first .. first + width`` of the rows from `first` on."""
        most = self.leaf.group or self.leaf.columns
        if width <= most:
            self.factor_group(first, width)
            return
        left = most * (ceil_div(width, most) // 2)
        right, middle = width - left, first + left
        q, A, top = self.q, self.A.at(first, first), self.A.at(first, middle)
        self.factor(first, left)
        swap_pivots(q, top, right, self.ipiv + 4 * first, left, first)
        solve_unit_lower(q, A, top, left, right)
        if self.rows > middle:
            below = (self.rows - middle, right, left)
            q.gemm(-1, A.at(left, 0), top, 1, self.A.at(middle, middle), below)
        self.factor(middle, right)
        swap_pivots(q, self.A.at(middle, first), left, self.ipiv + 4 * middle, right, middle)

    def factor_group(self, first: int, width: int) -> None:
        """Factor such columns leaf by leaf; each applies those before it to its own columns."""
        q, ipiv = self.q, self.ipiv + 4 * first
        for before in range(0, width, self.leaf.columns):
            columns, start = min(self.leaf.columns, width - before), first + before
            if before:
                top = self.A.at(first, start)
                swap_pivots(q, top, columns, ipiv, before, first)
                solve_unit_lower(q, self.A.at(first, first), top, before, columns)
            self.factor_leaf(start, columns, before)
            if before:
                left = self.A.at(start, first)
                swap_pivots(q, left, before, ipiv + 4 * before, columns, start)

    def factor_leaf(self, first: int, width: int, before: int) -> None:
        # Cooperative: all blocks start together or not at all.  Else two panels on
        # one GPU, each holding half of it, would wait for the rest of their blocks.
        q, A, rows, leaf = self.q, self.A.at(first, first), self.rows - first, self.leaf
        units = SHAPES[0].row_bytes // 4 + 1  # most units of a row
        nbytes = 2 * UNIT_BYTES * (leaf.blocks + (leaf.blocks + 1) * units)
        exchange = q.workspace("exchange", nbytes, zeroed=True)
        q.launch(
            leaf.kernel, (ceil_div(rows, leaf.rows),), leaf.threads,
            A.pointer, A.ld, rows, width, first, self.ipiv + 4 * first, self.info, exchange,
            q.numbers(width), q.timeout_flag, *((before,) if leaf.group else ()),
            cooperative=True, shared=leaf.shared,
        )  # fmt: skip


@implements("getrf", "gpu")
def getrf(q: GpuQueue, a: Array, ipiv: Array, info: Array, options: KernelOptions) -> None:
    rows, columns = a.shape
    A, order = block(a), min(rows, columns)
    ib = options.inner_blocking(SHAPES[0].columns(A.dtype), f" for {A.dtype}")
    leaf = _leaf(q, rows, A.dtype, ib)
    _LuPanel(q, A, rows, ipiv.data.ptr, info.data.ptr, leaf).factor(0, order)
    if columns > order:
        beside = A.at(0, order)
        swap_pivots(q, beside, columns - order, ipiv.data.ptr, order)
        solve_unit_lower(q, A, beside, order, columns - order)


@implements("getrf_nopiv", "gpu")
def getrf_nopiv(q: GpuQueue, a: Array, info: Array, options: KernelOptions) -> None:
    rows, columns = a.shape
    A, order = block(a), min(rows, columns)
    # Without pivots, as there is no array for them.
    q.factor("getrf", A.dtype, (rows, order, A.pointer, A.ld), (0, info.data.ptr))
    if columns > order:
        solve_unit_lower(q, A, A.at(0, order), order, columns - order)


@implements("growth", "gpu")
def growth(q: GpuQueue, p: Array, *rest: Array, options: KernelOptions) -> None:
    *above, g = rest
    g.data.memset_async(0, g.nbytes, q.stream)
    function = q.function("growth", source("growth", p.dtype))
    for part, diagonal in ((p, 0), *((one, len(one)) for one in above)):
        P = block(part)
        q.launch(function, part.shape[1:], 256, P.pointer, P.ld, len(part), diagonal, g.data.ptr)
