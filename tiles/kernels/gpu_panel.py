"""LU panels on a GPU: recursive down to a kernel that keeps rows in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.tiles.kernels.gpu_kernels import solve_unit_lower, swap_pivots
from hetero_la.tiles.kernels.gpu_queue import Block, GpuQueue, block
from hetero_la.tiles.kernels.registry import implements
from hetero_la.tiles.kernels.spec import LETTER, Array, KernelOptions

_SOURCES = ("scalar", "exchange", "panel")
_THREADS = 512  # rows of a block of getrf_leaf
_UNROLL = 8  # columns it unrolls; its width is a multiple of this
_ROW_BYTES = 256  # registers that a row may fill
_DEFAULT_IB = {"float32": 64, "float64": 32, "complex64": 32, "complex128": 16}
_UNIT_BYTES = 16  # of exchange.cu, at most


def inner_blocking(options: KernelOptions, dtype: np.dtype) -> int:
    """Columns of a leaf.

    Raises
    ------
    ValueError
        If ``options.ib`` is below one, or more than registers hold.
    """
    largest = _ROW_BYTES // dtype.itemsize
    if options.ib is None:
        return _DEFAULT_IB[dtype.name]
    if not 1 <= options.ib <= largest:
        raise ValueError(f"ib must be in 1..{largest} for {dtype} on a GPU, not {options.ib}")
    return options.ib


@dataclass(slots=True)
class _Panel:
    q: GpuQueue
    A: Block
    rows: int
    ipiv: int
    info: int
    ib: int
    leaf_kernel: Any
    blocks: int

    def factor(self, first: int, width: int) -> None:
        """Factor columns ``first .. first + width`` of the rows from `first` on."""
        if width <= self.ib:
            self.leaf(first, width)
            return
        left = self.ib * (-(-width // self.ib) // 2)
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

    def leaf(self, first: int, width: int) -> None:
        # Cooperative: all blocks start together or not at all.  Else two panels on
        # one GPU, each holding half of it, would wait for the rest of their blocks.
        q, A, rows = self.q, self.A.at(first, first), self.rows - first
        exchange, number = _exchange(q, self.blocks, width)
        q.launch(
            self.leaf_kernel, (-(-rows // _THREADS),), _THREADS,
            A.pointer, A.ld, rows, width, first, self.ipiv + 4 * first, self.info, exchange, number,
            cooperative=True,
        )  # fmt: skip


@implements("getrf", "gpu")
def getrf(q: GpuQueue, a: Array, ipiv: Array, info: Array, options: KernelOptions) -> None:
    rows, columns = a.shape
    A, order = block(a), min(rows, columns)
    ib = inner_blocking(options, A.dtype)
    width = _UNROLL * -(-ib // _UNROLL)
    defines = (f"-DIB={width}", f"-DTHREADS={_THREADS}", f"-DUNROLL={_UNROLL}")
    kernel = q.function("getrf_leaf", _SOURCES, A.dtype, *defines)
    blocks = q.resident_blocks(kernel, _THREADS)
    if rows <= blocks * _THREADS:
        panel = _Panel(q, A, rows, ipiv.data.ptr, info.data.ptr, ib, kernel, blocks)
        panel.factor(0, order)
    else:
        _library_getrf(q, A, rows, order, ipiv.data.ptr, info.data.ptr)
    if columns > order:
        beside = A.at(0, order)
        swap_pivots(q, beside, columns - order, ipiv.data.ptr, order)
        solve_unit_lower(q, A, beside, order, columns - order)


def _exchange(q: GpuQueue, blocks: int, columns: int) -> tuple[int, int]:
    """Workspace for the blocks' exchange, and numbers not used in it before."""
    nbytes = 2 * _UNIT_BYTES * (blocks + (blocks + 1) * (_ROW_BYTES // 4 + 1))
    exchange = q.workspace("exchange", nbytes, zeroed=True)
    return exchange, q.numbers(columns)


def _library_getrf(q: GpuQueue, A: Block, rows: int, columns: int, ipiv: int, info: int) -> None:
    """Let cuSOLVER factor the panel: for more rows than stay resident."""
    from cupy_backends.cuda.libs import cusolver

    letter = LETTER[A.dtype.name]
    handle = q.handle("cusolver")
    arguments = (handle, rows, columns, A.pointer, A.ld)
    count = getattr(cusolver, letter + "getrf_bufferSize")(*arguments)
    work = q.workspace("getrf", count * A.dtype.itemsize)
    getattr(cusolver, letter + "getrf")(*arguments, work, ipiv, info)
    function = q.function("to_zero_based", ("pivots", "permute"))
    q.launch(function, (-(-columns // 256),), 256, ipiv, columns)
