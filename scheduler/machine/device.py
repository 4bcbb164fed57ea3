"""Model of one device: times of kernels.

Each device has about a dozen figures, either nominal or measured by short probes.
Kernel times follow from them by formulas with one aim: to rank plans (which device
factors panels, which tile size, inline or not), not to predict to the last percent.
Where a profile of the machine has measured a kernel over its sizes, that is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.machine.rate_tables import NO_RATES, KernelRates
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.kernels.device import DeviceKind, Products
from hetero_la.tiles.kernels.gpu_libraries.resident_lu import most_rows
from hetero_la.tiles.kernels.spec import SPECS, VECTOR_FORMS, Role, Shapes


class Chain(NamedTuple):
    """Costs of a panel's dependent columns: seconds per column, and per element of each.

    They are what a panel takes besides its matrix products: its columns follow one another, and
    each is searched for the pivot and scaled.
    """

    column: float
    element: float

    def seconds(self, rows: int, columns: int, scale: float) -> float:
        """Return the time of `columns` dependent steps, each on `rows` elements."""
        return columns * (self.column + self.element * scale * rows)


class Overlap(NamedTuple):
    """Effect on each other of a kernel on a GPU's panel queue and one on its update queue.

    Attributes
    ----------
    slowdown : float
        Factor by which the panel's kernel takes longer.
    share : float
        Fraction of its speed that the update loses: 1 beside a kernel that can fill the GPU.
    """

    slowdown: float = 1.0
    share: float = 1.0


#: Names of the figures of a `DeviceModel` that are chains.
CHAINS = ("panel", "inverse", "library_lu", "library_cholesky", "library_qr")
_LIBRARY = {"getrf": "library_lu", "potrf": "library_cholesky", "geqrf": "library_qr"}

#: cuSOLVER's LU reads a column the more often, the more columns there are: a column of few costs
#: this fraction of the elements' time, one of so many and more all of it.
_FEW, _MANY = 0.25, 512

#: Small LU is a kernel of ours, which takes this fraction of cuSOLVER's time: on an H200 0.50 to
#: 0.67 in double precision, and 0.77 to 0.93 if complex.
_RESIDENT = {"f": 0.6, "c": 0.85}

#: Columns of the panel for which `DeviceModel.panel_slowdown` holds.
SLOWED_COLUMNS = 512

#: Rates of products over those of native ones, on an H200, and fewest operations for which they
#: hold.
_FASTER: dict[Products, float] = {"native": 1.0, "split": 3.5, "3m": 1.1}
_LARGE = 2.0**32

_CORE_PANEL = Chain(2e-7, 4e-10)
_CORE_INVERSE = Chain(5e-7, 1e-8)
_NO_CHAIN = Chain(0.0, 0.0)


@dataclass(frozen=True, slots=True, repr=False)
class DeviceModel:
    """Speed of one device; by default of one CPU core, in float64.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
        A "cpu" runs a call in the thread that makes it; a "gpu" enqueues it.
    dtype : str
        Element type for which the figures hold; they are scaled for others.
    call_seconds, launch_seconds : float
        Fixed cost of a call on its queue, and in the thread that enqueues it.
    issue_seconds : float
        Time of the thread from the return of one call to the next: the cost of an instruction
        besides its call.
    gemm_rate : float
        Asymptotic flop/s of a matrix product in `dtype`, flops as `SPECS` counts them.
    gemm_half, gemm_inner_half : float
        A product of m x k by k x n costs as if m and n were longer by the first and
        k by the second: the sizes at which the rate is half.
    solve_half : float
        The same for the order of the triangle of a triangular solve.
    panel, inverse : Chain
        Time of getrf and trtri besides their products.
    library_lu, library_cholesky, library_qr : Chain
        On a GPU, time of cuSOLVER's factorizations of whole matrices besides their operations.
    factor_column : float
        Time of potrf per column of a tile besides its products.
    panel_launch_seconds, reflector_launch_seconds : float
        Time to enqueue one column of a panel of LU, and of QR.
    panel_slowdown, panel_growth, panel_share : float
        On a GPU: factor by which a panel of 512 columns takes longer beside an update of inner
        size 512, exponent with which that factor grows with the columns, and fraction of its
        speed that the update loses.
    reflector_slowdown, tile_share : float
        The slowdown of a panel of QR over that of one of LU; and the fraction of its speed
        that the update loses beside potrf.
    burst, sustained : float
        On a GPU, seconds of load for which it keeps its full clock, and the fraction of its
        speed that remains after that.
    index_seconds : float
        netperm and compose, per pivot.
    swap_seconds, gather_seconds : float
        swap, per element that changes its row; laswp, per element.
    bandwidth : float
        Bytes/s of a copy within the device's memory (each byte counted once).
    load_bandwidth, turn_bandwidth : float
        Bytes/s at which a CPU copies columns of a column-major, or of a row-major array
        into newly allocated memory.
    single_speedup : float
        Rate in single over rate in double precision.
    by_reference : bool
        Whether host arrays of its own process are read without a copy.
    products : {"native", "split", "3m"}
        How a GPU computes large products in the run that is predicted; see `Options`.
    rates : KernelRates
        Measured rates of kernels over their sizes; they take precedence over the figures.

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
    issue_seconds: float = 1e-5
    gemm_rate: float = 56e9
    gemm_half: float = 10.0
    gemm_inner_half: float = 8.0
    solve_half: float = 400.0
    panel: Chain = _CORE_PANEL
    inverse: Chain = _CORE_INVERSE
    library_lu: Chain = _NO_CHAIN
    library_cholesky: Chain = _NO_CHAIN
    library_qr: Chain = _NO_CHAIN
    factor_column: float = 1e-7
    panel_launch_seconds: float = 0.0
    reflector_launch_seconds: float = 0.0
    panel_slowdown: float = 1.0
    panel_growth: float = 0.0
    panel_share: float = 0.0
    reflector_slowdown: float = 1.0
    tile_share: float = 0.0
    burst: float = 0.0
    sustained: float = 1.0
    index_seconds: float = 2.5e-7
    swap_seconds: float = 3e-9
    gather_seconds: float = 3e-9
    bandwidth: float = 10e9
    load_bandwidth: float = 4e9
    turn_bandwidth: float = 2e9
    single_speedup: float = 2.0
    by_reference: bool = True
    products: Products = "native"
    rates: KernelRates = NO_RATES

    _repr_html_ = as_html

    def __repr__(self) -> str:
        rate = f"{self.gemm_rate / 1e9:.4g} Gflop/s in products"
        measured = counted(len(self.rates.tables), "measured kernel") if self.rates.tables else ""
        return one_line("DeviceModel", self.kind, self.dtype, rate, measured)

    def __post_init__(self) -> None:
        for name in ("panel_share", "tile_share"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be 0 or more and below 1, not {share!r}")

    def work(self, dtype: Any) -> float:
        """Return the time of a product in `dtype` relative to one in the model's own type."""
        return self._weight(np.dtype(dtype)) / self._weight(np.dtype(self.dtype))

    def _weight(self, dtype: np.dtype) -> float:
        single = dtype.itemsize == (8 if dtype.kind == "c" else 4)
        return (4.0 if dtype.kind == "c" else 1.0) / (self.single_speedup if single else 1.0)

    def multiply_seconds(self, m: float, n: float, k: float) -> float:
        """Return the time of a matrix product in the model's type, without a call's fixed cost."""
        padded = (m + self.gemm_half) * (n + self.gemm_half) * (k + self.gemm_inner_half)
        return 2 * padded / self.gemm_rate if m and n and k else 0.0

    def solve_seconds(self, order: int, flops: float) -> float:
        """Return the time of a triangular solve in the model's type, without the fixed cost."""
        return flops * (1 + self.solve_half / order) / self.gemm_rate

    def kernel_seconds(self, kind: str, shapes: Shapes, dtype: Any) -> float:
        """Return the time of kernel `kind` on its queue, from the shapes of its arrays."""
        call = TimedCall(self, kind, shapes, np.dtype(dtype))
        seconds = measured_seconds(call)
        if seconds is None:
            seconds = self.call_seconds + rule(kind)(call)
        faster = self.kind == "gpu" and call.flops >= _LARGE and rule(kind) in _PRODUCTS
        return seconds / _FASTER[self.products] if faster else seconds

    def library_seconds(
        self, panel: str, m: int, n: int, flops: float, dtype: Any, *, forms_q: bool = False
    ) -> float:
        """Return the time of a factorization by one call on a GPU, mostly of cuSOLVER.

        Parameters
        ----------
        panel : {"getrf", "potrf", "geqrf"}
            Which of them.
        m, n : int
            Shape of the matrix.
        flops : float
            Operations of the factorization, and of what follows it.
        dtype : dtype
            Element type.
        forms_q : bool, optional
            Whether a second chain forms Q, an eighth as long on an H200.
        """
        dtype = np.dtype(dtype)
        chain: Chain = getattr(self, _LIBRARY[panel])
        scale = dtype.itemsize / np.dtype(self.dtype).itemsize
        if panel == "getrf":
            scale *= _FEW + (1 - _FEW) * min(n / _MANY, 1)
        products = self.work(dtype) * flops / self.gemm_rate
        chains = chain.seconds(m, min(m, n), scale) * (1.12 if forms_q else 1)
        if panel == "getrf" and max(m, n) <= most_rows(dtype):
            chains *= _RESIDENT[dtype.kind]
        return self.call_seconds + chains + products

    def overlap(self, kind: str, columns: int) -> Overlap:
        """Return how a panel's kernel `kind` of `columns` columns and an update slow each other.

        A chain of small kernels waits at each of them until parts of the update have left
        multiprocessors, and these parts take the longer, the larger the update's inner size.
        Any other kernel of the panel queue could fill the GPU, and has priority.
        """
        if not SPECS[kind].chain:
            return Overlap()
        of_kind = self.reflector_slowdown if kind == "geqrf" else 1.0
        growth = (columns / SLOWED_COLUMNS) ** self.panel_growth
        share = self.tile_share if kind == "potrf" else self.panel_share
        return Overlap(max(self.panel_slowdown * growth * of_kind, 1.0), share)

    def host_seconds(self, kind: str, shapes: Shapes) -> float:
        """Return the time that the calling thread takes to enqueue kernel `kind`; 0 on a CPU."""
        if kind not in ("getrf", "geqrf"):
            return self.launch_seconds
        column = self.panel_launch_seconds if kind == "getrf" else self.reflector_launch_seconds
        return self.launch_seconds + min(shapes[0]) * column


CORE = DeviceModel()  #: one core of a server CPU (AMD Zen 4, 2.6 GHz, OpenBLAS)

#: One H200: products at the clock that it keeps at 700 W, 50e12 with an inner size of 1024 (bursts
#: are a tenth faster).
H200 = DeviceModel(
    kind="gpu", call_seconds=5e-6, launch_seconds=1.4e-5, issue_seconds=0.0, gemm_rate=54e12,
    gemm_half=32.0, gemm_inner_half=79.0, solve_half=7000.0, panel=Chain(2.7e-6, 1.5e-11),
    inverse=Chain(1e-7, 5e-11), library_lu=Chain(1.95e-6, 2.6e-10),
    library_cholesky=Chain(4.5e-7, 2e-11), library_qr=Chain(3.8e-6, 4.5e-10),
    factor_column=4e-7, panel_launch_seconds=1e-6,
    panel_slowdown=2.05, panel_growth=0.24, panel_share=0.1, reflector_slowdown=2.28,
    reflector_launch_seconds=2e-6, tile_share=0.25, index_seconds=2e-8, swap_seconds=2.4e-11,
    gather_seconds=1.2e-11, bandwidth=2e12, single_speedup=1.0, by_reference=False,
)  # fmt: skip


def in_effect(threads: int) -> float:
    """Return how many times one core's rate of products so many threads reach together.

    Beyond the first few, two share a core or its power, unless a profile knows better.

    Examples
    --------
    >>> in_effect(4), in_effect(16)
    (4.0, 10.0)
    """
    return min(float(threads), (threads + 4) / 2)


def cores(threads: int = 1, *, by_reference: bool = True) -> DeviceModel:
    """Return the nominal model of CPU cores that one BLAS call uses together.

    Products scale with the cores as `in_effect` says; panels and diagonal tiles do not, as threads
    synchronize at columns; about 16 cores saturate the memory.
    """
    served = min(threads, 16)
    return DeviceModel(
        gemm_rate=CORE.gemm_rate * in_effect(threads),
        gemm_half=CORE.gemm_half * math.sqrt(threads),
        gemm_inner_half=CORE.gemm_inner_half * math.sqrt(threads),
        panel=Chain(CORE.panel.column + min(1.7e-6 * (threads - 1), 5e-6), CORE.panel.element),
        factor_column=CORE.factor_column * threads,
        swap_seconds=CORE.swap_seconds / served,
        bandwidth=CORE.bandwidth * served,
        by_reference=by_reference,
    )


# --- kernels, by rules of their own or of their role


class TimedCall(NamedTuple):
    """A kernel's call on a device: what the time depends on."""

    device: DeviceModel
    kind: str
    shapes: Shapes
    dtype: np.dtype

    @property
    def sizes(self) -> Mapping[str, int]:
        return SPECS[self.kind].sizes(self.shapes)

    @property
    def weight(self) -> float:
        """The time of an operation relative to one in the model's own type."""
        return self.device.work(self.dtype)

    @property
    def flops(self) -> float:
        """The operations, as many as take that long in the model's own type."""
        return self.weight * SPECS[self.kind].flops(self.shapes)

    @property
    def moved(self) -> float:
        """The elements that are moved."""
        return SPECS[self.kind].work(self.sizes)

    @property
    def scale(self) -> float:
        """The bytes of an element relative to those of the model's own type."""
        return self.dtype.itemsize / np.dtype(self.device.dtype).itemsize


TimeRule = Callable[[TimedCall], float]


def rule(kind: str) -> TimeRule:
    """Return the function that computes the time of kernel `kind`, without its fixed cost."""
    spec = SPECS[kind]
    by_role = _unpivoted if spec.dominant else _BY_ROLE.get(spec.role, _roofline)
    return _RULES.get(spec.timed_as, by_role)


def measured_seconds(call: TimedCall) -> float | None:
    """Return the measured time of a kernel, fixed cost included; None if it was not measured."""
    seconds, spec = call.device.rates.estimate(call.kind, call.shapes), SPECS[call.kind]
    if seconds is None:
        return None
    if spec.operations:
        seconds *= call.weight
    elif spec.columnwise:
        seconds *= call.scale
    return max(seconds, call.device.call_seconds)


def _roofline(call: TimedCall) -> float:
    """Return the time of a kernel's flops or of its bytes, whichever is longer."""
    elements = sum(math.prod(shape) for shape in call.shapes)
    device = call.device
    return max(call.flops / device.gemm_rate, elements * call.dtype.itemsize / device.bandwidth)


def _gemm(call: TimedCall) -> float:
    return call.weight * call.device.multiply_seconds(**call.sizes)


def _herk(call: TimedCall) -> float:
    m, k, n = call.sizes.values()
    return call.weight * call.device.multiply_seconds(m - n / 2, n, k)


def _larfb(call: TimedCall) -> float:
    m, k, n = call.sizes.values()
    multiply = call.device.multiply_seconds
    return call.weight * (2 * multiply(m, n, k) + multiply(k, n, k))


def _trmm(call: TimedCall) -> float:
    order, beside = call.sizes.values()
    if call.device.kind == "cpu":  # BLAS skips the zeros of the triangle
        return call.weight * call.device.multiply_seconds(order, beside, order / 2)
    copied = order * beside * call.dtype.itemsize / call.device.bandwidth
    return call.weight * call.device.multiply_seconds(order, beside, order) + copied


def _trsm(call: TimedCall) -> float:
    return call.device.solve_seconds(call.sizes["w"], call.flops)


#: Time of a column of a panel of QR over that of one of LU.
_REFLECTOR = {"cpu": 2.0, "gpu": 1.15}


def _getrf(call: TimedCall) -> float:
    device, rows, order = call.device, call.shapes[0][0], min(call.shapes[0])
    # Recursion multiplies at half, a quarter, an eighth ... of the width.
    inner = max(order / 4, 1.0)
    products = call.flops / (2 * rows * inner**2) * device.multiply_seconds(rows, inner, inner)
    chain = device.panel.seconds(rows, order, call.scale)
    return products + chain * (_REFLECTOR[device.kind] if call.kind == "geqrf" else 1)


def _unpivoted(call: TimedCall) -> float:
    # A diagonal tile stays in cache, or within one multiprocessor, so that no column waits for
    # memory; the rows below it are products.
    columns = min(call.shapes[0])
    return call.flops / call.device.gemm_rate + columns * call.device.factor_column


def _trtri(call: TimedCall) -> float:
    order = call.sizes["w"]
    chain = call.device.inverse.seconds(order, order, call.scale)
    return call.device.solve_seconds(order, call.flops) + chain


def _swap(call: TimedCall) -> float:
    # An element costs a cache line or a memory sector, whatever its size.
    return 2 * call.moved * call.device.swap_seconds


def _laswp(call: TimedCall) -> float:
    return call.moved * call.scale * call.device.gather_seconds


def _indices(call: TimedCall) -> float:
    rows = sum(shape[-1] for shape in call.shapes)
    return call.moved * call.device.index_seconds + 4 * rows / call.device.bandwidth


_RULES: dict[str, TimeRule] = {
    "gemm": _gemm, "herk": _herk, "larfb_c": _larfb, "trmm": _trmm, "trmm_rc": _trmm,
    "swap": _swap, "laswp": _laswp, **dict.fromkeys(VECTOR_FORMS, _roofline),
}  # fmt: skip
#: Those of products, which a GPU computes as the options say.
_PRODUCTS = (_gemm, _herk, _larfb, _trmm)
_BY_ROLE: dict[Role, TimeRule] = {
    Role.PANEL: _getrf, Role.INVERSE: _trtri, Role.SOLVE: _trsm, Role.EXCHANGE: _indices,
}  # fmt: skip
