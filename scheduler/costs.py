"""How long kernels and transfers take: a first, simple machine model.

Each device has about a dozen figures, either nominal or measured by short probes.
Kernel times follow from them by formulas with one aim: to rank plans (which device
factors panels, which tile size, inline or not), not to predict to the last percent.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from hetero_la.scheduler.graph import Region, TaskGraph
from hetero_la.scheduler.instructions import Instruction
from hetero_la.scheduler.workers import WorkerInfo
from hetero_la.tiles.kernels.cpu import CpuDevice
from hetero_la.tiles.kernels.gpu import GpuDevice, gpu_count
from hetero_la.tiles.kernels.spec import SPECS, Array, Device, DeviceKind, KernelOptions, Queue
from hetero_la.tiles.transfer import pinned_empty

Shapes = Sequence[tuple[int, ...]]


class Chain(NamedTuple):
    """A kernel's part that BLAS-3 does not explain: seconds per column and per element.

    The columns of a panel follow one another, and each is searched and scaled.
    """

    column: float
    element: float

    def seconds(self, rows: int, columns: int, scale: float) -> float:
        """Time of `columns` dependent steps, each on `rows` elements."""
        return columns * (self.column + self.element * scale * rows)


_CORE_PANEL = Chain(2e-7, 4e-10)
_CORE_INVERSE = Chain(5e-7, 1e-8)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A transfer of b bytes takes ``latency + b / bandwidth`` seconds.

    Examples
    --------
    >>> LinkModel(1e-5, 50e9).seconds(50_000_000)
    0.00101
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def seconds(self, nbytes: float) -> float:
        """Time of one transfer."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """One device's speed.  The defaults are one CPU core's, in float64.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
        A "cpu" runs a call in the thread that makes it; a "gpu" enqueues it.
    dtype : str
        Element type in which the figures hold; others are scaled from it.
    call_seconds, launch_seconds : float
        Fixed cost of a call on its queue, and in the thread that enqueues it.
    gemm_rate : float
        Flop/s of a matrix product without end, in `dtype`, as `SPECS` counts them.
    gemm_half, gemm_inner_half : float
        A product of m x k by k x n costs as if m and n were longer by the first and
        k by the second: the sizes at which the rate is half.
    solve_half : float
        The same for the order of a triangle that is solved with.
    panel, inverse : Chain
        What getrf and trtri take besides their products.
    panel_launch_seconds : float
        Time to enqueue one column of a panel.
    panel_slowdown, panel_share : float
        On a GPU, how much longer a panel takes beside an update, and what part of its
        speed the update loses.
    index_seconds : float
        netperm and compose, per pivot.
    swap_seconds, gather_seconds : float
        swap, per element that changes its row; laswp, per element.
    bandwidth : float
        Bytes/s of a copy within the device's memory (each byte counted once).
    single_speedup : float
        Rate in single over rate in double precision.
    by_reference : bool
        Whether host arrays of its own process are read where they are.

    Examples
    --------
    >>> core = DeviceModel()
    >>> sizes = [(4000, 256), (256, 1000), (4000, 1000)]
    >>> f"{core.kernel_seconds('gemm', sizes, 'float64'):.3f} s"
    '0.038 s'
    """

    kind: DeviceKind = "cpu"
    dtype: str = "float64"
    call_seconds: float = 2e-5
    launch_seconds: float = 0.0
    gemm_rate: float = 56e9
    gemm_half: float = 10.0
    gemm_inner_half: float = 8.0
    solve_half: float = 400.0
    panel: Chain = _CORE_PANEL
    inverse: Chain = _CORE_INVERSE
    panel_launch_seconds: float = 0.0
    panel_slowdown: float = 1.0
    panel_share: float = 0.0
    index_seconds: float = 2.5e-7
    swap_seconds: float = 3e-9
    gather_seconds: float = 3e-9
    bandwidth: float = 10e9
    single_speedup: float = 2.0
    by_reference: bool = True

    def work(self, dtype: Any) -> float:
        """Time of the same product in `dtype`, relative to the model's own type."""
        return self._weight(np.dtype(dtype)) / self._weight(np.dtype(self.dtype))

    def _weight(self, dtype: np.dtype) -> float:
        single = dtype.itemsize == (8 if dtype.kind == "c" else 4)
        return (4.0 if dtype.kind == "c" else 1.0) / (self.single_speedup if single else 1.0)

    def multiply_seconds(self, m: float, n: float, k: float) -> float:
        """A matrix product, without its fixed cost, in the model's own type."""
        padded = (m + self.gemm_half) * (n + self.gemm_half) * (k + self.gemm_inner_half)
        return 2 * padded / self.gemm_rate if m and n and k else 0.0

    def solve_seconds(self, order: int, flops: float) -> float:
        """A triangular solve, likewise."""
        return flops * (1 + self.solve_half / order) / self.gemm_rate

    def kernel_seconds(self, kind: str, shapes: Shapes, dtype: Any) -> float:
        """Time of kernel `kind` on its queue, from the shapes of its arrays."""
        return self.call_seconds + _RULES.get(kind, _roofline)(self, kind, shapes, np.dtype(dtype))

    def host_seconds(self, kind: str, shapes: Shapes) -> float:
        """Time that the calling thread takes to enqueue kernel `kind`; 0 on a CPU."""
        columns = shapes[0][1] if kind == "getrf" else 0
        return self.launch_seconds + columns * self.panel_launch_seconds


def _roofline(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    """For a kernel without a rule of its own: its flops or its bytes, whichever is slower."""
    elements = sum(math.prod(shape) for shape in shapes)
    flops = d.work(dtype) * SPECS[kind].flops(shapes)
    return max(flops / d.gemm_rate, elements * dtype.itemsize / d.bandwidth)


def _gemm(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    (m, k), (_, n) = shapes[0], shapes[1]
    return d.work(dtype) * d.multiply_seconds(m, n, k)


def _trmm(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    order, columns = shapes[2]
    if d.kind == "cpu":  # BLAS leaves the zeros of the triangle out
        return d.work(dtype) * d.multiply_seconds(order, columns, order / 2)
    copied = order * columns * dtype.itemsize / d.bandwidth
    return d.work(dtype) * d.multiply_seconds(order, columns, order) + copied


def _trsm(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    return d.work(dtype) * d.solve_seconds(shapes[1][0], SPECS[kind].flops(shapes))


def _getrf(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    rows, order = shapes[0][0], min(shapes[0])
    # Recursion multiplies at half, a quarter, an eighth ... of the width.
    inner = max(order / 4, 1.0)
    flops = SPECS[kind].flops(shapes)
    products = flops / (2 * rows * inner**2) * d.multiply_seconds(rows, inner, inner)
    scale = dtype.itemsize / np.dtype(d.dtype).itemsize
    return d.work(dtype) * products + d.panel.seconds(rows, order, scale)


def _trtri(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    order = shapes[1][0]
    scale = dtype.itemsize / np.dtype(d.dtype).itemsize
    solve = d.solve_seconds(order, SPECS[kind].flops(shapes))
    return d.work(dtype) * solve + d.inverse.seconds(order, order, scale)


def _swap(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    # An element costs a cache line or a memory sector, whatever its size.
    return 2 * shapes[0][0] * shapes[-1][1] * d.swap_seconds


def _laswp(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    scale = dtype.itemsize / np.dtype(d.dtype).itemsize
    return shapes[0][0] * shapes[1][1] * scale * d.gather_seconds


def _indices(d: DeviceModel, kind: str, shapes: Shapes, dtype: np.dtype) -> float:
    rows = sum(shape[-1] for shape in shapes)
    return shapes[0][0] * d.index_seconds + 4 * rows / d.bandwidth


_RULES: dict[str, Callable[[DeviceModel, str, Shapes, np.dtype], float]] = {
    "gemm": _gemm, "trmm": _trmm, "trsm": _trsm, "getrf": _getrf, "trtri": _trtri,
    "swap": _swap, "laswp": _laswp, "netperm": _indices, "compose": _indices,
}  # fmt: skip

CORE = DeviceModel()  #: one core of a server CPU (AMD Zen 4, 2.6 GHz, OpenBLAS)

#: One H200: products at the clock that a long run keeps (bursts are a tenth faster).
H200 = DeviceModel(
    kind="gpu", call_seconds=5e-6, launch_seconds=1.4e-5, gemm_rate=57e12, gemm_half=32.0,
    gemm_inner_half=79.0, solve_half=7000.0, panel=Chain(2.7e-6, 1.5e-11),
    inverse=Chain(1e-7, 5e-11), panel_launch_seconds=1e-6, panel_slowdown=1.8, panel_share=0.1,
    index_seconds=2e-8, swap_seconds=2.4e-11, gather_seconds=1.2e-11, bandwidth=2e12,
    single_speedup=1.0, by_reference=False,
)  # fmt: skip


def cores(threads: int = 1, *, by_reference: bool = True) -> DeviceModel:
    """The nominal model of CPU cores that one BLAS call uses together.

    Products scale with the cores; a panel does not, as its threads meet at each
    column; memory serves about 16 cores.
    """
    served = min(threads, 16)
    return DeviceModel(
        gemm_rate=CORE.gemm_rate * threads,
        gemm_half=CORE.gemm_half * math.sqrt(threads),
        gemm_inner_half=CORE.gemm_inner_half * math.sqrt(threads),
        panel=Chain(CORE.panel.column + 1.7e-6 * (threads - 1), CORE.panel.element),
        swap_seconds=CORE.swap_seconds / served,
        bandwidth=CORE.bandwidth * served,
        by_reference=by_reference,
    )


def call_shapes(
    instruction: Instruction,
    graph: TaskGraph,
    width: int | None = None,
    shape_of: Callable[[Region], tuple[int, ...]] | None = None,
) -> list[tuple[int, ...]]:
    """Shapes of the arrays of a call.

    Parameters
    ----------
    instruction : Instruction
        A call.
    graph : TaskGraph
        What its regions are regions of.
    width : int or None, optional
        Columns of all the tile columns that are merged into the call; by default,
        those of its first tile column.
    shape_of : callable or None, optional
        ``graph.shape``, or something that remembers what it said.
    """
    shapes = [(shape_of or graph.shape)(region) for region in instruction.regions]
    if width is not None:
        for place, region in enumerate(instruction.regions):
            if region.index == instruction.first and region.name not in graph.values:
                shapes[place] = (shapes[place][0], width)
    return shapes


@dataclass(frozen=True, slots=True)
class MachineModel:
    """Devices of all workers, and the links between them.

    Attributes
    ----------
    devices : tuple of DeviceModel
        One per worker.
    processes : tuple
        What tells each worker's process from the others'; empty: all in one.
    host_link, peer_link, process_link : LinkModel
        Between the host and a GPU, two GPUs of one process, two processes.

    Examples
    --------
    >>> machine = MachineModel((CORE, H200, H200))
    >>> [round(1e3 * machine.transfer_seconds(396_000_000, 1, to), 1) for to in (0, 1, 2)]
    [7.2, 0.0, 1.0]
    """

    devices: tuple[DeviceModel, ...]
    processes: tuple[Any, ...] = ()
    host_link: LinkModel = LinkModel(1e-5, 55e9)
    peer_link: LinkModel = LinkModel(1e-5, 396e9)
    process_link: LinkModel = LinkModel(6e-3, 1e9)  # through Dask, over TCP

    @classmethod
    def nominal(cls, workers: Sequence[WorkerInfo]) -> MachineModel:
        """A model that needs no measuring: every GPU an H200, every core as in `CORE`."""
        return cls(
            tuple(
                H200
                if worker.kind == "gpu" and not worker.virtual
                else cores(worker.blas_threads, by_reference=not worker.virtual)
                for worker in workers
            ),
            tuple((worker.host, worker.pid) for worker in workers),
        )

    def seconds(
        self,
        instruction: Instruction,
        graph: TaskGraph,
        worker: int,
        dtype: Any,
        width: int | None = None,
    ) -> float:
        """Time of a call, load or store on its queue (`call_shapes` says what `width` is).

        A send takes no time, and a receive that of its transfer.
        """
        if instruction.op == "call":
            shapes = call_shapes(instruction, graph, width)
            return self.devices[worker].kernel_seconds(instruction.kind, shapes, dtype)
        if instruction.op in ("load", "store"):
            layout = graph.layout
            columns = layout.column_width(instruction.first)
            return self.host_seconds(layout.m * columns * np.dtype(dtype).itemsize, worker)
        return 0.0

    def host_seconds(self, nbytes: float, worker: int) -> float:
        """Time to move bytes between the user's host array and a worker's memory."""
        device = self.devices[worker]
        return self.host_link.seconds(nbytes) if device.kind == "gpu" else nbytes / device.bandwidth

    def transfer_seconds(
        self, nbytes: float, source: int, target: int, *, private: bool = False
    ) -> float:
        """Time to bring bytes from one worker to another.

        Parameters
        ----------
        nbytes : float
            How many.
        source, target : int
            The workers.
        private : bool, optional
            Whether the target needs a copy even where it could read in place.
        """
        if source == target:
            return 0.0
        sender, receiver = self.devices[source], self.devices[target]
        gpus = [d for d in (sender, receiver) if d.kind == "gpu"]
        if self.processes and self.processes[source] != self.processes[target]:
            ends = sum(self.host_link.seconds(nbytes) for _ in gpus)
            return self.process_link.seconds(nbytes) + ends
        if len(gpus) == 2:
            return self.peer_link.seconds(nbytes)
        if gpus:
            return self.host_link.seconds(nbytes)
        return nbytes / receiver.bandwidth if private or not receiver.by_reference else 0.0


def window_steps(
    predicted_seconds: float,
    steps: int,
    workers: int,
    *,
    task_seconds: float = 2e-3,
    share: float = 0.03,
) -> int:
    """Steps per Dask task: the smallest window that keeps Dask's cost a small share.

    Parameters
    ----------
    predicted_seconds : float
        Of the whole run.
    steps, workers : int
        Steps of the factorization; each window of them is one task per worker.
    task_seconds : float, optional
        What one task costs Dask's event loop, whatever the number of workers.
    share : float, optional
        Largest part of the run that all tasks together may take.

    Returns
    -------
    int
        Between 1 and `steps`; all steps for one worker, or where no window is
        large enough.

    Examples
    --------
    >>> window_steps(1.25, 64, 4), window_steps(60.0, 64, 4), window_steps(0.1, 64, 4)
    (16, 1, 64)
    """
    windows = int(share * predicted_seconds / (task_seconds * workers))
    if workers == 1 or windows < 1:
        return max(steps, 1)
    return max(math.ceil(steps / windows), 1)


@dataclass(frozen=True)
class _Sizes:
    """Sizes of the probes: milliseconds each, and beyond the fixed costs."""

    edge: int
    inner: tuple[int, int]
    narrow: int
    panel: tuple[int, int, int]
    orders: tuple[int, int]
    rows: int
    columns: int
    repeats: int


_SIZES = {
    "cpu": _Sizes(512, (256, 32), 32, (384, 2048, 192), (64, 192), 4096, 512, 1),
    "gpu": _Sizes(4096, (512, 128), 256, (4096, 32768, 256), (128, 512), 16384, 2048, 8),
}


@dataclass
class _Probe:
    """Times kernels on one device, on random data: zeros draw less power and run faster."""

    device: Device
    dtype: np.dtype

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.options = KernelOptions()
        # A CPU in the role of a GPU runs its calls itself.
        self.kind: DeviceKind = "gpu" if self.device.index >= 0 else "cpu"
        self.sizes = _SIZES[self.kind]

    def array(self, rows: int, columns: int, diagonal: float | None = None) -> Array:
        """A random matrix; with a diagonal, a triangle of it is well conditioned."""
        # Random numbers are slow to make: 64 columns, over and over, unless few are asked for.
        few = min(columns, 64) if diagonal is None else columns
        host = np.asfortranarray(self.rng.random((few, rows), np.float32).T.astype(self.dtype))
        host -= self.dtype.type(0.5)
        if diagonal is not None:
            host /= rows
            np.fill_diagonal(host, diagonal)
        array = self.device.empty((rows, columns), self.dtype)
        for first in range(0, columns, few):
            part = array[:, first : first + few]
            self.device.copy(part, host[:, : part.shape[1]], Queue.PANEL)
        self.device.synchronize()
        return array

    def integers(self, values: np.ndarray) -> Array:
        host = np.asfortranarray(values.astype(np.int32))
        array = self.device.empty(host.shape, host.dtype)
        self.device.copy(array, host, Queue.PANEL)
        self.device.synchronize()
        return array

    def seconds(
        self, work: Callable[[], None], repeats: int = 1, before: Callable[[], None] | None = None
    ) -> float:
        """Median time of one of `repeats` calls in a row, each row after `before`."""
        samples = []
        for _ in range(4):
            if before is not None:
                before()
                self.device.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            self.device.synchronize()
            samples.append((time.perf_counter() - start) / repeats)
        return statistics.median(samples[1:])  # the first one warms up

    def kernel(
        self,
        kind: str,
        *arrays: Array,
        repeats: int = 1,
        before: Callable[[], None] | None = None,
    ) -> float:
        return self.seconds(lambda: self.call(kind, *arrays), repeats, before)

    def excess(self, model: DeviceModel, kind: str, *arrays: Array) -> float:
        """Time of a kernel beyond the fixed cost of a call."""
        seconds = self.kernel(kind, *arrays, repeats=self.sizes.repeats)
        return max(seconds - model.call_seconds, 1e-9)

    def call(self, kind: str, *arrays: Array) -> None:
        self.device.call(kind, Queue.PANEL, arrays, self.options)


_measured: dict[tuple[Any, ...], Any] = {}


def machine_model(
    workers: Sequence[WorkerInfo], dtype: Any = np.float64, *, measure: bool = True
) -> MachineModel:
    """The model of a team of workers, measured where this process can reach their devices.

    Parameters
    ----------
    workers : sequence of WorkerInfo
        The team.  Those of other processes or absent GPUs are taken as nominal.
    dtype : dtype, optional
        Element type of the run.
    measure : bool, optional
        False makes everything nominal, and so costs nothing.

    Examples
    --------
    >>> machine_model([WorkerInfo("gpu0", "gpu", device=0)], measure=False).devices[0] is H200
    True
    """
    model = MachineModel.nominal(workers)
    if not measure:
        return model
    devices = list(model.devices)
    host_link = model.host_link
    for place, worker in enumerate(workers):
        if worker.pid != os.getpid():
            continue
        if worker.kind == "cpu" or worker.virtual:
            with threadpool_limits(worker.blas_threads, "blas"):
                measured = measure_device(CpuDevice(), dtype)
            devices[place] = replace(measured, by_reference=not worker.virtual)
        elif worker.device < gpu_count():
            device = GpuDevice(worker.device)
            devices[place] = measure_device(device, dtype)
            host_link = measure_link(device)
    return replace(model, devices=tuple(devices), host_link=host_link)


def _blas_threads() -> int:
    return max((e["num_threads"] for e in threadpool_info() if e["user_api"] == "blas"), default=1)


def measure_device(device: Device, dtype: Any = np.float64) -> DeviceModel:
    """Measure a device with a few short kernels, once per process.

    Takes about 0.1 s on CPU cores and 0.2 s on a GPU whose libraries are loaded.  The
    result belongs to the device's name, the number of BLAS threads and the dtype; a
    second call with these returns it at once.

    Parameters
    ----------
    device : Device
        What to measure; it must be idle.
    dtype : dtype, optional
        Element type to measure with.
    """
    dtype = np.dtype(dtype)
    key = (device.kind, device.name, device.index, _blas_threads(), dtype.name)
    if key not in _measured:
        with device.activate():
            _measured[key] = _measure(_Probe(device, dtype))
    return _measured[key]


def _measure(probe: _Probe) -> DeviceModel:
    tiny = [probe.array(1, 1) for _ in range(3)]
    if probe.kind == "gpu":
        # A tiny kernel hides behind its launch, so its own fixed cost stays nominal.
        model = replace(H200, launch_seconds=_enqueue_seconds(probe, "gemm", *tiny))
    else:
        call = probe.kernel("gemm", *tiny, repeats=50)
        model = replace(CORE, call_seconds=call, by_reference=probe.device.by_reference)
    model = replace(model, dtype=probe.dtype.name)
    for fit in (_fit_gemm, _fit_moves, _fit_triangles, _fit_panel):
        model = fit(probe, probe.sizes, model)
    return model


def _enqueue_seconds(probe: _Probe, kind: str, *arrays: Array) -> float:
    """Time of the calling thread alone."""
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        probe.call(kind, *arrays)
        samples.append(time.perf_counter() - start)
        probe.device.synchronize()
    return statistics.median(samples)


def _fit_gemm(probe: _Probe, sizes: _Sizes, model: DeviceModel) -> DeviceModel:
    edge, narrow, (inner, short) = sizes.edge, sizes.narrow, sizes.inner
    a, b, c = probe.array(edge, inner), probe.array(inner, edge), probe.array(edge, edge)

    def product(n: int, k: int) -> float:
        return probe.excess(model, "gemm", a[:, :k], b[:k, :n], c[:, :n])

    full = product(edge, inner)
    inner_half = _half_size(product(edge, short) / full, inner, short)
    half = _half_size(product(narrow, inner) / full, edge, narrow)
    rate = 2 * (edge + half) ** 2 * (inner + inner_half) / full
    return replace(model, gemm_rate=rate, gemm_half=half, gemm_inner_half=inner_half)


def _fit_moves(probe: _Probe, sizes: _Sizes, model: DeviceModel) -> DeviceModel:
    rows, columns, width = sizes.rows, sizes.columns, sizes.panel[2]
    a, b = probe.array(rows, columns), probe.array(rows, columns)
    pivots = np.arange(width) + probe.rng.integers(0, rows - width, width)
    ipiv, perm = probe.integers(pivots), probe.integers(probe.rng.permutation(rows))
    net = probe.integers(np.zeros((2, 2 * width)))
    copy = probe.seconds(lambda: probe.device.copy(b, a, Queue.PANEL), sizes.repeats)
    netperm = probe.excess(model, "netperm", ipiv, net)
    swap = probe.excess(model, "swap", ipiv, net, a)
    laswp = probe.excess(model, "laswp", perm, a)
    return replace(
        model, bandwidth=a.nbytes / copy, index_seconds=netperm / width,
        swap_seconds=swap / (2 * width * columns), gather_seconds=laswp / (rows * columns),
    )  # fmt: skip


def _fit_triangles(probe: _Probe, sizes: _Sizes, model: DeviceModel) -> DeviceModel:
    low, high = sizes.orders
    triangle, b = probe.array(high, high, 1.0), probe.array(high, sizes.columns)
    at_full_rate = high**2 * sizes.columns / model.gemm_rate
    ratio = probe.excess(model, "trsm", triangle, b) / at_full_rate
    model = replace(model, solve_half=high * max(ratio - 1, 0.0))

    def rest(order: int) -> float:
        inverse = probe.device.empty((order, order), probe.dtype)
        explained = model.solve_seconds(order, order**3 / 3)
        return probe.excess(model, "trtri", triangle[:order, :order], inverse) - explained

    return replace(model, inverse=_fit_chain((low, low, rest(low)), (high, high, rest(high))))


def _fit_panel(probe: _Probe, sizes: _Sizes, model: DeviceModel) -> DeviceModel:
    short, tall, width = sizes.panel
    ipiv, info = probe.integers(np.zeros(width)), probe.integers(np.zeros(1))
    points, enqueue = [], 0.0
    products = replace(model, panel=Chain(0.0, 0.0))
    for rows in (short, tall):
        # Random, with a zero diagonal: no column is another's copy, and every one needs a swap.
        original = probe.array(rows, width, 0.0)
        panel = probe.device.empty((rows, width), probe.dtype)
        refill = functools.partial(probe.device.copy, panel, original, Queue.PANEL)
        seconds = probe.kernel("getrf", panel, ipiv, info, before=refill)
        shapes = [(rows, width), (width,), (1,)]
        rest = seconds - products.kernel_seconds("getrf", shapes, probe.dtype)
        points.append((rows, width, rest))
        enqueue = _enqueue_seconds(probe, "getrf", panel, ipiv, info)
    launches = max(enqueue - model.launch_seconds, 0.0) / width if model.kind == "gpu" else 0.0
    return replace(model, panel=_fit_chain(*points), panel_launch_seconds=launches)


def _half_size(ratio: float, long: float, short: float) -> float:
    """Solve ``ratio = (short + h) / (long + h)`` for h, between 0 and `long`."""
    if ratio >= 1:
        return long
    return min(max((ratio * long - short) / (1 - ratio), 0.0), long)


def _fit_chain(*points: tuple[int, int, float]) -> Chain:
    """Nonnegative costs per column and per element through (rows, columns, seconds)."""
    (r1, c1, t1), (r2, c2, t2) = points
    t1, t2 = max(t1 / c1, 0.0), max(t2 / c2, 0.0)
    element = max((t2 - t1) / (r2 - r1), 0.0)
    # Where the short one is dearer, the tall one decides: most panels are tall.
    column = t2 - element * r2
    if column < 0:
        return Chain(0.0, t2 / r2)
    return Chain(column, element)


def measure_link(device: Device) -> LinkModel:
    """Measure copies from the host to a device, from pinned memory where there is any.

    Takes a few milliseconds, once per process and device.
    """
    key = ("link", device.kind, device.name, device.index)
    if key not in _measured:
        with device.activate():
            _measured[key] = _measure_link(_Probe(device, np.dtype(np.float64)))
    return _measured[key]


def _measure_link(probe: _Probe, elements: int = 2**21) -> LinkModel:
    seconds = []
    for size in (1, elements):
        host = pinned_empty((size, 1), probe.dtype)
        host[...] = 1.0
        array = probe.device.empty(host.shape, probe.dtype)
        seconds.append(probe.seconds(functools.partial(probe.device.copy, array, host, Queue.COPY)))
    latency, long = seconds
    return LinkModel(latency, 8 * elements / max(long - latency, 1e-9))
