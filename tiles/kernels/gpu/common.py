"""GPU kernels that several factorizations share; all of them only enqueue."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.gpu.products import multiply
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.gpu.sources import Source
from hetero_la.tiles.kernels.registry import implements
from hetero_la.tiles.kernels.spec import TRIANGULAR, Triangular

PERMUTE = Source("permute")
_ENTRIES = 4  # moves that a thread of swap_net holds
RHS, _SLICES = 2, 4  # columns, and slices of 32 rows, of a block of solve_lower
LEAF = 32 * _SLICES  # largest order of solve_lower
_STRIP = 16  # columns that a thread of substitute_right holds
PAIRED = 4  # columns of T that a block of join_pairs computes
MOST_JOINED = 128  # columns of the diagonal blocks that it joins
UNIT_BYTES = 16  # largest unit of exchange.cuh
GATHER_COLUMNS = 8 * 65535  # of a launch of gather_rows: 8 a block, and CUDA's largest grid.y


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


_DEFINES = {
    "columns": (f"ENTRIES={_ENTRIES}",),
    "lower": (f"RHS={RHS}", f"SLICES={_SLICES}", f"STRIP={_STRIP}"),
    "triangles": (f"PAIRED={PAIRED}", f"MOST={MOST_JOINED}"),
}


@functools.cache
def source(file: str, dtype: np.dtype) -> Source:
    """Return a source whose macros depend on nothing but the dtype."""
    return Source(file, dtype, _DEFINES.get(file, ()))


def _swap_grid(q: GpuQueue, columns: int) -> tuple[int]:
    """Return the grid of a kernel that swaps rows: one block for each of a few columns.

    With many columns there is one block a multiprocessor: fewer columns at once use memory better.
    """
    return (columns if columns <= 8 * q.multiprocessors else q.multiprocessors,)


def swap_pivots(q: GpuQueue, A: Block, columns: int, ipiv: int, w: int, offset: int = 0) -> None:
    """Apply the `w` swaps at address `ipiv`, less `offset`, to the rows of A."""
    name, grid, threads = "swap_pivots", _swap_grid(q, columns), min(1024, 32 * ceil_div(w, 32))
    if w > 1024 * _ENTRIES // 2:  # one after the other
        name, grid, threads = "swap_serial", (ceil_div(columns, 128),), 128
    function = q.function(name, source("columns", A.dtype))
    q.launch(function, grid, threads, A.pointer, A.ld, columns, ipiv, w, offset)


def solve_unit_lower(q: GpuQueue, L: Block, B: Block, order: int, columns: int) -> None:
    """Compute B <- L^-1 B, L unit lower triangular, by recursion on halves of L."""
    if order <= LEAF:
        grid = (ceil_div(columns, RHS),)
        arguments = (L.pointer, L.ld, B.pointer, B.ld, order, columns)
        q.launch(q.function("solve_unit_lower", source("lower", B.dtype)), grid, 32, *arguments)
        return
    top = LEAF * ceil_div(ceil_div(order, LEAF), 2)
    solve_unit_lower(q, L, B, top, columns)
    below = B.at(top, 0)
    q.gemm(-1, L.at(top, 0), B, 1, below, (order - top, columns, top))
    solve_unit_lower(q, L.at(top, top), below, order - top, columns)


def _enqueue_netperm(q: GpuQueue, ipiv: Array, net: int, stride: int) -> None:
    w = len(ipiv)
    links = q.workspace("links", 8 * w)
    grid = (ceil_div(w, 128),)
    q.launch(q.function("find_links", PERMUTE), grid, 128, ipiv.data.ptr, w, links)
    q.launch(q.function("netperm", PERMUTE), grid, 128, ipiv.data.ptr, w, links, net, stride)


@implements("netperm", "gpu")
def netperm(q: GpuQueue, ipiv: Array, net: Array, options: KernelOptions) -> None:
    _enqueue_netperm(q, ipiv, net.data.ptr, block(net).ld)


@implements("swap", "gpu")
def swap(q: GpuQueue, ipiv: Array, net: Array, a: Array, options: KernelOptions) -> None:
    A, columns, entries = block(a), a.shape[1], net.shape[1]
    threads = 32 * ceil_div(entries, 32 * _ENTRIES)
    if threads > 1024:
        swap_pivots(q, A, columns, ipiv.data.ptr, len(ipiv))
        return
    q.launch(
        q.function("swap_net", source("columns", A.dtype)), _swap_grid(q, columns), threads,
        A.pointer, A.ld, columns, net.data.ptr, block(net).ld, entries,
    )  # fmt: skip


def turn(q: GpuQueue, target: Array, given: Array) -> None:
    """Copy a row-major matrix of the queue's GPU to a column-major one."""
    A, B, (columns, rows) = block(given.T), block(target), given.shape
    grid = (ceil_div(rows, 32) * ceil_div(columns, 32),)
    function = q.function("turn", source("columns", A.dtype))
    q.launch(function, grid, 256, A.pointer, A.ld, 0, rows, columns, B.pointer, B.ld, 0)


@implements("laset_0", "gpu", diagonal=0)
@implements("laset_1", "gpu", diagonal=1)
def laset(q: GpuQueue, a: Array, options: KernelOptions, diagonal: int) -> None:
    A, (rows, columns) = block(a), a.shape
    function = q.function("laset", source("lower", A.dtype))
    q.launch(function, (columns,), 256, A.pointer, A.ld, rows, diagonal)


@implements("trmm", "gpu", unit=True)
@implements("trmm_n", "gpu", unit=False)
def trmm(q: GpuQueue, a: Array, w: Array, b: Array, options: KernelOptions, unit: bool) -> None:
    L, W, B = block(a), block(w), block(b)
    order, columns = b.shape
    step = min(columns, max(options.chunk // (order * b.itemsize), 1))
    X = q.matrix("trmm", order, step, b.dtype)
    substitute = q.function("substitute", source("lower", b.dtype))
    for first in range(0, columns, step):
        part, count = B.at(0, first), min(step, columns - first)
        q.copy(X, part, order, count)
        multiply(q, 1, W, X, 0, part, (order, count, order), options)
        q.launch(
            substitute, (min(count, 2 * q.multiprocessors),), 256, W.pointer, L.pointer, L.ld,
            X.pointer, X.ld, part.pointer, part.ld, order, count, int(unit),
        )  # fmt: skip


@implements("gemm", "gpu", trans="nn")
@implements("gemm_nc", "gpu", trans="nc")
@implements("gemm_cn", "gpu", trans="cn")
def gemm(q: GpuQueue, a: Array, b: Array, c: Array, options: KernelOptions, trans: str) -> None:
    m, k = a.shape[::-1] if trans == "cn" else a.shape
    shape = (m, c.shape[1], k)
    multiply(q, -1, block(a), block(b), 1, block(c), shape, options, trans)


@implements("gemm_block", "gpu")
def gemm_block(q: GpuQueue, *arrays: Array, options: KernelOptions) -> None:
    *parts, b, c = arrays
    (m, n), k = c.shape, b.shape[0]
    panels = [(block(a), a.shape[1]) for a in parts]
    if all(left.at(0, w) == right for (left, w), (right, _) in itertools.pairwise(panels)):
        panels = [(panels[0][0], k)]
    elif n > k:  # received panels are copied, which takes less time than a pass over C for each
        panels = [(_side_by_side(q, panels, m, k), k)]
    row = 0
    for a, width in panels:
        multiply(q, -1, a, block(b).at(row, 0), 1, block(c), (m, n, width), options)
        row += width


def _side_by_side(q: GpuQueue, panels: list[tuple[Block, int]], rows: int, columns: int) -> Block:
    """Copy panels of given widths into a workspace."""
    whole, column = q.matrix("panels", rows, columns, panels[0][0].dtype), 0
    for panel, width in panels:
        q.copy(whole.at(0, column), panel, rows, width)
        column += width
    return whole


def trsm(q: GpuQueue, a: Array, b: Array, options: KernelOptions, form: Triangular) -> None:
    q.trsm(form, block(a), block(b), min(a.shape), b.shape[1])


for _name, _form in TRIANGULAR.items():
    implements(_name, "gpu", form=_form)(trsm)


@implements("compose", "gpu")
def compose(q: GpuQueue, ipiv: Array, *rest: Any, options: KernelOptions) -> None:
    *after, perm = rest
    rows, w = len(perm), len(ipiv)
    grid = (ceil_div(rows, 256),)
    first = q.workspace("compose", 4 * rows) if after else perm.data.ptr
    net = q.workspace("net", 16 * w)
    _enqueue_netperm(q, ipiv, net, 2)
    q.launch(q.function("identity_permutation", PERMUTE), grid, 256, first, rows)
    scatter = q.function("scatter_net", PERMUTE)
    q.launch(scatter, (ceil_div(2 * w, 256),), 256, net, 2, 2 * w, first)
    if after:
        q.launch(
            q.function("gather_permutation", PERMUTE), grid, 256,
            first, after[0].data.ptr, rows - len(after[0]), rows, perm.data.ptr,
        )  # fmt: skip


def gather_grid(rows: int, columns: int) -> tuple[int, int]:
    """Return the grid of gather_rows, whose blocks are of 256 threads."""
    return ceil_div(rows, 256), ceil_div(columns, 8)


@implements("laswp", "gpu")
def laswp(q: GpuQueue, perm: Array, a: Array, options: KernelOptions) -> None:
    rows, columns = len(perm), a.shape[1]
    A = block(a).at(a.shape[0] - rows, 0)
    step = min(columns, max(options.chunk // (rows * a.itemsize), 1), GATHER_COLUMNS)
    T = q.matrix("laswp", rows, step, a.dtype)
    gather = q.function("gather_rows", source("columns", a.dtype))
    for first in range(0, columns, step):
        part, count = A.at(0, first), min(step, columns - first)
        q.launch(
            gather, gather_grid(rows, count), 256,
            perm.data.ptr, part.pointer, part.ld, T.pointer, rows, count,
        )  # fmt: skip
        q.copy(part, T, rows, count)
