"""GPU kernels of Cholesky; all of them only enqueue."""

from __future__ import annotations

from hetero_la.tiles.kernels.device import Array, KernelOptions
from hetero_la.tiles.kernels.gpu.common import ceil_div, source
from hetero_la.tiles.kernels.gpu.inverse import pairs
from hetero_la.tiles.kernels.gpu.products import Product, product
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.registry import implements

_STRIP = 256  # columns of a strip of a product with a triangle, whose zeros are left out
_DIAGONAL = 256  # order of the blocks in which herk computes both triangles
_NARROW = 1024  # most columns for which herk also computes the whole triangle above
_LIBRARY = 8192  # largest order at which cuBLAS's syrk is faster than products (CuPy has no herk)


@implements("potrf", "gpu")
def potrf(q: GpuQueue, a: Array, info: Array, options: KernelOptions) -> None:
    q.potrf(block(a), len(a), info.data.ptr)


@implements("trmm_rc", "gpu")
def trmm_rc(q: GpuQueue, a: Array, w: Array, b: Array, options: KernelOptions) -> None:
    L, W, B = block(a), block(w), block(b)
    rows, order = b.shape
    step = min(rows, max(options.chunk // (order * b.itemsize), 1))
    X = q.matrix("trmm", step, order, b.dtype)
    substitute = q.function("substitute_right", source("lower", b.dtype))
    width = ceil_div(order, ceil_div(order, _STRIP))
    for first in range(0, rows, step):
        part, count = B.at(first, 0), min(step, rows - first)
        q.copy(X, part, count, order)
        whole = product(q, X, W, (count, order, order), options, "nc")
        if whole.kind == "split":
            whole.add(1, part, (count, order), beta=0)
        else:
            for left in range(0, order, width):  # W is zero above its diagonal
                right = min(left + width, order)
                shape = (count, right - left, right)
                q.gemm(1, X, W.at(left, 0), 0, part.at(0, left), shape, trans="nc")
        q.launch(
            substitute, (ceil_div(count, 64),), 64,
            W.pointer, L.pointer, L.ld, X.pointer, X.ld, part.pointer, part.ld, count, order,
        )  # fmt: skip


@implements("herk", "gpu")
def herk(q: GpuQueue, p: Array, c: Array, options: KernelOptions) -> None:
    P, C = block(p), block(c)
    (rows, columns), k = c.shape, p.shape[1]
    whole = product(q, P, P, (rows, columns, k), options, "nc")
    if columns <= _NARROW:
        _herk_blocks(whole, C, rows, columns, columns)
    elif columns <= _LIBRARY and C.dtype.kind == "f" and whole.kind == "native":
        q.syrk(-1, P, 1, C, columns, k)
        if rows > columns:
            below = (rows - columns, columns, k)
            q.gemm(-1, P.at(columns, 0), P, 1, C.at(columns, 0), below, trans="nc")
    else:
        _herk_blocks(whole, C, rows, columns, _DIAGONAL)


def _herk_blocks(product: Product, C: Block, rows: int, columns: int, leaf: int) -> None:
    """Compute herk by products: of diagonal blocks of order `leaf`, and of the blocks between."""
    q = product.q

    def update(
        row: int, column: int, shape: tuple[int, int], step: int = 0, count: int = 1
    ) -> None:
        """Compute C <- C - P P^H on `count` blocks, each `step` down and right of the last."""
        product.add(-1, C.at(row, column), shape, (row, column), step=step, count=count)

    # Products overwrite whole diagonal blocks: the part above the diagonal is restored.
    kept = q.workspace("herk", leaf * columns * C.dtype.itemsize)
    keep_upper = q.function("keep_upper", source("lower", C.dtype))
    q.launch(keep_upper, (columns,), 128, C.pointer, C.ld, kept, leaf, 0)
    whole = ceil_div(columns, leaf) - 1
    last = whole * leaf
    update(last, last, (rows - last, columns - last))
    if whole:
        update(0, 0, (leaf, leaf), leaf, whole)
    q.launch(keep_upper, (columns,), 128, C.pointer, C.ld, kept, leaf, 1)
    if last and rows > columns:
        update(columns, 0, (rows - columns, last))
    for first, size, others, count in pairs(columns, leaf):
        update(first + size, first, (others, size), 2 * size, count)
