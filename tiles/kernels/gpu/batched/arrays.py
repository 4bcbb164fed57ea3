"""Stacks on the current GPU and stream: copies, and calls of kernels and of cuBLAS.

A stack is an array of shape (count, m, n).  Those made here are column-major: the columns of each
matrix are contiguous, one after the other.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.gpu.common import ceil_div, source
from hetero_la.tiles.kernels.gpu.queue import (
    Block,
    Triple,
    cublas_handle,
    element_strides,
    gemm_batch,
)
from hetero_la.tiles.kernels.gpu.sources import Source, kernel

#: Largest order of matrices that are factored together, a thread for each row: beyond it a run for
#: each matrix fills the GPU.
MOST = 512
#: Largest orders for which kernels are compiled.  The fewer threads a block has, the more registers
#: each may have: one warp has all, and 17 columns of complex128 want more than large blocks leave.
ORDERS = dict.fromkeys("fdF", (32, MOST)) | {"D": (32, 64, 128, MOST)}
#: Bytes of a row of a panel, which a thread has in registers, and most columns of a panel.
_ROW_BYTES, _MOST_COLUMNS = 256, 32


class Batch(NamedTuple):
    """Blocks of the matrices of a stack, `step` elements apart."""

    block: Block
    step: int
    matrices: int

    def at(self, row: int, column: int) -> Batch:
        """Return the blocks that begin at an element of these."""
        return self._replace(block=self.block.at(row, column))


@functools.cache
def stacks_source(file: str, dtype: np.dtype, order: int, *defines: str) -> Source:
    """Return a source of kernels that have a block for each matrix, of an order."""
    group = min(_ROW_BYTES // dtype.itemsize, _MOST_COLUMNS)
    most = next(most for most in ORDERS[dtype.char] if order <= most)
    return Source(file, dtype, (f"MOST={most}", f"GROUP={group}", *defines))


def threads_of(order: int) -> int:
    """Return how many threads a block has, one for each row at least."""
    return 32 * ceil_div(order, 32)


def column_major(count: int, m: int, n: int, dtype: Any) -> Array:
    """Allocate a stack."""
    import cupy

    return cupy.empty((count, n, m), dtype).swapaxes(1, 2)


def batch(a: Array) -> Batch:
    """Return the matrices of a stack that is column-major."""
    count, m, n = a.shape
    return Batch(Block(a.data.ptr, m, a.dtype), m * n, count)


def lines(a: Array) -> tuple[Array, Batch, bool]:
    """Return a stack or a row-major copy, its lines in memory, and whether these are columns.

    Rows, where they are contiguous, are the columns of the transpose, which the batch holds then.
    """
    import cupy

    count, m, n = a.shape
    step, down, across = element_strides(a)
    if (m == 1 or down == 1) and (n == 1 or across >= m):
        return a, Batch(Block(a.data.ptr, across if n > 1 else m, a.dtype), step, count), True
    if (n == 1 or across == 1) and (m == 1 or down >= n):
        return a, Batch(Block(a.data.ptr, down if m > 1 else n, a.dtype), step, count), False
    return lines(cupy.ascontiguousarray(a))


def column_major_copy(a: Array) -> Array:
    """Return a column-major copy of a stack; row-major ones are turned by one kernel."""
    a, given, by_columns = lines(a)
    count, m, n = a.shape
    copied = column_major(count, m, n, a.dtype)
    if by_columns:
        copied[...] = a
        return copied
    grid = (count * ceil_div(n, 32) * ceil_div(m, 32),)
    arguments = (given.block.pointer, given.block.ld, given.step, n, m, copied.data.ptr, m, m * n)
    kernel("turn", source("columns", a.dtype))(grid, (256,), arguments)
    return copied


def as_column_major(a: Array) -> Array:
    """Return a stack itself if it is column-major, and else such a copy."""
    _, m, n = a.shape
    packed = (m * n * a.itemsize, a.itemsize, m * a.itemsize)
    return a if a.strides == packed else column_major_copy(a)


def gemm(
    alpha: int, A: Batch, B: Batch, beta: int, C: Batch, shape: Triple, trans: str = "nn"
) -> None:
    """Compute C <- alpha A B + beta C for each matrix, `shape` = (m, n, k).

    "t" stands for A^T or B^T, and "c" for A^H or B^H.
    """
    blocks, steps = (A.block, B.block, C.block), (A.step, B.step, C.step)
    gemm_batch(
        cublas_handle(), alpha, *blocks[:2], beta, blocks[2], shape, steps, C.matrices, trans
    )
