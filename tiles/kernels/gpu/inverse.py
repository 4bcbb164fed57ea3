"""Inverses of triangles on a GPU: of diagonal blocks first, which products then join."""

from __future__ import annotations

from collections.abc import Iterator

from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.gpu.common import LEAF, RHS, ceil_div, source
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.registry import implements


def pairs(order: int, leaf: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the pairs in which diagonal blocks of order `leaf` are joined until one is left.

    Each item is the start of the first pair, the orders of its two blocks, and the number of
    consecutive pairs; a pair whose second block is smaller is an item of its own.
    """
    size = leaf
    while size < order:
        count, rest = divmod(order, 2 * size)
        if count:
            yield 0, size, size, count
        if rest > size:
            yield 2 * size * count, size, rest - size, 1
        size *= 2


def invert(q: GpuQueue, L: Block, W: Block, order: int, *, unit: bool) -> None:
    """Compute W <- L^-1 in full, L lower triangular, of unit diagonal if `unit`."""
    function = q.function("invert_diagonal", source("lower", W.dtype))
    q.launch(
        function, (ceil_div(order, RHS),), 32, L.pointer, L.ld, W.pointer, W.ld, order, int(unit)
    )
    for first, size, rows, count in pairs(order, LEAF):
        _join(q, L.at(first, first), W.at(first, first), size, rows, count)


def _join(q: GpuQueue, L: Block, W: Block, size: int, rows: int, count: int) -> None:
    """Compute W21 <- -W22 L21 W11 in each pair on the diagonal, W21 being `rows` x `size`."""
    T = q.matrix("inverse", rows, count * size, W.dtype)
    L_step, W_step, T_step = (2 * size * (L.ld + 1), 2 * size * (W.ld + 1), rows * size)
    W21, W22 = W.at(size, 0), W.at(size, size)
    shape, steps = (rows, size, size), (L_step, W_step, T_step)
    q.gemm_batch(1, L.at(size, 0), W, 0, T, shape, steps, count)
    shape, steps = (rows, size, rows), (W_step, T_step, W_step)
    q.gemm_batch(-1, W22, T, 0, W21, shape, steps, count)


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
