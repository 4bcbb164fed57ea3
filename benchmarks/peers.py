"""What hetero_la is measured against, each timed on its own data in place."""

from __future__ import annotations

import ctypes
import glob
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def scipy_lu(a: np.ndarray) -> float:
    """Seconds of ``scipy.linalg.lu_factor``."""
    from scipy.linalg import lu_factor

    began = time.perf_counter()
    lu_factor(a)
    return time.perf_counter() - began


def dask_lu(a: np.ndarray, chunk: int, blas_threads: int) -> float:
    """Seconds of ``dask.array.linalg.lu`` on the threaded scheduler."""
    import dask.array as da
    from threadpoolctl import threadpool_limits

    with threadpool_limits(blas_threads, user_api="blas"):
        x = da.from_array(a, chunks=(chunk, chunk))
        began = time.perf_counter()
        import dask

        dask.compute(*da.linalg.lu(x), scheduler="threads")
        return time.perf_counter() - began


def cusolver_getrf(a: Any) -> float:
    """Seconds of cuSOLVER's getrf on a column-major CuPy array, in place."""
    import cupy
    from cupy_backends.cuda.libs import cusolver

    letter = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[a.dtype.name]
    handle = cupy.cuda.device.get_cusolver_handle()
    n = a.shape[0]
    size = getattr(cusolver, letter + "getrf_bufferSize")(handle, n, n, a.data.ptr, n)
    work = cupy.empty(size, a.dtype)
    ipiv, info = cupy.empty(n, np.int32), cupy.empty(1, np.int32)
    cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    getattr(cusolver, letter + "getrf")(
        handle, n, n, a.data.ptr, n, work.data.ptr, ipiv.data.ptr, info.data.ptr
    )
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - began


def cusolvermg_library() -> str | None:
    """Path of cuSOLVERMg, or None."""
    for root in [*sys.path, "/usr/local"]:
        for pattern in ("nvidia/**/libcusolverMg.so*", "cuda*/**/libcusolverMg.so*"):
            if found := glob.glob(f"{root}/{pattern}", recursive=True):
                return found[0]
    return None


class CusolverMg:
    """LU by cuSOLVERMg on all GPUs, float64, 1-D block-cyclic columns.

    Parameters
    ----------
    gpus : int
        How many GPUs.
    n, nb : int
        Order of the matrix and tile size.
    """

    def __init__(self, gpus: int, n: int, nb: int) -> None:
        import cupy

        self._gpus, self._n, self._nb = gpus, n, nb
        self._lib = ctypes.CDLL(cusolvermg_library())
        self._handle, self._grid, self._desc = (ctypes.c_void_p() for _ in range(3))
        ids = (ctypes.c_int * gpus)(*range(gpus))
        self._call("Create", ctypes.byref(self._handle))
        self._call("DeviceSelect", self._handle, gpus, ids)
        self._call("CreateDeviceGrid", ctypes.byref(self._grid), 1, gpus, ids, 0)
        size = ctypes.c_int64(n)
        cuda_r_64f = 1
        self._call(
            "CreateMatrixDesc", ctypes.byref(self._desc), size, size, size, ctypes.c_int64(nb),
            cuda_r_64f, self._grid,
        )  # fmt: skip
        columns = -(-n // nb)
        self.shards, self._pivots = [], []
        for g in range(gpus):
            local = sum(1 for j in range(columns) if j % gpus == g) * nb
            with cupy.cuda.Device(g):
                self.shards.append(cupy.empty((local, n)))
                self._pivots.append(cupy.empty(max(n, local), np.int32))
        length = ctypes.c_int64()
        self._call("Getrf_bufferSize", *self._arguments(), ctypes.byref(length))
        self._length, self._work = length, []
        for g in range(gpus):
            with cupy.cuda.Device(g):
                self._work.append(cupy.empty(length.value))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lib, "cusolverMg" + name)(*arguments)
        if status:
            raise RuntimeError(f"cusolverMg{name} returned {status}")

    def _pointers(self, arrays: list[Any]) -> Any:
        return (ctypes.c_void_p * self._gpus)(*[a.data.ptr for a in arrays])

    def _arguments(self) -> tuple[Any, ...]:
        return (
            self._handle, self._n, self._n, self._pointers(self.shards), 1, 1, self._desc,
            self._pointers(self._pivots), 1,
        )  # fmt: skip

    def seconds(self, fill: Callable[[int, Any], None]) -> float:
        """Fill the shards and factor; seconds of the factorization."""
        for g, shard in enumerate(self.shards):
            fill(g, shard)
        info = ctypes.c_int()
        began = time.perf_counter()
        self._call(
            "Getrf", *self._arguments(), self._pointers(self._work), self._length,
            ctypes.byref(info),
        )  # fmt: skip
        return time.perf_counter() - began
