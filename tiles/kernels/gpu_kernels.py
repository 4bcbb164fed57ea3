"""GPU kernels except the panel; every one of them only enqueues."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.kernels.gpu_queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.registry import implements
from hetero_la.tiles.kernels.spec import Array, KernelOptions
from hetero_la.tiles.transfer import copy_columns

_COLUMNS = ("scalar", "pivots", "columns")
_PERMUTE = ("pivots", "permute")
_ENTRIES = 4  # moves that a thread of swap_net holds
_RHS, _SLICES = 2, 4  # columns, and rows in slices of 32, of a block of solve_unit_lower
_CHUNK = 2**26  # bytes of workspace that a kernel takes to work in place
_GATHER_COLUMNS = 8 * 65535  # gather_rows takes 8 a block, and a grid's height ends there


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _function(q: GpuQueue, name: str, dtype: np.dtype) -> Any:
    defines = (f"-DENTRIES={_ENTRIES}", f"-DRHS={_RHS}", f"-DSLICES={_SLICES}")
    return q.function(name, _COLUMNS, dtype, *defines)


def _swap_grid(q: GpuQueue, columns: int) -> tuple[int]:
    """Blocks that swap rows: a block a column if these are few.

    With many, the fewer are under way at once, the better the memory is used.
    """
    return (columns if columns <= 8 * q.multiprocessors else q.multiprocessors,)


def swap_pivots(q: GpuQueue, A: Block, columns: int, ipiv: int, w: int, offset: int = 0) -> None:
    """Apply the `w` swaps at address `ipiv`, less `offset`, to the rows of A."""
    arguments = (A.pointer, A.ld, columns, ipiv, w, offset)
    if w <= 1024 * _ENTRIES // 2:
        threads = min(1024, 32 * _ceil_div(w, 32))
        function = _function(q, "swap_pivots", A.dtype)
        q.launch(function, _swap_grid(q, columns), threads, *arguments)
    else:
        function = _function(q, "swap_serial", A.dtype)
        q.launch(function, (_ceil_div(columns, 128),), 128, *arguments)


def solve_unit_lower(q: GpuQueue, L: Block, B: Block, order: int, columns: int) -> None:
    """B <- L^-1 B, L unit lower triangular; halves down to what a block holds."""
    largest = 32 * _SLICES
    if order <= largest:
        grid = (_ceil_div(columns, _RHS),)
        arguments = (L.pointer, L.ld, B.pointer, B.ld, order, columns)
        q.launch(_function(q, "solve_unit_lower", B.dtype), grid, 32, *arguments)
        return
    top = largest * _ceil_div(_ceil_div(order, largest), 2)
    solve_unit_lower(q, L, B, top, columns)
    below = B.at(top, 0)
    q.gemm(-1, L.at(top, 0), B, 1, below, (order - top, columns, top))
    solve_unit_lower(q, L.at(top, top), below, order - top, columns)


def _net_stride(net: Array) -> int:
    """Entries between moves: `net` is column-major, a move is two adjacent ones."""
    return block(net).ld


def _enqueue_netperm(q: GpuQueue, ipiv: Array, net: int, stride: int) -> None:
    w = len(ipiv)
    links = q.workspace("links", 8 * w)
    grid = (_ceil_div(w, 128),)
    q.launch(q.function("find_links", _PERMUTE), grid, 128, ipiv.data.ptr, w, links)
    q.launch(q.function("netperm", _PERMUTE), grid, 128, ipiv.data.ptr, w, links, net, stride)


@implements("netperm", "gpu")
def netperm(q: GpuQueue, ipiv: Array, net: Array, options: KernelOptions) -> None:
    _enqueue_netperm(q, ipiv, net.data.ptr, _net_stride(net))


@implements("swap", "gpu")
def swap(q: GpuQueue, ipiv: Array, net: Array, a: Array, options: KernelOptions) -> None:
    A, columns, entries = block(a), a.shape[1], net.shape[1]
    threads = 32 * _ceil_div(entries, 32 * _ENTRIES)
    if threads > 1024:
        swap_pivots(q, A, columns, ipiv.data.ptr, len(ipiv))
        return
    q.launch(
        _function(q, "swap_net", A.dtype), _swap_grid(q, columns), threads,
        A.pointer, A.ld, columns, net.data.ptr, _net_stride(net), entries,
    )  # fmt: skip


@implements("trtri", "gpu")
def trtri(q: GpuQueue, a: Array, w: Array, options: KernelOptions) -> None:
    W, order = block(w), w.shape[0]
    q.launch(_function(q, "set_identity", W.dtype), (order,), 256, W.pointer, W.ld, order)
    solve_unit_lower(q, block(a), W, order, order)
    q.launch(
        _function(q, "check_inverse", W.dtype), (order,), 256,
        W.pointer, W.ld, order, float(options.inverse_bound),
    )  # fmt: skip


@implements("trmm", "gpu")
def trmm(q: GpuQueue, a: Array, w: Array, b: Array, options: KernelOptions) -> None:
    L, W, B = block(a), block(w), block(b)
    order, columns = b.shape
    step = min(columns, max(_CHUNK // (order * b.itemsize), 1))
    X = Block(q.workspace("trmm", order * step * b.itemsize), order, b.dtype)
    substitute = _function(q, "substitute", b.dtype)
    for first in range(0, columns, step):
        part, count = B.at(0, first), min(step, columns - first)
        copy_columns(*_to_from(X, part), order * b.itemsize, count, q.stream.ptr)
        q.gemm(1, W, X, 0, part, (order, count, order))
        q.launch(
            substitute, (min(count, 2 * q.multiprocessors),), 256,
            W.pointer, L.pointer, L.ld, X.pointer, X.ld, part.pointer, part.ld, order, count,
        )  # fmt: skip


def _to_from(target: Block, source: Block) -> tuple[int, int, int, int]:
    itemsize = target.dtype.itemsize
    return target.pointer, target.ld * itemsize, source.pointer, source.ld * itemsize


@implements("gemm", "gpu")
def gemm(q: GpuQueue, a: Array, b: Array, c: Array, options: KernelOptions) -> None:
    q.gemm(-1, block(a), block(b), 1, block(c), (*c.shape, a.shape[1]))


@implements("trsm", "gpu")
def trsm(q: GpuQueue, a: Array, b: Array, options: KernelOptions) -> None:
    q.trsm_upper(block(a), block(b), *b.shape)


@implements("compose", "gpu")
def compose(q: GpuQueue, ipiv: Array, *rest: Any, options: KernelOptions) -> None:
    *after, perm = rest
    rows, w = len(perm), len(ipiv)
    grid = (_ceil_div(rows, 256),)
    first = q.workspace("compose", 4 * rows) if after else perm.data.ptr
    net = q.workspace("net", 16 * w)
    _enqueue_netperm(q, ipiv, net, 2)
    q.launch(q.function("identity_permutation", _PERMUTE), grid, 256, first, rows)
    scatter = q.function("scatter_net", _PERMUTE)
    q.launch(scatter, (_ceil_div(2 * w, 256),), 256, net, 2, 2 * w, first)
    if after:
        q.launch(
            q.function("gather_permutation", _PERMUTE), grid, 256,
            first, after[0].data.ptr, rows - len(after[0]), rows, perm.data.ptr,
        )  # fmt: skip


@implements("laswp", "gpu")
def laswp(q: GpuQueue, perm: Array, a: Array, options: KernelOptions) -> None:
    rows, columns = len(perm), a.shape[1]
    A = block(a).at(a.shape[0] - rows, 0)
    step = min(columns, max(_CHUNK // (rows * a.itemsize), 1), _GATHER_COLUMNS)
    T = Block(q.workspace("laswp", rows * step * a.itemsize), rows, np.dtype(a.dtype))
    gather = _function(q, "gather_rows", a.dtype)
    for first in range(0, columns, step):
        part, count = A.at(0, first), min(step, columns - first)
        q.launch(
            gather, (_ceil_div(rows, 256), _ceil_div(count, 8)), 256,
            perm.data.ptr, part.pointer, part.ld, T.pointer, rows, count,
        )  # fmt: skip
        copy_columns(*_to_from(part, T), rows * a.itemsize, count, q.stream.ptr)
