"""Arrays on the host and on GPUs, and copies between them."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hetero_la.tiles.arrays.errors import DeviceUnavailableError
from hetero_la.tiles.arrays.forks import ProcessLock, in_forked_child

Array = Any
F = TypeVar("F", bound=Callable[..., Any])

_MAX_PITCH = 2**31 - 1  # of cudaMemcpy2D, in bytes
_ROUNDED = 2**30  #: Bytes of pinned memory below which CuPy's pool has them.
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all GPUs of the process
#: Most bytes that are pinned for one of an array: its columns may lie far apart.
_SPARSE = 2
_DEFAULT = 4  # cudaMemcpyDefault: the devices follow from the addresses


#: The process that has used CUDA, which does not work in processes forked from it.
_cuda_process: int | None = None


def forked_after_cuda() -> bool:
    """Return whether CUDA cannot be used here: a parent had used it before the fork."""
    return _cuda_process not in (None, os.getpid())


def require_cuda() -> None:
    """Raise DeviceUnavailableError where `forked_after_cuda`."""
    if forked_after_cuda():
        raise DeviceUnavailableError(
            "GPUs cannot be used in this process: it was forked from one that had used CUDA; "
            "start it by the method 'spawn' or 'forkserver'"
        )


def is_device_array(a: Any) -> bool:
    """Return whether `a` is on a GPU."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(a, cupy.ndarray)


def array_module(a: Any) -> ModuleType:
    """Return the module whose functions take `a`: NumPy or CuPy."""
    return sys.modules["cupy"] if is_device_array(a) else np


def device_index(a: Any) -> int | None:
    """Return the index of the GPU that holds `a`; None on the host."""
    return int(a.device.id) if is_device_array(a) else None


def on_device_of(a: Any) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the GPU that holds `a` is current.

    CuPy launches kernels on the current device, wherever their arrays are, and some of them
    (CUB's reductions among these) then read addresses that are not valid there.
    """
    global _cuda_process
    if not is_device_array(a):
        return contextlib.nullcontext()
    require_cuda()
    _cuda_process, index = os.getpid(), a.device.id
    return contextlib.nullcontext() if index == current_gpu() else on_device_index(index)


#: GPUs on which this process works.
_in_use: set[int] = set()
in_forked_child(_in_use.clear)


def on_device_index(index: int) -> contextlib.AbstractContextManager[object]:
    """Return a context in which a GPU is current."""
    import cupy

    _in_use.add(index)
    device: contextlib.AbstractContextManager[object] = cupy.cuda.Device(index)
    return device


def current_gpu() -> int:
    """Return the index of the calling thread's current GPU."""
    import cupy

    return int(cupy.cuda.runtime.getDevice())


def to_host(a: Any) -> np.ndarray:
    """Return `a` as a NumPy array of the same order, copied only from a GPU."""
    return a.get(order="A") if is_device_array(a) else np.asarray(a)


def to_device(a: Any) -> Array:
    """Return `a` as a CuPy array of the same order, copied only from the host."""
    import cupy

    return a if is_device_array(a) else cupy.asarray(a)


def adopted_by_cupy(a: Any) -> Array:
    """Return a CuPy array in the memory of another library's array on a GPU.

    What that library has enqueued is waited for: with DLPack by CuPy's current stream, and with
    `__cuda_array_interface__`, which is for arrays that lack DLPack, by the host.
    """
    require_cuda()
    try:
        import cupy
    except ImportError:
        raise DeviceUnavailableError(
            f"a {type(a).__name__} is on a GPU, which takes CuPy: install hetero-la[cuda12] or "
            "hetero-la[cuda13], or copy the array to the host"
        ) from None
    return cupy.from_dlpack(a) if hasattr(a, "__dlpack__") else cupy.asarray(a)


def small_to_device(a: np.ndarray) -> Array:
    """Return a copy on the current GPU, of the same order, in less time than `to_device` starts."""
    found, fill = small_to_device_later(a)
    fill()
    return found


def small_to_device_later(a: np.ndarray) -> tuple[Array, Callable[[], object]]:
    """Return an array of the current GPU, and what fills it as `small_to_device` does."""
    import cupy

    a = a if a.flags.forc else np.ascontiguousarray(a)
    found = cupy.empty(a.shape, a.dtype, order="F" if a.flags.f_contiguous else "C")
    return found, partial(found.set, a)


def to_device_of(like: Any, a: Array) -> Array:
    """Return `a` on the GPU that holds `like`, copied only from another device."""
    if device_index(a) == device_index(like):
        return a
    if not is_device_array(like):
        return to_host(a)
    with on_device_of(like):
        return to_current_gpu(a)


def to_current_gpu(a: Any) -> Array:
    """Return `a` on the current GPU, copied only from elsewhere, and then complete on return."""
    import cupy

    if device_index(a) == current_gpu():
        return a
    # From GPU to GPU, CuPy copies only contiguous arrays.
    source = column_major_copy(a) if is_device_array(a) else a
    copied = cupy.asarray(source)
    wait_for_writes(copied)  # the memory of `source`, once free, would be written by others
    return copied


def is_column_major(a: Any) -> bool:
    """Return whether the columns of the matrix `a` are contiguous."""
    return bool(
        (a.shape[0] <= 1 or a.strides[0] == a.itemsize)
        and (a.shape[1] <= 1 or a.strides[1] >= a.shape[0] * a.itemsize)
    )


def is_pinned(a: Any) -> bool:
    """Return whether the host array `a` is in pinned memory, which a GPU copies at full speed."""
    if is_device_array(a) or "cupy" not in sys.modules or not gpu_count():
        return False
    from cupy.cuda import runtime

    first, last = byte_bounds(a)
    ends = (runtime.pointerGetAttributes(end).type for end in (first, max(last - 1, first)))
    return all(kind == runtime.memoryTypeHost for kind in ends)


def gpu_count() -> int:
    """Return the number of usable GPUs: 0 without CuPy or a driver, or if `require_cuda` raises."""
    global _cuda_process
    if forked_after_cuda():
        return 0
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # a broken driver or installation counts as no GPU
        return 0
    if count:
        _cuda_process = os.getpid()
    return count


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate a column-major host array that GPUs can copy directly.

    Its memory is page-locked if there are CuPy and a GPU, and pageable otherwise.
    """
    dtype = np.dtype(dtype)
    count = math.prod(shape)
    if count == 0 or gpu_count() == 0:
        return np.empty(shape, dtype, order="F")
    import cupy

    nbytes = count * dtype.itemsize
    if nbytes < _ROUNDED:
        memory = cupy.cuda.alloc_pinned_memory(nbytes)
    else:  # the pool rounds up to a power of two
        memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(nbytes), 0)
    return np.frombuffer(memory, dtype, count).reshape(shape, order="F")


#: First and last address of memory that `pin` has pinned -> how often.
_pinned: dict[tuple[int, int], int] = {}
_pinning = ProcessLock()
in_forked_child(_pinned.clear)


def pin(a: np.ndarray) -> Callable[[], None]:
    """Pin the memory of a host array for all GPUs, if that can be; return what unpins it."""
    from cupy.cuda import runtime

    place = first, last = byte_bounds(a)
    if last - first > _SPARSE * a.nbytes:
        return lambda: None
    with _pinning:
        if place not in _pinned:
            try:  # there may be a limit; or other owners have pinned a part of it
                runtime.hostRegister(first, last - first, _PORTABLE)
            except runtime.CUDARuntimeError:
                return lambda: None
        _pinned[place] = _pinned.get(place, 0) + 1
    return partial(_unpin, place)


def _unpin(place: tuple[int, int]) -> None:
    """Unpin memory, unless another run goes on with it."""
    from cupy.cuda import runtime

    with _pinning:
        _pinned[place] -= 1
        if not _pinned[place]:
            del _pinned[place]
            # After an error of CUDA it fails, too, and that error is the one to tell.
            with contextlib.suppress(runtime.CUDARuntimeError):
                runtime.hostUnregister(place[0])


def enqueue_copy(target: Array, source: Array, stream: int) -> None:
    """Enqueue ``target[...] = source`` on the CUDA stream `stream`.

    Column-major views and vectors, of any device or of the host, in pinned or
    pageable memory; only with pageable memory may the driver make the host wait.
    The caller keeps both arrays alive until the stream has passed the copy.
    """
    if target.shape != source.shape or target.dtype != source.dtype:
        raise ValueError(
            f"cannot copy {source.dtype} {source.shape} to {target.dtype} {target.shape}"
        )
    if target.size == 0:
        return
    rows, columns = target.shape if target.ndim == 2 else (1, target.size)
    copy_columns(
        *pointer_and_pitch(target), *pointer_and_pitch(source),
        rows * target.itemsize, columns, stream,
    )  # fmt: skip


def copy_columns(
    to: int, to_pitch: int, source: int, source_pitch: int, width: int, columns: int, stream: int
) -> None:
    """Enqueue a copy of `columns` columns of `width` bytes between two addresses."""
    from cupy.cuda import runtime

    if columns == 1 or to_pitch == source_pitch == width:
        runtime.memcpyAsync(to, source, width * columns, _DEFAULT, stream)
    elif max(to_pitch, source_pitch) <= _MAX_PITCH:
        runtime.memcpy2DAsync(to, to_pitch, source, source_pitch, width, columns, _DEFAULT, stream)
    else:
        for c in range(columns):
            runtime.memcpyAsync(
                to + c * to_pitch, source + c * source_pitch, width, _DEFAULT, stream
            )


def pointer_and_pitch(a: Array) -> tuple[int, int]:
    """Return the address of a column-major view, and the bytes from column to column.

    A vector is a matrix of one row.
    """
    pointer = a.data.ptr if is_device_array(a) else a.ctypes.data
    rows, strides = (a.shape[0], a.strides) if a.ndim == 2 else (1, (a.itemsize, *a.strides))
    if a.ndim not in (1, 2) or (rows > 1 and strides[0] != a.itemsize):
        raise ValueError(f"not column-major: shape {a.shape}, strides {a.strides}")
    columns = a.shape[-1]
    pitch = strides[1] if columns > 1 else rows * a.itemsize
    if pitch < rows * a.itemsize:
        raise ValueError(f"columns overlap: shape {a.shape}, strides {a.strides}")
    return pointer, pitch


def copy_and_wait(target: Array, source: Array) -> None:
    """Copy between the host and a GPU on a stream of the calling thread, and wait for it.

    The host's array is column-major.
    """
    onboard = source if is_device_array(source) else target
    with on_device_of(onboard):
        if source.ndim == 2 and not is_column_major(source):
            source = source.copy(order="F")
        stream = _copy_stream(onboard.device.id, threading.get_ident())
        # The user's stream may still be writing the source, or using what the target's memory was.
        stream.wait_event(sys.modules["cupy"].cuda.get_current_stream().record())
        enqueue_copy(target, source, stream.ptr)
        stream.synchronize()


def copy_on_device(target: Array, source: Array) -> None:
    """Copy to a column-major array of the same GPU, on the current stream."""
    if is_column_major(source):  # several times as fast as CuPy's kernel
        enqueue_copy(target, source, sys.modules["cupy"].cuda.get_current_stream().ptr)
    else:
        target[...] = source


def column_major_copy(a: Array) -> Array:
    """Return a column-major copy, complete on return."""
    with on_device_of(a):
        copied = a.copy(order="F")
    wait_for_writes(copied)
    return copied


def on_device_of_arrays(function: F) -> F:
    """Make the GPU of the first CuPy array among a function's arguments current in its calls.

    If that is another one than before, what they have enqueued is complete at their return: the
    streams of the GPU that is then current would not wait for it.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            array = value[0] if isinstance(value, tuple) and value else value
            if is_device_array(array):
                there = on_device_of(array)  # raises where CUDA cannot be used
                elsewhere = device_index(array) != current_gpu()
                with there:
                    result = function(*args, **kwargs)
                    if elsewhere:
                        wait_for_writes(array)
                    return result
        return function(*args, **kwargs)

    return cast(F, wrapped)


def wait_for_writes(a: Any) -> None:
    """Wait for the calling thread's stream to complete `a`, before other threads read it."""
    if is_device_array(a):
        with on_device_of(a):
            sys.modules["cupy"].cuda.get_current_stream().synchronize()


def wait_for_gpus() -> None:
    """Wait for all that the calling thread has enqueued, on whatever GPU it has worked.

    What reads it next may do so on another GPU, whose streams would not wait for it.
    """
    for index in sorted(_in_use):
        with on_device_index(index):
            sys.modules["cupy"].cuda.get_current_stream().synchronize()


@functools.cache
def _copy_stream(device: int, thread: int) -> Any:
    """Return a stream on the current device on which no kernels run."""
    from cupy.cuda import Stream

    return Stream(non_blocking=True)


@functools.cache
def enable_peers(first: int, second: int) -> None:
    """Enable two GPUs to access each other's memory, if the hardware can.

    If it cannot, copies go through the host, with the same result, but slower.
    """
    from cupy.cuda import Device, runtime

    for device, peer in ((first, second), (second, first)):
        if runtime.deviceCanAccessPeer(device, peer):
            with Device(device):
                try:
                    runtime.deviceEnablePeerAccess(peer)
                except runtime.CUDARuntimeError as error:
                    if "PeerAccessAlreadyEnabled" not in str(error):
                        raise


def linalg_module(a: Any) -> ModuleType:
    """Return the module with SciPy's ``linalg`` interface whose functions take `a`."""
    if is_device_array(a):
        import cupyx.scipy.linalg as linalg
    else:
        import scipy.linalg as linalg
    return linalg


def column_major_empty(like: Any, shape: tuple[int, ...]) -> Array:
    """Return a new column-major array of the dtype of `like`, on its device."""
    if not is_device_array(like):  # of small matrices each call counts
        return np.empty(shape, like.dtype, order="F")
    with on_device_of(like):
        return array_module(like).empty(shape, like.dtype, order="F")
