"""Messages from a GPU of one process to a GPU of another one, by NCCL's send and receive."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from hetero_la.tiles.arrays.transfer import enqueue_copy, gpu_count
from hetero_la.tiles.kernels.device import Array, CommunicatorName, Event
from hetero_la.tiles.kernels.gpu.queue import HIGH_PRIORITY, allocate

#: Multiprocessors that a message may take from the update beside it: with fewer, two H200 do not
#: reach the rate of their link (8 channels: 0.75 of it, 4: 0.4).
_CHANNELS = 16
#: Seconds that an abort leaves to a call that enqueues.
_CALL_SECONDS = 2.0


@functools.cache
def missing() -> str:
    """Return why NCCL cannot be used in this process; "" if it can."""
    if not gpu_count():
        return "there is no GPU"
    for setting in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"):
        os.environ.setdefault(setting, str(_CHANNELS))
    try:
        _load_wheel()
        from cupy.cuda import nccl

        if not nccl.available:
            return "CuPy was built without NCCL"
        nccl.get_version()
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        return f"NCCL was not found ({error}): install hetero-la[cuda12] or hetero-la[cuda13]"
    return ""


def _load_wheel() -> None:
    """Load the library of the wheel nvidia-nccl, if there is one, where CuPy then finds it."""
    for wheel in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        with contextlib.suppress(PackageNotFoundError):
            for file in distribution(wheel).files or ():
                if file.name.startswith("libnccl.so"):
                    ctypes.CDLL(str(file.locate()), mode=ctypes.RTLD_GLOBAL)
                    return


def new_name() -> CommunicatorName:
    """Return the name of a new communicator."""
    from cupy.cuda import nccl

    name: CommunicatorName = nccl.get_unique_id()
    return name


class GpuCommunicator:
    """One direction between two GPUs: what one sends, the other receives in the same order.

    Parameters
    ----------
    index : int
        This process's GPU.
    copies : Stream
        Its COPY queue, on which messages are received.
    name : CommunicatorName
        A `new_name`, the same at both ends.
    sends : bool
        Whether this is the end that sends.
    """

    def __init__(self, index: int, copies: Any, name: CommunicatorName, *, sends: bool) -> None:
        from cupy.cuda import Device, Stream, nccl

        self.name, self.sends, self._copies, self._peer = name, sends, copies, int(sends)
        self._packed: list[Array] = []  # the last is in use, others may still be read
        self._calling = threading.Lock()
        with Device(index):
            self._comm: Any = nccl.NcclCommunicator(2, name, 1 - self._peer)
            # The blocks of an update that was launched before would all come first.
            self._stream = Stream(non_blocking=True, priority=HIGH_PRIORITY)
            self._word = allocate((1,), "int32", self._stream, copies)

    def connect(self) -> None:
        """Exchange a first message, which makes the connection: later ones only enqueue."""
        with self._in_use() as comm:
            announce = comm.send if self.sends else comm.recv
            announce(*self._buffer(self._word), self._peer, self._stream.ptr)
        self._stream.synchronize()

    def send(self, arrays: Sequence[Array], ready: Event) -> Event:
        """Send arrays once `ready` has come to pass; return the event of their having left."""
        from cupy.cuda import Event as CudaEvent

        if ready is not None:
            self._stream.wait_event(ready)
        contiguous = self._pack(arrays)
        with self._in_use() as comm:
            self._enqueue(comm.send, contiguous, self._stream.ptr)
        left = CudaEvent(disable_timing=True)
        left.record(self._stream)
        return left

    def receive(self, targets: Sequence[Array]) -> None:
        """Receive arrays on the device's COPY queue."""
        stream = self._copies.ptr
        direct = self._memory(targets)
        with self._in_use() as comm:
            self._enqueue(comm.recv, direct, stream)
        for target, array in zip(targets, direct, strict=True):
            if array is not target:
                enqueue_copy(target, array, stream)

    def flush(self) -> None:
        """Wait until all that was sent has left."""
        self._stream.synchronize()

    def abort(self) -> None:
        """End all that is under way, on this side; nothing can be sent or received any more."""
        # A call that waits for room on a full queue ends by this alone.
        alone = self._calling.acquire(timeout=_CALL_SECONDS)
        try:
            comm, self._comm = self._comm, None
            if comm is not None:
                comm.abort()
        finally:
            if alone:
                self._calling.release()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[Any]:
        """Yield NCCL's communicator, which is not aborted meanwhile."""
        with self._calling:
            if self._comm is None:
                raise RuntimeError("the communicator was aborted")
            yield self._comm

    def _enqueue(self, call: Callable[..., None], arrays: Sequence[Array], stream: int) -> None:
        """Enqueue a word and the arrays.

        What waits for a message holds multiprocessors, as many as its size asks for.  So the
        receiver waits for the word before, with one of them.
        """
        from cupy.cuda import nccl

        call(*self._buffer(self._word), self._peer, stream)
        nccl.groupStart()
        try:
            for array in arrays:
                call(*self._buffer(array), self._peer, stream)
        finally:
            nccl.groupEnd()  # the thread would be in the group for ever

    def _pack(self, arrays: Sequence[Array]) -> list[Array]:
        """Copy matrices with gaps between their columns to memory without."""
        found = self._memory(arrays)
        for array, packed in zip(arrays, found, strict=True):
            if packed is not array:
                enqueue_copy(packed, array, self._stream.ptr)
        return found

    def _memory(self, arrays: Sequence[Array]) -> list[Array]:
        """Return each array if it is contiguous, or else memory for one that is."""
        gaps = [a for a in arrays if not a.flags.f_contiguous]
        nbytes = sum(_aligned(a.nbytes) for a in gaps)
        if nbytes and (not self._packed or self._packed[-1].size < nbytes):
            self._packed.append(allocate((nbytes,), "uint8", self._stream, self._copies))
        found, start = [], 0
        for a in arrays:
            if not a.flags.f_contiguous:
                part = self._packed[-1][start : start + a.nbytes]
                start += _aligned(a.nbytes)
                a = part.view(a.dtype).reshape(a.shape, order="F")
            found.append(a)
        return found

    @staticmethod
    def _buffer(array: Array) -> tuple[int, int, int]:
        from cupy.cuda import nccl

        return array.data.ptr, array.nbytes, nccl.NCCL_UINT8


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256
