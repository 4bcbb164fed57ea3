"""A CUDA stream of one GPU, with library handles and workspaces for the kernels on it."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.arrays.transfer import copy_columns, pointer_and_pitch
from hetero_la.tiles.kernels.gpu.sources import Source, kernel
from hetero_la.tiles.kernels.spec import LETTER, Triangular

_FILL = {"l": 0, "u": 1}  # cublasFillMode_t: the triangle that is stored
_LEFT = 0  # cublasSideMode_t
#: CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES and ..._MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_SIZE, _MOST_DYNAMIC_SHARED = 1, 8
Triple = tuple[int, int, int]
HIGH_PRIORITY = -5  #: CUDA takes the nearest priority that the GPU has
_KEPT = 2**28  # bytes of a workspace that is kept from one run to the next


class Block(NamedTuple):
    """Address, leading dimension and dtype of a column-major block in device memory."""

    pointer: int
    ld: int
    dtype: np.dtype

    def at(self, row: int, column: int) -> Block:
        """Return the block that begins at an element of this one."""
        offset = (row + column * self.ld) * self.dtype.itemsize
        return Block(self.pointer + offset, self.ld, self.dtype)


def block(a: Any) -> Block:
    """Return the block of a CuPy view."""
    pointer, pitch = pointer_and_pitch(a)
    return Block(pointer, max(pitch // a.itemsize, 1), a.dtype)


def element_strides(a: Any) -> tuple[int, ...]:
    """Return the elements from one index to the next."""
    return tuple(stride // a.itemsize for stride in a.strides)


def allocate(shape: tuple[int, ...], dtype: Any, *streams: Any) -> Any:
    """Allocate a column-major array from the null stream's pool on the current device.

    CuPy's pool reuses freed memory at once for allocations on the same stream; it does not know
    our queues, so nothing may be freed before they are empty.  The streams that use the array wait
    for what the null stream may still do with what its memory was before.
    """
    import cupy

    current = cupy.cuda.get_current_stream()
    cupy.cuda.Stream.null.use()  # `with` would leave another stream current than `use` set
    try:
        array = cupy.ndarray(shape, dtype, order="F")
        passed = cupy.cuda.Event(disable_timing=True)
        passed.record(cupy.cuda.Stream.null)
    finally:
        current.use()
    for stream in streams:
        stream.wait_event(passed)
    return array


def operation(letter: str, dtype: np.dtype) -> int:
    """Return the cublasOperation_t of "n", "t" or "c"; real matrices are only transposed."""
    return {"n": 0, "t": 1, "c": 2 if dtype.kind == "c" else 1}[letter]


@functools.cache
def host_scalar(value: int, dtype: np.dtype) -> tuple[int, np.ndarray]:
    """Return the address of a host scalar, and the array that keeps it there."""
    scalar = np.array(value, dtype)
    return scalar.ctypes.data, scalar


@functools.cache
def cublas_function(routine: str, dtype: np.dtype) -> Any:
    return getattr(_library("cublas"), LETTER[dtype.char] + routine)


def blocks_at_once(function: Any, threads: int, shared: int = 0) -> int:
    """Return how many blocks of a kernel a multiprocessor of the current GPU can run at once."""
    from cupy_backends.cuda.api import driver

    return int(driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, shared))


def cublas_handle() -> int:
    """Return CuPy's handle of cuBLAS on the current GPU; its calls are on the current stream."""
    from cupy.cuda import device

    return int(device.get_cublas_handle())


def gemm(
    handle: int, alpha: int, A: Block, B: Block, beta: int, C: Block, shape: Triple, trans: str
) -> None:
    """Enqueue a product with a handle of cuBLAS; see `GpuQueue.gemm`."""
    dtype = C.dtype
    cublas_function("gemm", dtype)(
        handle, operation(trans[0], dtype), operation(trans[1], dtype), *shape,
        host_scalar(alpha, dtype)[0], A.pointer, A.ld, B.pointer, B.ld,
        host_scalar(beta, dtype)[0], C.pointer, C.ld,
    )  # fmt: skip


def gemm_batch(
    handle: int, alpha: int, A: Block, B: Block, beta: int, C: Block, shape: Triple, steps: Triple,
    count: int, trans: str = "nn",
) -> None:  # fmt: skip
    """Enqueue products with a handle of cuBLAS; see `GpuQueue.gemm_batch`."""
    dtype = C.dtype
    cublas_function("gemmStridedBatched", dtype)(
        handle, operation(trans[0], dtype), operation(trans[1], dtype), *shape,
        host_scalar(alpha, dtype)[0], A.pointer, A.ld, steps[0], B.pointer, B.ld, steps[1],
        host_scalar(beta, dtype)[0], C.pointer, C.ld, steps[2], count,
    )  # fmt: skip


def _library(name: str) -> Any:
    return importlib.import_module("cupy_backends.cuda.libs." + name)


def _destroy(handles: dict[str, int]) -> None:
    for library, handle in handles.items():
        _library(library).destroy(handle)


class GpuQueue:
    """An in-order queue; all methods enqueue without a wait, but for `read` and `synchronize`.

    Library handles and workspaces are the queue's own: calls on different
    queues run at the same time.

    Parameters
    ----------
    index : int
        The GPU, which must be current, here and in every call.
    priority : int
        CUDA's stream priority; the lower, the more urgent.
    """

    def __init__(self, index: int, priority: int) -> None:
        import cupy

        self.stream = cupy.cuda.Stream(non_blocking=True, priority=priority)
        attributes = cupy.cuda.Device(index).attributes
        self.multiprocessors: int = attributes["MultiProcessorCount"]
        #: Those that kernels of NCCL may hold which wait for another process.
        self.held_by_messages = 0
        self.capability = int(cupy.cuda.Device(index).compute_capability)
        self._block_memory: int = attributes["MaxSharedMemoryPerBlockOptin"]
        self._functions: dict[Any, Any] = {}
        self._workspaces: dict[str, Any] = {}
        self._outgrown: list[Any] = []
        self._handles: dict[str, int] = {}
        #: Makes a context that is entered around a wait of the host.
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        self._mailbox: np.ndarray | None = None
        self._number = 1
        self._flag = 0  # the timeout flag's address, if a kernel may have set it
        weakref.finalize(self, _destroy, self._handles).atexit = False

    def function(self, name: str, source: Source) -> Any:
        """Return the kernel `name` of a source, compiled at its first use."""
        key = (name, source)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = kernel(name, source).kernel
        return found

    def launch(
        self,
        function: Any,
        grid: tuple[int, ...],
        threads: int,
        *arguments: Any,
        cooperative: bool = False,
        shared: int = 0,
    ) -> None:
        """Enqueue a kernel; integers are passed as 64-bit ones.

        `shared` are bytes of shared memory for each block, beside what the source declares.
        """
        function(grid, (threads,), arguments, shared, self.stream, cooperative)

    def resident_blocks(self, function: Any, threads: int, shared: int = 0) -> int:
        """Return how many blocks of a kernel the GPU can run at once, whatever waits meanwhile."""
        key = ("resident", function.ptr, threads, shared)
        if key not in self._functions:
            self._functions[key] = blocks_at_once(function, threads, shared)
        free = self.multiprocessors - self.held_by_messages
        return int(self._functions[key]) * free

    def allow_shared_memory(self, function: Any) -> int:
        """Let each block of a kernel have all shared memory; return what is left for `shared`."""
        key = ("shared", function.ptr)
        if key not in self._functions:
            from cupy_backends.cuda.api import driver

            left = self._block_memory - driver.funcGetAttribute(_SHARED_SIZE, function.ptr)
            driver.funcSetAttribute(function.ptr, _MOST_DYNAMIC_SHARED, left)
            self._functions[key] = left
        return int(self._functions[key])

    def workspace(self, name: str, nbytes: int, *, zeroed: bool = False) -> int:
        """Return the address of at least `nbytes` that no other name or queue uses.

        With `zeroed`, it is set to zero when it is allocated, and not later.
        """
        found = self._workspaces.get(name)
        if found is None or found.nbytes < nbytes:
            if found is not None:
                self._outgrown.append(found)
            found = self._workspaces[name] = allocate((nbytes,), np.uint8, self.stream)
            if zeroed:
                found.data.memset_async(0, nbytes, self.stream)
        return found.data.ptr

    def matrix(self, name: str, rows: int, columns: int, dtype: np.dtype) -> Block:
        """Return a workspace as a matrix."""
        return Block(self.workspace(name, rows * columns * dtype.itemsize), rows, dtype)

    def copy(self, target: Block, source: Block, rows: int, columns: int) -> None:
        """Copy columns of as many rows from one block to another."""
        size = target.dtype.itemsize
        copy_columns(
            target.pointer, target.ld * size, source.pointer, source.ld * size, rows * size,
            columns, self.stream.ptr,
        )  # fmt: skip

    @property
    def timeout_flag(self) -> int:
        """Address of the flag that a kernel sets when its blocks wait in vain for each other."""
        self._flag = self.workspace("lost", 4, zeroed=True)
        return self._flag

    def numbers(self, count: int) -> int:
        """Return the first of `count` numbers that were not returned before, modulo 2^32."""
        first = self._number
        self._number += count
        return first

    def read(self, address: int) -> int:
        """Wait for the queue, and return the 32-bit integer at an address of the GPU."""
        from cupy.cuda import alloc_pinned_memory

        if self._mailbox is None:
            self._mailbox = np.frombuffer(alloc_pinned_memory(4), np.int32, 1)
        copy_columns(self._mailbox.ctypes.data, 4, address, 4, 4, 1, self.stream.ptr)
        with self.waiting():
            self.stream.synchronize()
        return int(self._mailbox[0])

    def synchronize(self) -> bool:
        """Block the host until the queue is empty; free large and outgrown workspaces.

        Return whether blocks of a kernel, since the last time, have waited in vain for each other.
        """
        # The flag is read only after kernels that may set it: it takes longer than short copies,
        # which a probe times with this wait.
        flag, self._flag = self._flag, 0
        lost = bool(flag and self.read(flag))
        self.stream.synchronize()
        if lost:
            del self._workspaces["lost"]
        self._outgrown.clear()
        for name in [name for name, held in self._workspaces.items() if held.nbytes > _KEPT]:
            del self._workspaces[name]
        return lost

    def handle(self, library: str) -> int:
        """Return the queue's handle of "cublas" or "cusolver".

        CuPy's wrappers set its stream to the current one at each call: the
        queue's stream must be current then.
        """
        if library not in self._handles:
            self._handles[library] = _library(library).create()
        return self._handles[library]

    def gemm(
        self, alpha: int, A: Block, B: Block, beta: int, C: Block, shape: Triple, trans: str = "nn"
    ) -> None:
        """Compute C <- alpha A B + beta C, `shape` = (m, n, k); "c" stands for A^H or B^H."""
        gemm(self.handle("cublas"), alpha, A, B, beta, C, shape, trans)

    def gemm_batch(
        self,
        alpha: int,
        A: Block,
        B: Block,
        beta: int,
        C: Block,
        shape: Triple,
        steps: Triple,
        count: int,
        trans: str = "nn",
    ) -> None:
        """Compute `gemm` `count` times, each `steps` elements further in A, B and C."""
        gemm_batch(self.handle("cublas"), alpha, A, B, beta, C, shape, steps, count, trans)

    def syrk(self, alpha: int, A: Block, beta: int, C: Block, order: int, k: int) -> None:
        """Compute C <- alpha A A^T + beta C in the lower triangle of C, A of k columns."""
        dtype = C.dtype
        cublas_function("syrk", dtype)(
            self.handle("cublas"), _FILL["l"], 0, order, k, host_scalar(alpha, dtype)[0],
            A.pointer, A.ld, host_scalar(beta, dtype)[0], C.pointer, C.ld,
        )  # fmt: skip

    def trsm(self, form: Triangular, A: Block, B: Block, order: int, columns: int) -> None:
        """Compute B <- T^-1 B or T^-H B, T the triangle of A that `form` names."""
        cublas_function("trsm", B.dtype)(
            self.handle("cublas"), _LEFT, _FILL[form.triangle], operation(form.trans, B.dtype),
            int(form.unit), order, columns, host_scalar(1, B.dtype)[0], A.pointer, A.ld,
            B.pointer, B.ld,
        )  # fmt: skip

    def potrf(self, A: Block, order: int, info: int) -> None:
        """Overwrite the lower triangle of A by its Cholesky factor; `info` is an address."""
        self.factor("potrf", A.dtype, (_FILL["l"], order, A.pointer, A.ld), (info,))

    def factor(
        self, routine: str, dtype: np.dtype, matrix: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        """Call a factorization of cuSOLVER, with the workspace that it asks for.

        `matrix` is what comes before the workspace, and `results` what comes after it.
        """
        cusolver, name = _library("cusolver"), LETTER[dtype.char] + routine
        arguments = (self.handle("cusolver"), *matrix)
        count = getattr(cusolver, name + "_bufferSize")(*arguments)
        work = self.workspace(routine, count * dtype.itemsize)
        size = (count,) if routine == "potrf" else ()
        getattr(cusolver, name)(*arguments, work, *size, *results)
