"""What hetero_la is measured against, each timed on its own data in place."""

from __future__ import annotations

import ctypes
import glob
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg


def seconds_of(run: Callable[[], Any]) -> float:
    """What a call takes, in seconds."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def lapack_factor(routine: str, a: np.ndarray, *, overwrite: bool) -> tuple[Any, ...]:
    """Factor by LAPACK as SciPy has it, without a check for NaNs; return packed factors first.

    SciPy's `qr` would also copy R out of them, which the others do not.

    Examples
    --------
    >>> a = np.array([[4.0, 2.0], [2.0, 5.0]], order="F")
    >>> lapack_factor("cholesky", a, overwrite=True)[0] is a
    True
    """
    if routine == "lu":
        return scipy.linalg.lu_factor(a, overwrite_a=overwrite, check_finite=False)
    if routine == "cholesky":
        return scipy.linalg.cho_factor(a, lower=True, overwrite_a=overwrite, check_finite=False)
    geqrf, size = scipy.linalg.get_lapack_funcs(("geqrf", "geqrf_lwork"), (a,))
    work = int(size(*a.shape)[0])
    return geqrf(a, lwork=work, overwrite_a=overwrite)


def _dask(function: Callable[[Any], Any], a: np.ndarray, chunk: int, blas_threads: int) -> float:
    """Seconds of a function of dask arrays on the threaded scheduler."""
    import dask
    import dask.array as da
    from threadpoolctl import threadpool_limits

    with threadpool_limits(blas_threads, user_api="blas"):
        x = da.from_array(a, chunks=(chunk, chunk))
        return seconds_of(lambda: dask.compute(function(x), scheduler="threads"))


def dask_lu(a: np.ndarray, chunk: int, blas_threads: int) -> float:
    """Seconds of ``dask.array.linalg.lu``."""
    import dask.array as da

    return _dask(da.linalg.lu, a, chunk, blas_threads)


def dask_cholesky(a: np.ndarray, chunk: int, blas_threads: int) -> float:
    """Seconds of ``dask.array.linalg.cholesky``."""
    import dask.array as da

    return _dask(da.linalg.cholesky, a, chunk, blas_threads)


def _letter(a: Any) -> str:
    return {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[a.dtype.name]


def _cusolver(a: Any, name: str, before: tuple[int, ...], results: tuple[Any, ...]) -> float:
    """Seconds of a cuSOLVER factorization of a column-major CuPy array, in place.

    `before` stands before the matrix among the arguments; `results` are the arrays
    that follow it; None stands for the workspace, and 0 for an array that is left out.
    """
    import cupy
    from cupy_backends.cuda.libs import cusolver

    function = _letter(a) + name
    arguments = (cupy.cuda.device.get_cusolver_handle(), *before, a.data.ptr, a.shape[0])
    size = getattr(cusolver, function + "_bufferSize")(*arguments)
    work, info = cupy.empty(max(size, 1), a.dtype), cupy.empty(1, np.int32)
    rest: list[int] = []
    for array in (*results, info):
        if array is None:
            rest += [work.data.ptr, *([] if name == "getrf" else [size])]
        else:
            rest.append(array.data.ptr if isinstance(array, cupy.ndarray) else array)
    cupy.cuda.Device().synchronize()

    def run() -> None:
        getattr(cusolver, function)(*arguments, *rest)
        cupy.cuda.Device().synchronize()

    return seconds_of(run)


def cusolver_getrf(a: Any) -> float:
    """Seconds of cuSOLVER's LU."""
    import cupy

    ipiv = cupy.empty(len(a), np.int32)
    return _cusolver(a, "getrf", a.shape, (None, ipiv))


def cusolver_getrf_nopivot(a: Any) -> float:
    """Seconds of cuSOLVER's LU without pivoting."""
    return _cusolver(a, "getrf", a.shape, (None, 0))


def cusolver_potrf(a: Any) -> float:
    """Seconds of cuSOLVER's Cholesky of the lower triangle."""
    return _cusolver(a, "potrf", (0, len(a)), (None,))


def cusolver_geqrf(a: Any) -> float:
    """Seconds of cuSOLVER's QR."""
    import cupy

    return _cusolver(a, "geqrf", a.shape, (cupy.empty(len(a), a.dtype), None))


def cusolvermg_library() -> str | None:
    """Path of cuSOLVERMg, or None."""
    for root in [*sys.path, "/usr/local"]:
        for pattern in ("nvidia/**/libcusolverMg.so*", "cuda*/**/libcusolverMg.so*"):
            if found := glob.glob(f"{root}/{pattern}", recursive=True):
                return found[0]
    return None


class CusolverMg:
    """A factorization by cuSOLVERMg on all GPUs, float64, 1-D block-cyclic columns.

    Parameters
    ----------
    name : {"Getrf", "Potrf"}
        Which; Potrf takes the lower triangle.
    gpus : int
        How many GPUs.
    n, nb : int
        Order of the matrix and tile size.
    """

    def __init__(self, name: str, gpus: int, n: int, nb: int) -> None:
        import cupy

        self._name, self._gpus, self._n = name, gpus, n
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
        self._call(name + "_bufferSize", *self._arguments(), ctypes.byref(length))
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
        matrix = (self._n, self._pointers(self.shards), 1, 1, self._desc)
        cuda_r_64f = 1
        if self._name == "Potrf":
            lower = 0
            return self._handle, lower, *matrix, cuda_r_64f
        return self._handle, self._n, *matrix, self._pointers(self._pivots), cuda_r_64f

    def seconds(self, fill: Callable[[int, Any], None]) -> float:
        """Fill the shards and factor; seconds of the factorization."""
        for g, shard in enumerate(self.shards):
            fill(g, shard)
        info = ctypes.c_int()
        began = time.perf_counter()
        self._call(
            self._name, *self._arguments(), self._pointers(self._work), self._length,
            ctypes.byref(info),
        )  # fmt: skip
        return time.perf_counter() - began
