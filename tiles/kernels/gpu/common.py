"""GPU kernels that several factorizations share; all of them only enqueue."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import copy_columns
from hetero_la.tiles.kernels.device import Array, KernelOptions
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
CHUNK = 2**26  # bytes of workspace that a kernel uses to work in place
_GATHER_COLUMNS = 8 * 65535  # of a launch of gather_rows: 8 a block, and CUDA's largest grid.y


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@functools.cache
def columns_source(dtype: np.dtype) -> Source:
    return Source("columns", dtype, (f"ENTRIES={_ENTRIES}",))


@functools.cache
def lower_source(dtype: np.dtype) -> Source:
    return Source("lower", dtype, (f"RHS={RHS}", f"SLICES={_SLICES}", f"STRIP={_STRIP}"))


@functools.cache
def triangles_source(dtype: np.dtype) -> Source:
    return Source("triangles", dtype, (f"PAIRED={PAIRED}", f"MOST={MOST_JOINED}"))


def _swap_grid(q: GpuQueue, columns: int) -> tuple[int]:
    """Return the grid of a kernel that swaps rows: one block for each of a few columns.

    With many columns there is one block a multiprocessor: fewer columns at once use memory better.
    """
    return (columns if columns <= 8 * q.multiprocessors else q.multiprocessors,)


def swap_pivots(q: GpuQueue, A: Block, columns: int, ipiv: int, w: int, offset: int = 0) -> None:
    """Apply the `w` swaps at address `ipiv`, less `offset`, to the rows of A."""
    if w > 1024 * _ENTRIES // 2:
        swap_serially(q, A, columns, ipiv, w, offset)
        return
    threads = min(1024, 32 * ceil_div(w, 32))
    q.launch(
        q.function("swap_pivots", columns_source(A.dtype)), _swap_grid(q, columns), threads,
        A.pointer, A.ld, columns, ipiv, w, offset,
    )  # fmt: skip


def swap_serially(q: GpuQueue, A: Block, columns: int, ipiv: int, w: int, offset: int = 0) -> None:
    """Apply any number of swaps as `swap_pivots` does, one after the other."""
    q.launch(
        q.function("swap_serial", columns_source(A.dtype)), (ceil_div(columns, 128),), 128,
        A.pointer, A.ld, columns, ipiv, w, offset,
    )  # fmt: skip


def solve_unit_lower(q: GpuQueue, L: Block, B: Block, order: int, columns: int) -> None:
    """Compute B <- L^-1 B, L unit lower triangular, by recursion on halves of L."""
    if order <= LEAF:
        grid = (ceil_div(columns, RHS),)
        arguments = (L.pointer, L.ld, B.pointer, B.ld, order, columns)
        q.launch(q.function("solve_unit_lower", lower_source(B.dtype)), grid, 32, *arguments)
        return
    top = LEAF * ceil_div(ceil_div(order, LEAF), 2)
    solve_unit_lower(q, L, B, top, columns)
    below = B.at(top, 0)
    q.gemm(-1, L.at(top, 0), B, 1, below, (order - top, columns, top))
    solve_unit_lower(q, L.at(top, top), below, order - top, columns)


def _net_stride(net: Array) -> int:
    """Return the entries from one move to the next in `net`, a column-major 2-row array."""
    return block(net).ld


def _enqueue_netperm(q: GpuQueue, ipiv: Array, net: int, stride: int) -> None:
    w = len(ipiv)
    links = q.workspace("links", 8 * w)
    grid = (ceil_div(w, 128),)
    q.launch(q.function("find_links", PERMUTE), grid, 128, ipiv.data.ptr, w, links)
    q.launch(q.function("netperm", PERMUTE), grid, 128, ipiv.data.ptr, w, links, net, stride)


@implements("netperm", "gpu")
def netperm(q: GpuQueue, ipiv: Array, net: Array, options: KernelOptions) -> None:
    _enqueue_netperm(q, ipiv, net.data.ptr, _net_stride(net))


@implements("swap", "gpu")
def swap(q: GpuQueue, ipiv: Array, net: Array, a: Array, options: KernelOptions) -> None:
    A, columns, entries = block(a), a.shape[1], net.shape[1]
    threads = 32 * ceil_div(entries, 32 * _ENTRIES)
    if threads > 1024:
        swap_pivots(q, A, columns, ipiv.data.ptr, len(ipiv))
        return
    q.launch(
        q.function("swap_net", columns_source(A.dtype)), _swap_grid(q, columns), threads,
        A.pointer, A.ld, columns, net.data.ptr, _net_stride(net), entries,
    )  # fmt: skip


def _laset(q: GpuQueue, a: Array, diagonal: int) -> None:
    A, (rows, columns) = block(a), a.shape
    function = q.function("laset", lower_source(A.dtype))
    q.launch(function, (columns,), 256, A.pointer, A.ld, rows, diagonal)


@implements("laset_0", "gpu")
def laset_0(q: GpuQueue, a: Array, options: KernelOptions) -> None:
    _laset(q, a, 0)


@implements("laset_1", "gpu")
def laset_1(q: GpuQueue, a: Array, options: KernelOptions) -> None:
    _laset(q, a, 1)


@implements("trmm", "gpu")
def trmm(q: GpuQueue, a: Array, w: Array, b: Array, options: KernelOptions) -> None:
    solve_by_inverse(q, a, w, b, unit=True)


def solve_by_inverse(q: GpuQueue, a: Array, w: Array, b: Array, *, unit: bool) -> None:
    """Compute B <- W B, or by substitution with L, of unit diagonal if `unit`."""
    L, W, B = block(a), block(w), block(b)
    order, columns = b.shape
    step = min(columns, max(CHUNK // (order * b.itemsize), 1))
    X = Block(q.workspace("trmm", order * step * b.itemsize), order, b.dtype)
    substitute = q.function("substitute", lower_source(b.dtype))
    for first in range(0, columns, step):
        part, count = B.at(0, first), min(step, columns - first)
        copy_columns(*copy_operands(X, part), order * b.itemsize, count, q.stream.ptr)
        q.gemm(1, W, X, 0, part, (order, count, order))
        q.launch(
            substitute, (min(count, 2 * q.multiprocessors),), 256, W.pointer, L.pointer, L.ld,
            X.pointer, X.ld, part.pointer, part.ld, order, count, int(unit),
        )  # fmt: skip


def copy_operands(target: Block, source: Block) -> tuple[int, int, int, int]:
    itemsize = target.dtype.itemsize
    return target.pointer, target.ld * itemsize, source.pointer, source.ld * itemsize


@implements("gemm", "gpu")
def gemm(q: GpuQueue, a: Array, b: Array, c: Array, options: KernelOptions) -> None:
    q.gemm(-1, block(a), block(b), 1, block(c), (*c.shape, a.shape[1]))


def _solver(form: Triangular) -> Callable[..., None]:
    def solve(q: GpuQueue, a: Array, b: Array, options: KernelOptions) -> None:
        q.trsm(form, block(a), block(b), min(a.shape), b.shape[1])

    return solve


for _name, _form in TRIANGULAR.items():
    implements(_name, "gpu")(_solver(_form))


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


@implements("laswp", "gpu")
def laswp(q: GpuQueue, perm: Array, a: Array, options: KernelOptions) -> None:
    rows, columns = len(perm), a.shape[1]
    A = block(a).at(a.shape[0] - rows, 0)
    step = min(columns, max(CHUNK // (rows * a.itemsize), 1), _GATHER_COLUMNS)
    T = Block(q.workspace("laswp", rows * step * a.itemsize), rows, np.dtype(a.dtype))
    gather = q.function("gather_rows", columns_source(a.dtype))
    for first in range(0, columns, step):
        part, count = A.at(0, first), min(step, columns - first)
        q.launch(
            gather, (ceil_div(rows, 256), ceil_div(count, 8)), 256,
            perm.data.ptr, part.pointer, part.ld, T.pointer, rows, count,
        )  # fmt: skip
        copy_columns(*copy_operands(part, T), rows * a.itemsize, count, q.stream.ptr)
