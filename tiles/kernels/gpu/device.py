"""GPUs as devices: queues are CUDA streams, and calls enqueue; only CholeskyQR2 waits."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hetero_la.tiles.arrays.errors import DeviceUnavailableError, KernelTimeoutError
from hetero_la.tiles.arrays.transfer import (
    device_index,
    enable_peers,
    enqueue_copy,
    gpu_count,
    is_column_major,
    is_device_array,
    on_device_index,
    require_cuda,
    wait_for_gpus,
)
from hetero_la.tiles.kernels import vectors  # noqa: F401  (it registers)
from hetero_la.tiles.kernels.device import (
    Array,
    CommunicatorName,
    DeviceKind,
    Event,
    Interval,
    KernelOptions,
    Queue,
)
from hetero_la.tiles.kernels.gpu import (  # noqa: F401  (they register)
    cholesky,
    common,
    inverse,
    lu,
    nccl,
    qr,
)
from hetero_la.tiles.kernels.gpu.queue import HIGH_PRIORITY, GpuQueue, allocate
from hetero_la.tiles.kernels.gpu.stopwatch import GpuStopwatch
from hetero_la.tiles.kernels.registry import implementation
from hetero_la.tiles.kernels.spec import LETTER

#: GPU, kernel and type of the first array of all calls of this process.
_called: set[tuple[int, str, Any]] = set()


def gpu_descriptions() -> list[str]:
    """Return name and memory of each usable GPU, as text."""
    if gpu_count() == 0:
        return []
    import cupy

    found = [cupy.cuda.runtime.getDeviceProperties(i) for i in range(gpu_count())]
    return [f"{gpu['name'].decode()}, {gpu['totalGlobalMem'] / 2**30:.0f} GiB" for gpu in found]


class GpuDevice:
    """One GPU.

    Calls must be made inside `activate`, from one thread at a time.  Arrays
    that they are given must live until `synchronize`.

    Parameters
    ----------
    index : int
        CUDA's number of the device.
    name : str, optional
        By default ``gpu<index>``.
    """

    kind: DeviceKind = "gpu"
    enqueues = True
    #: Kernels read only this device's memory: arrays of other devices are copied to it.
    by_reference = False

    def __init__(self, index: int, name: str | None = None) -> None:
        require_cuda()
        if not 0 <= index < gpu_count():
            raise DeviceUnavailableError(f"no GPU {index}; this machine has {gpu_count()}")
        import cupy

        self.index = index
        self.name = name or f"gpu{index}"
        self.loading: list[Interval] = []
        with cupy.cuda.Device(index):
            self._queues = {
                queue: GpuQueue(index, 0 if queue is Queue.UPDATE else HIGH_PRIORITY)
                for queue in Queue
            }
            self._idle = cupy.cuda.Stream(non_blocking=True)
        self._communicators = weakref.WeakSet[nccl.GpuCommunicator]()

    @property
    def pci_address(self) -> str:
        """The GPU's address on the host's PCI bus, which does not depend on the process."""
        import cupy

        return str(cupy.cuda.Device(self.index).pci_bus_id)

    @functools.cached_property
    def companion(self) -> GpuDevice:
        """An object for the same GPU, with queues of its own, each for one other thread."""
        return GpuDevice(self.index, self.name)

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Make the device current; restore the caller's device and stream at the end.

        The queues wait for all work that is on the caller's stream at the beginning.
        """
        import cupy

        with cupy.cuda.Device(self.index):
            callers = cupy.cuda.get_current_stream()
            arrived = cupy.cuda.Event(disable_timing=True)
            arrived.record(callers)
            for q in self._queues.values():
                q.stream.wait_event(arrived)
            try:
                yield
            finally:
                callers.use()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the device current for a few calls; restore the thread's device and stream."""
        import cupy

        with cupy.cuda.Device(self.index):
            stream = cupy.cuda.get_current_stream()
            try:
                yield
            finally:
                stream.use()

    @contextlib.contextmanager
    def at_task(self) -> Iterator[None]:
        """Make the device current for a task, and at the end complete what it has enqueued."""
        with on_device_index(self.index):
            yield
            wait_for_gpus()

    @contextlib.contextmanager
    def on_wait(self, context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Enter `context` around each wait of the host within a call."""
        for q in self._queues.values():
            q.waiting = context
        try:
            yield
        finally:
            for q in self._queues.values():
                q.waiting = contextlib.nullcontext

    def free_bytes(self) -> int:
        """Return the bytes that the driver or CuPy's pool can still allocate."""
        import cupy

        with cupy.cuda.Device(self.index):
            free, _ = cupy.cuda.runtime.memGetInfo()
            return int(free) + int(cupy.get_default_memory_pool().free_bytes())

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocate a column-major array."""
        import cupy

        with cupy.cuda.Device(self.index):
            return allocate(shape, dtype, *(q.stream for q in self._queues.values()))

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        """Enqueue `kernel`; arrays of size zero leave nothing to do.

        The first call in a process loads, and if need be compiles, what the kernel launches.
        """
        if not all(a.size for a in arrays):
            return
        q, call = self._queues[queue], (self.index, kernel, arrays[0].dtype)
        q.stream.use()  # CuPy's calls of cuBLAS go to the current stream
        began = None if call in _called else time.perf_counter()
        implementation(kernel, "gpu")(q, *arrays, options=options)
        if began is not None:
            _called.add(call)
            self.loading.append((began, time.perf_counter()))

    def record(self, queue: Queue) -> Event:
        """Mark the point that `queue` has reached."""
        import cupy

        event = cupy.cuda.Event(disable_timing=True)
        event.record(self._queues[queue].stream)
        return event

    def reached(self, event: Event) -> bool:
        """Return whether `event` has come to pass; any thread may ask."""
        return event is None or bool(event.done)

    def wait(self, queue: Queue, event: Event) -> None:
        """Let later calls on `queue` wait for `event`, of any device."""
        if event is not None:
            self._queues[queue].stream.wait_event(event)

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        """Copy between arrays of this device, another one or the host.

        Both are column-major, unless both are on this device.
        """
        ends = {device_index(target), device_index(source)} - {None}
        on_gpu = is_device_array(source) and is_device_array(target)
        if len(ends) == 2:
            enable_peers(*sorted(ends))  # type: ignore[type-var]
        elif on_gpu and source.ndim == 2 and source.size and not is_column_major(source):
            self._turn(target, source, self._queues[queue])
            return
        enqueue_copy(target, source, self._queues[queue].stream.ptr)

    def _turn(self, target: Array, source: Array, q: GpuQueue) -> None:
        """Copy a matrix that is not column-major, on this device."""
        plain = source.dtype == target.dtype and source.dtype.char in LETTER
        if plain and is_column_major(source.T) and is_column_major(target):
            common.turn(q, target, source)
        else:
            q.stream.use()
            target[...] = source

    def synchronize(self) -> None:
        """Block the host until all three queues are empty.

        Raises
        ------
        KernelTimeoutError
            If blocks of a panel have waited in vain for each other.
        """
        lost = [q.synchronize() for q in self._queues.values()]
        if any(lost):
            raise KernelTimeoutError(
                f"a panel kernel on GPU {self.index} has timed out: a thread block waited too "
                "long for another"
            )

    @property
    def nccl_address(self) -> str:
        """The GPU's address, if it can exchange messages with those of other processes."""
        return "" if nccl.missing() else self.pci_address

    def communicator_name(self) -> CommunicatorName:
        """Return the name of a new communicator."""
        return nccl.new_name()

    def communicator(self, name: CommunicatorName, *, sends: bool) -> nccl.GpuCommunicator:
        """Return this end of a communicator, once the other process has begun to make its end.

        A receiver waits with one multiprocessor, and so does each sender: what has to run at once
        to end, such as a panel that the other process waits for, must not need these.
        """
        copies = self._queues[Queue.COPY].stream
        made = nccl.GpuCommunicator(self.index, copies, name, sends=sends)
        self._communicators.add(made)
        senders = sum(each.sends for each in self._communicators)
        for q in self._queues.values():
            q.held_by_messages = 1 + senders
        return made

    def stopwatch(self) -> GpuStopwatch:
        """Return a stopwatch for the queues, by CUDA events."""
        return GpuStopwatch([self._queues[queue].stream for queue in Queue], self._idle)
