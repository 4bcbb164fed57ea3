"""Inverses of triangles on a GPU: of diagonal blocks first, which products then join."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.gpu.common import LEAF, RHS, ceil_div, source
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.registry import implements

GemmBatch = Callable[..., None]
#: The grid of a launch, threads of a block, and arguments.
Launch = tuple[tuple[int, ...], int, tuple[Any, ...]]


def pairs(order: int, leaf: int, most: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield the pairs in which diagonal blocks of order `leaf` are joined to ones of order `most`.

    Each item is the start of the first pair, the orders of its two blocks, and the number of
    consecutive pairs; a pair whose second block is smaller is an item of its own.

    Parameters
    ----------
    order : int
        Order of the triangle.
    leaf, most : int
        Orders of the blocks; `most` is `leaf` times a power of two, or by default `order`.

    Examples
    --------
    >>> list(pairs(900, 128, 512))
    [(0, 128, 128, 3), (768, 128, 4, 1), (0, 256, 256, 1), (512, 256, 132, 1)]
    """
    size = leaf
    while size < (most or order):
        count, rest = divmod(order, 2 * size)
        if count:
            yield 0, size, size, count
        if rest > size:
            yield 2 * size * count, size, rest - size, 1
        size *= 2


def leaves(T: Block, W: Block, order: int, most: int, triangle: str, unit: bool) -> Launch:
    """Return what a launch of `invert_diagonal` takes after its kernel.

    `most` is the order of W's diagonal blocks, of which the other triangle gets zeros.
    """
    arguments = (T.pointer, T.ld, W.pointer, W.ld, order, most, int(unit), int(triangle == "u"))
    return (ceil_div(order, RHS),), 32, arguments


def join(
    gemm_batch: GemmBatch, triangle: str, T: Block, W: Block, work: int, size: int, rows: int,
    count: int,
) -> None:  # fmt: skip
    """Complete the inverses of pairs of diagonal blocks, of orders `size` and `rows`.

    W21 = -W22 T21 W11 in a lower triangle, W12 = -W11 T12 W22 in an upper one.

    Parameters
    ----------
    gemm_batch : callable
        Enqueues products, as `GpuQueue.gemm_batch` does.
    triangle : {"l", "u"}
        Which triangle T is.
    T, W : Block
        Where the first pair begins in the matrix, and in that of inverses.
    work : int
        Address of room for `count` products of `size` times `rows` elements.
    """
    second, steps = W.at(size, size), [2 * size * (X.ld + 1) for X in (T, W)]
    if triangle == "l":
        m, n, across, left, right = rows, size, (size, 0), second, W
    else:
        m, n, across, left, right = size, rows, (0, size), W, second
    product, inner, apart = Block(work, m, T.dtype), *steps
    gemm_batch(1, T.at(*across), right, 0, product, (m, n, n), (inner, apart, m * n), count)
    gemm_batch(-1, left, product, 0, W.at(*across), (m, n, m), (apart, m * n, apart), count)


def invert(q: GpuQueue, L: Block, W: Block, order: int, *, unit: bool) -> None:
    """Compute W <- L^-1 in full, L lower triangular, of unit diagonal if `unit`."""
    function = q.function("invert_diagonal", source("lower", W.dtype))
    grid, threads, arguments = leaves(L, W, order, order, "l", unit)
    q.launch(function, grid, threads, *arguments)
    for first, size, rows, count in pairs(order, LEAF):
        work = q.workspace("inverse", count * size * rows * W.dtype.itemsize)
        join(q.gemm_batch, "l", L.at(first, first), W.at(first, first), work, size, rows, count)


@implements("trtri", "gpu", unit=True)
@implements("trtri_n", "gpu", unit=False)
def trtri(q: GpuQueue, a: Array, w: Array, options: KernelOptions, unit: bool) -> None:
    L, W, order = block(a), block(w), len(w)
    invert(q, L, W, order, unit=unit)
    # Set W[0, 0] to NaN if ||W||_1 ||L||_1 exceeds the bound; L at address 0 has norm 1.
    norm_of = (0, 0) if unit else (L.pointer, L.ld)
    q.launch(
        q.function("check_inverse", source("lower", W.dtype)), (order,), 256,
        W.pointer, W.ld, *norm_of, order, float(options.inverse_bound),
        q.workspace("check_inverse", 24, zeroed=True),
    )  # fmt: skip
