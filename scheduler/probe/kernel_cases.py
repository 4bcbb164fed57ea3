"""Cases of kernels to measure: grids of sizes, and calls on a device as in a run."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np

from hetero_la.scheduler.machine.rate_tables import MEASURABLE, Sizes
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.tiles.arrays.device import Array, Queue
from hetero_la.tiles.kernels.spec import SPECS, Role

Axes = tuple[Sizes, ...]

_CPU_TILES = (32, 64, 128, 192, 256, 384, 512)
_CPU_WIDTHS = (64, 128, 256, 512, 2048)
_GPU_TILES = (64, 128, 256, 512, 1024, 2048)
_CPU: dict[str, Axes] = {
    "gemm": ((64, 256, 1024, 4096), (64, 128, 192, 256, 384, 512), _CPU_WIDTHS),
    "herk": ((64, 128, 192, 256, 384, 512), _CPU_WIDTHS),
    "larfb_c": ((256, 1024, 4096), (64, 128, 192, 256, 384), _CPU_WIDTHS),
    "trmm": ((64, 128, 192, 256, 384, 512), (64, 192, 512, 2048)),
    "trmm_rc": ((64, 128, 192, 256, 384, 512), (64, 256, 1024, 4096)),
    "trsm": ((64, 128, 192, 256, 384, 512), (1, 64, 512, 2048)),
    "getrf": ((512, 1024, 2048, 4096, 8192), _CPU_TILES),
    "geqrf": ((512, 1024, 2048, 4096, 8192), _CPU_TILES),
    **dict.fromkeys(("potrf", "trtri", "trtri_n", "netperm", "lacpy"), (_CPU_TILES,)),
    "compose": (_CPU_TILES[2::2], (512, 2048, 8192)),
    "swap": (_CPU_TILES[2::2], (512, 2048, 8192), (192, 2048)),
    "laswp": ((512, 2048, 8192), (192, 512)),
}
_GPU: dict[str, Axes] = {
    "gemm": (
        (256, 1024, 4096, 16384, 32768), (128, 256, 512, 1024), (256, 1024, 4096, 16384),
    ),
    "herk": ((256, 512, 1024), (256, 1024, 4096, 16384)),
    "larfb_c": ((1024, 4096, 16384, 32768), (128, 256, 512, 1024), (256, 1024, 4096, 16384)),
    "trmm": ((128, 256, 512, 1024), (256, 1024, 4096, 16384)),
    "trmm_rc": ((128, 256, 512, 1024), (256, 1024, 4096, 16384, 32768)),
    "trsm": ((128, 256, 512, 1024), (1, 256, 1024, 4096)),
    "getrf": ((1024, 4096, 8192, 16384, 32768, 65536), (64, 128, 256, 512, 1024)),
    "geqrf": ((1024, 4096, 8192, 16384, 32768, 65536), (64, 128, 256, 512, 1024)),
    **dict.fromkeys(("potrf", "trtri", "trtri_n", "netperm", "lacpy"), (_GPU_TILES,)),
    "potrf": ((*_GPU_TILES, 4096),),
    "compose": ((256, 512, 1024), (1024, 8192, 65536)),
    "swap": ((128, 256, 512, 1024), (1024, 8192, 32768), (256, 2048, 16384)),
    "laswp": ((1024, 8192, 32768), (256, 1024)),
}  # fmt: skip


def grids(
    kind: str, *, quick: bool = False, nbytes: float = math.inf, itemsize: int = 8
) -> dict[str, Axes]:
    """Return the sizes at which kernels of a device kind are measured.

    Parameters
    ----------
    kind : {"cpu", "gpu"}
        Device kind.
    quick : bool, optional
        Take every other value of each size, up to the largest.
    nbytes : float, optional
        Memory that the arrays of a kernel may take; sizes that need more are left out.
    itemsize : int, optional
        Bytes of an element.

    Examples
    --------
    >>> grids("cpu")["potrf"], grids("cpu", quick=True)["potrf"]
    (((32, 64, 128, 192, 256, 384, 512),), ((32, 128, 256, 512),))
    """
    found = {}
    for name, axes in (_GPU if kind == "gpu" else _CPU).items():
        if quick:
            axes = tuple(axis[(len(axis) - 1) % 2 :: 2] for axis in axes)
        while _nbytes(name, axes, itemsize) > nbytes and any(len(axis) > 1 for axis in axes):
            longest = max(axis[-1] for axis in axes if len(axis) > 1)
            axes = tuple(
                axis[:-1] if axis[-1] == longest and len(axis) > 1 else axis for axis in axes
            )
        found[name] = axes
    return found


def _nbytes(name: str, axes: Axes, itemsize: int) -> int:
    largest = MEASURABLE[name].shapes(*(axis[-1] for axis in axes))
    return 2 * itemsize * sum(math.prod(shape) for shape in largest)  # panels are kept twice


#: Roles of kernels whose first array is restored before each call: they overwrite it, or in a run
#: read it from the caches, where the kernel before has left it.
_REFILLED = (Role.PANEL, Role.INVERSE)
#: Diagonals, by kernel and place: triangles must be well conditioned, and panels need swaps.
_DIAGONALS = {
    "trmm": {0: 1.0, 1: 1.0}, "trmm_rc": {0: 1.0, 1: 1.0}, "trsm": {0: 1.0},
    "trtri": {0: 1.0}, "trtri_n": {0: 1.0}, "potrf": {0: 1.0}, "getrf": {0: 0.0},
    "geqrf": {0: 0.0},
}  # fmt: skip

#: Kernels whose last array is a column of the trailing matrix, which is in no cache any more.
_UPDATES = frozenset({"gemm", "herk", "larfb_c", "trsm", "swap", "laswp"})
#: Place of the argument that is a tile of a larger matrix, whose leading dimension it has.
_TILES = {"potrf": 0, "trtri": 0, "trtri_n": 0, "lacpy": 1}
#: Least number of rows of that matrix.
_HEIGHT = 2048
#: More bytes than a cache holds.
_COLD = 2**26
#: m, k and n of the product before each call: on a CPU it evicts the caches, on a GPU it keeps the
#: device busy until the host has enqueued the call.
_BETWEEN = {"cpu": (2048, 64, 512), "gpu": (4096, 512, 4096)}
#: Kernels that in a run follow others of their kind, and find their factors in the caches.
_FOLLOWING = frozenset({"gemm", "herk", "larfb_c", "trmm_rc"})

#: Kernels that on a CPU return to the interpreter, and wait for its lock, for every column.
_INTERPRETED = frozenset({"laswp", "lacpy"})

#: Most samples of one point, and seconds after which no more are taken.
_MOST, _PATIENCE = 3, 0.02
#: Seconds of a sample of repeated calls, long against the clock's resolution.
_SAMPLE = 1e-3


class KernelArrays:
    """Memory for a kernel's largest sizes on one device; each call uses a part of it."""

    def __init__(self, probe: Probe, kind: str, axes: Axes) -> None:
        self.probe, self.kind, self.shapes = probe, kind, MEASURABLE[kind].shapes
        self.largest = self.shapes(*(axis[-1] for axis in axes))
        self.last, self.indices = len(self.largest) - 1, SPECS[kind].index_places
        self.arenas = [self._arena(place, shape) for place, shape in enumerate(self.largest)]

    def _arena(self, place: int, shape: tuple[int, ...]) -> Array | None:
        if place in self.indices or len(shape) == 1:
            return None  # allocated for each size: it has exactly the size of the call
        rows, columns = shape
        if _TILES.get(self.kind) == place:
            rows = max(rows, _HEIGHT)
        if (diagonal := _DIAGONALS.get(self.kind, {}).get(place)) is not None:
            return self.probe.array(rows, columns, diagonal)
        if self.kind in _UPDATES and place == self.last:
            columns = max(columns, _COLD // (rows * self.probe.dtype.itemsize))
        # Reflectors near the identity: applied repeatedly, they do not let the matrix grow.
        scale = 1.0 / rows if self.kind == "larfb_c" and place < 2 else 1.0
        return self.probe.array(rows, columns, scale=scale)

    def arrays(self, sizes: Sizes) -> list[Array]:
        """Return the kernel's arguments for these sizes."""
        found = []
        for place, (arena, shape) in enumerate(zip(self.arenas, self.shapes(*sizes), strict=True)):
            if arena is not None:
                found.append(arena[tuple(map(slice, shape))])
            elif place in self.indices:
                found.append(self.probe.integers(self._indices(place, shape, sizes)))
            else:
                found.append(self.probe.device.empty(shape, self.probe.dtype))
        if self.kind == "swap":
            self.probe.call("netperm", *found[:2])
        return found

    def _indices(self, place: int, shape: tuple[int, ...], sizes: Sizes) -> np.ndarray:
        """Return swaps as a panel of random numbers has them, or a permutation."""
        if self.kind == "laswp":
            return self.probe.rng.permutation(shape[0])
        rows = {"swap": sizes[1:2], "compose": sizes[1:2], "netperm": (16 * sizes[0],)}
        if place or self.kind not in rows:
            return np.zeros(shape)
        first = np.arange(shape[0])
        return first + (self.probe.rng.random(shape[0]) * (rows[self.kind][0] - first)).astype(int)


def kernel_arrays(probe: Probe, kind: str, *sizes: int) -> list[Array]:
    """Return arguments of a kernel for these sizes."""
    return KernelArrays(probe, kind, tuple((size,) for size in sizes)).arrays(sizes)


class KernelCase(KernelArrays):
    """One kernel on one device, called repeatedly as in a run.

    An update returns to a column after all others, when it is in no cache any more: so each call
    updates another one of many arrays.  On a CPU, a call follows other kernels, which have filled
    the caches with their own data and instructions; a short call then takes up to twice as long as
    after one of its kind.  So all kernels but products are measured after a product.  On a GPU,
    all kernels are measured after a product, by the GPU's clock, which leaves out the host's time
    for a call.
    """

    def __init__(self, probe: Probe, kind: str, axes: Axes) -> None:
        super().__init__(probe, kind, axes)
        self.original = self._arena(0, self.largest[0]) if SPECS[kind].role in _REFILLED else None
        self.watch = probe.device.stopwatch()
        m, k, n = _BETWEEN[probe.kind]
        undisturbed = self.watch is None and kind in _FOLLOWING
        shapes = [] if undisturbed else [(m, k), (k, n), (m, n)]
        self.between = [probe.array(*shape) for shape in shapes]

    def rotated_arguments(self, arrays: list[Array]) -> Iterator[list[Array]]:
        """Yield the arguments for ever, each time with another array to update."""
        *others, last = arrays
        if self.kind not in _UPDATES:
            return itertools.cycle([arrays])
        (rows, columns), arena = last.shape, self.arenas[-1]
        assert arena is not None
        places = itertools.product(
            range(0, arena.shape[1] - columns + 1, columns),
            range(0, arena.shape[0] - rows + 1, rows),
        )
        return (
            [*others, arena[row : row + rows, column : column + columns]]
            for column, row in itertools.cycle(places)
        )

    def _before(self, arrays: list[Array]) -> Callable[[], None] | None:
        """Return the untimed preparation of each call."""
        if not self.between and self.original is None:
            return None

        def prepare() -> None:
            if self.between:
                self.probe.call("gemm", *self.between)
            if self.original is not None:
                part = self.original[tuple(map(slice, arrays[0].shape))]
                self.probe.device.copy(arrays[0], part, Queue.PANEL)

        return prepare

    def samples(self, sizes: Sizes) -> list[float]:
        """Return the seconds of one call, several times; of a long one, once."""
        arrays = self.arrays(sizes)
        before, turns = self._before(arrays), self.rotated_arguments(arrays)

        def call() -> None:
            self.probe.call(self.kind, *next(turns))

        sample = self._by_host if self.watch is None else self._by_device
        once = sample(call, before, math.inf)
        if once > _PATIENCE:
            return [once]
        began = time.perf_counter()
        taken = [sample(call, before, once)]
        while len(taken) < _MOST and time.perf_counter() - began < _PATIENCE:
            taken.append(sample(call, before, once))
        return taken

    def _by_host(
        self, call: Callable[[], None], before: Callable[[], None] | None, expected: float
    ) -> float:
        """Return the seconds of a call by the host's clock; short calls are repeated."""
        interpreted = self.kind in _INTERPRETED
        clock = time.perf_counter if interpreted else self.probe.clock(expected)
        repeats = 1 if before else max(min(int(_SAMPLE / expected), 100), 1)
        return self.probe.sample(call, repeats, before, clock)

    def _by_device(
        self, call: Callable[[], None], before: Callable[[], None] | None, expected: float
    ) -> float:
        """Return the seconds of one call by the device's clock."""
        assert self.watch is not None
        assert before is not None
        before()
        begin = self.watch.mark(Queue.PANEL)
        call()
        end = self.watch.mark(Queue.PANEL)
        self.probe.device.synchronize()
        return max(self.watch.between(begin, end), 1e-9)
