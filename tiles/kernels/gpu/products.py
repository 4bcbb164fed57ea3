"""Products of matrices on a GPU: cuBLAS's own, of operands split into parts, or complex by 3M.

A product in single precision is one of half precision on tensor cores, three times as long: each
operand, scaled by a power of two, is the sum of a high and a low part of eleven bits, and all but
the product of the low parts counts (Fasi, Higham, Lopez, Mary, Mikaitis, SIAM J. Sci. Comput. 45,
2023; Ootomo, Yokota, Int. J. High Perform. Comput. Appl. 36, 2022):

    2^(a + b) A B = [Al Ah Ah] [Bh; Bl; Bh]

Parts in TF32 have as many bits and need no scaling, but are multiplied at half the rate.

A complex product is one of real matrices, since a column-major complex C is a real matrix of
twice as many rows: the left operand's numbers become 2 x 2 blocks, the right one's two rows.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.kernels.device import KernelOptions, Products
from hetero_la.tiles.kernels.gpu.queue import Block, GpuQueue, Triple, host_scalar, operation
from hetero_la.tiles.kernels.gpu.sources import Source

#: Fewest multiplications, and fewest rows and columns of C, for which other products are faster.
_LARGE, _NARROWEST = 2**32, 128
PARTS_BYTES = 2**30  #: most bytes of a right operand's parts, unless they are one column
_PARTS = 3
_MOST_BLOCKS = 2048
_HALF = np.dtype(np.float16)
#: CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
_REAL_16, _REAL_32, _IN_32, _DEFAULT = 2, 0, 68, -1
_ON_HOST, _ON_DEVICE = 0, 1  # cublasPointerMode_t
#: Most elements of C that the products of a batch span. With numbers in half precision cuBLAS wrote
#: to other memory where they spanned 2^32, and not where they spanned 2^30 (CUDA 13, H100, H200).
_REACH = 2**30
_HAS_REDUCTIONS = 80  # compute capability from which on a warp finds its maximum in one instruction
#: Bytes of `Scales` in products.cu, and where it has the factors of a product and of C.
_SCALES, _ALPHAS, _BETAS = 24, {1: 8, -1: 12}, {0: 16, 1: 20}


class Product(NamedTuple):
    """Operands that are ready for products of any rows of op(A) with any columns of op(B)."""

    q: GpuQueue
    A: Block
    B: Block
    inner: int
    trans: str
    kind: Products
    rows: int = 1  #: of A for each row of C

    def add(
        self, alpha: int, C: Block, shape: tuple[int, int], at: tuple[int, int] = (0, 0), *,
        beta: int = 1, step: int = 0, count: int = 1,
    ) -> None:  # fmt: skip
        """Compute C <- alpha op(A)[i:, :] op(B)[:, j:] + beta C, ``(i, j) = at``.

        `count` such products follow each other, each `step` rows and columns further.
        """
        (m, n), (i, j), each = shape, at, self.rows
        left, right = self.trans[0] == "n", self.trans[1] == "n"
        A = self.A.at(each * i, 0) if left else self.A.at(0, each * i)
        B = self.B.at(0, j) if right else self.B.at(j, 0)
        C = Block(C.pointer, each * C.ld, C.dtype)
        steps = (
            each * step * (1 if left else A.ld), step * (B.ld if right else 1),
            step * (each + C.ld),
        )  # fmt: skip
        size = (each * m, n, self.inner)
        if self.kind == "split":
            _multiply_parts(self.q, alpha, A, B, beta, C, size, self.trans, steps, count)
        elif count > 1:
            self.q.gemm_batch(alpha, A, B, beta, C, size, steps, count, self.trans)
        elif self.kind == "3m":
            _multiply_3m(self.q, alpha, A, B, beta, C, size, self.trans)
        else:
            self.q.gemm(alpha, A, B, beta, C, size, self.trans)


def product(
    q: GpuQueue, A: Block, B: Block, shape: Triple, options: KernelOptions, trans: str = "nn"
) -> Product:
    """Make the operands of a product of (m, n, k) ready: split them if that takes less time."""
    m, n, k = shape
    kind = _kind(q, A.dtype, shape, options)
    if kind != "split":
        return Product(q, A, B, k, trans, kind)
    each = 2 if A.dtype.kind == "c" else 1
    operands = (
        (A, (m, k) if trans[0] == "n" else (k, m), trans[0]),
        (B, (k, n) if trans[1] == "n" else (n, k), trans[1]),
    )
    scales = _measure(q, [operand[:2] for operand in operands])
    left, right = (
        _split(q, *operand, scales, left=left)
        for operand, left in zip(operands, (True, False), strict=True)
    )
    return Product(q, left, right, _PARTS * each * k, trans, kind, each)


def multiply(
    q: GpuQueue, alpha: int, A: Block, B: Block, beta: int, C: Block, shape: Triple,
    options: KernelOptions, trans: str = "nn",
) -> None:  # fmt: skip
    """Compute C <- alpha op(A) op(B) + beta C as the options say; see `GpuQueue.gemm`."""
    m, n, k = shape
    if _kind(q, A.dtype, shape, options) != "split":
        product(q, A, B, shape, options, trans).add(alpha, C, (m, n), beta=beta)
        return
    width = max(PARTS_BYTES // (_PARTS * k * B.dtype.itemsize // 2), 1)
    for first in range(0, n, width):  # few parts of C, evenly wide
        count = min(width, n - first)
        part = B.at(0, first) if trans[1] == "n" else B.at(first, 0)
        ready = product(q, A, part, (m, count, k), options, trans)
        ready.add(alpha, C.at(0, first), (m, count), beta=beta)


def _kind(q: GpuQueue, dtype: np.dtype, shape: Triple, options: KernelOptions) -> Products:
    """Return how to compute a product: as the options say where that is faster, and possible."""
    m, n, k = shape
    if m * n * k < _LARGE or min(m, n) < _NARROWEST:
        return "native"
    if options.products == "split" and dtype.char in "fF" and q.capability >= _HAS_REDUCTIONS:
        return "split"
    return "3m" if options.products == "3m" and dtype.kind == "c" else "native"


def _grid(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the grid of a kernel whose blocks are of 256 rows."""
    return -(-shape[0] // 256), min(shape[1], 65535)


def _measure(q: GpuQueue, operands: Sequence[tuple[Block, tuple[int, int]]]) -> int:
    """Return the address of what scales a pair of operands: their largest entries."""
    from cupy.cuda import runtime

    scales = q.workspace("scales", _SCALES)
    runtime.memsetAsync(scales, 0, _SCALES, q.stream.ptr)
    for place, (X, shape) in enumerate(operands):
        largest = q.function("largest_part", Source("products", X.dtype))
        q.launch(largest, _few_blocks(shape), 256, X.pointer, X.ld, *shape, scales, place)
    return scales


def _few_blocks(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the grid of a kernel that combines what each of its blocks finds."""
    down, across = _grid(shape)
    return down, min(across, max(_MOST_BLOCKS // down, 1))


def _split(
    q: GpuQueue, X: Block, shape: tuple[int, int], trans: str, scales: int, *, left: bool
) -> Block:
    """Return three matrices of parts of X, one after the other along the inner dimension."""
    (rows, columns), is_complex = shape, X.dtype.kind == "c"
    each = 2 if is_complex else 1
    by_rows = left != (trans == "n")  # the inner dimension is that of X's rows
    height = each * rows if left or by_rows else rows
    width = each * columns if left or not by_rows else columns
    ld = _PARTS * height if by_rows else height
    name = "parts of A" if left else "parts of B"
    Y = Block(q.workspace(name, _PARTS * height * width * _HALF.itemsize), ld, _HALF)
    function = q.function("split", Source("products", X.dtype))
    q.launch(
        function, _grid(shape), 256, X.pointer, X.ld, rows, columns, Y.pointer, ld,
        height if by_rows else height * width, int(left), int(trans == "c"), scales,
    )  # fmt: skip
    return Y


def _multiply_parts(
    q: GpuQueue, alpha: int, A: Block, B: Block, beta: int, C: Block, shape: Triple, trans: str,
    steps: Triple, count: int,
) -> None:  # fmt: skip
    """Compute `GpuQueue.gemm_batch` of parts in half precision, added in single precision."""
    from cupy_backends.cuda.libs import cublas

    handle, scales = q.handle("cublas"), q.workspace("scales", _SCALES)
    operations = [operation(letter, A.dtype) for letter in trans]
    at_once = min(count, max(_REACH // max(steps[2], 1), 1))
    cublas.setPointerMode(handle, _ON_DEVICE)
    try:
        for first in range(0, count, at_once):
            X, Y, Z = (one.at(first * step, 0) for one, step in zip((A, B, C), steps, strict=True))
            cublas.gemmStridedBatchedEx(
                handle, *operations, *shape, scales + _ALPHAS[alpha],
                X.pointer, _REAL_16, X.ld, steps[0], Y.pointer, _REAL_16, Y.ld, steps[1],
                scales + _BETAS[beta], Z.pointer, _REAL_32, Z.ld, steps[2],
                min(at_once, count - first), _IN_32, _DEFAULT,
            )  # fmt: skip
    finally:
        cublas.setPointerMode(handle, _ON_HOST)


def _multiply_3m(
    q: GpuQueue, alpha: int, A: Block, B: Block, beta: int, C: Block, shape: Triple, trans: str
) -> None:
    """Compute `GpuQueue.gemm` of complex matrices by three real products in place of four."""
    from cupy_backends.cuda.libs import cublas

    handle = q.handle("cublas")
    cublas.setStream(handle, q.stream.ptr)
    operations = (operation(letter, C.dtype) for letter in trans)
    status = _gemm3m(C.dtype)(
        handle, *operations, *shape, host_scalar(alpha, C.dtype)[0], A.pointer, A.ld,
        B.pointer, B.ld, host_scalar(beta, C.dtype)[0], C.pointer, C.ld,
    )  # fmt: skip
    if status:
        raise cublas.CUBLASError(status)


@functools.cache
def _gemm3m(dtype: np.dtype) -> Any:
    """Return cuBLAS's function, which CuPy does not wrap, of the library that CuPy has loaded."""
    from cupy.cuda import runtime

    library = ctypes.CDLL(f"libcublas.so.{runtime.runtimeGetVersion() // 1000}")
    function = library.cublasCgemm3m if dtype.char == "F" else library.cublasZgemm3m
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [
        pointer, *[integer] * 5, pointer, pointer, integer, pointer, integer, pointer, pointer,
        integer,
    ]  # fmt: skip
    return function
