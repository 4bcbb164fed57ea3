"""Cases of kernels to measure: grids of sizes, and calls on a device as in a run."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np

from hetero_la.scheduler.machine.rate_tables import Sizes, case_shapes, measurable, size_names
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.tiles.kernels.device import Array, Queue
from hetero_la.tiles.kernels.spec import INTEGERS, SPECS, Role

Axes = tuple[Sizes, ...]

#: Values at which each size of a kernel is measured, by kind of device: the order of a tile that is
#: its only size; sizes as `SIZES` names them; and those that are others for kernels of a role.
_GRIDS: dict[str, dict[str, Sizes]] = {
    "cpu": {
        "order": (32, 64, 128, 192, 256, 384, 512),
        "m": (64, 256, 1024, 4096),
        "k": (32, 64, 128, 192, 256, 384, 512),
        "n": (64, 128, 256, 512, 2048),
        "r": (64, 256, 1024, 4096),
        "w": (32, 64, 128, 192, 256, 384, 512),
        "c": (1, 64, 192, 512, 2048),
        "UPDATE w": (64, 128, 256, 512, 2048),
        "PANEL r": (512, 1024, 2048, 4096, 8192),
        "PANEL w": (32, 64, 128, 192, 256, 384, 512),
        "EXCHANGE w": (128, 256, 512),
        "EXCHANGE r": (512, 2048, 8192),
        "EXCHANGE c": (192, 2048),
    },
    "gpu": {
        "order": (64, 128, 256, 512, 1024, 2048, 4096),
        "m": (256, 1024, 4096, 16384, 32768),
        "k": (128, 256, 512, 1024),
        "n": (256, 1024, 4096, 16384),
        "r": (256, 1024, 4096, 16384, 32768),
        "w": (128, 256, 512, 1024),
        "c": (1, 256, 1024, 4096, 16384),
        "UPDATE w": (256, 1024, 4096, 16384),
        "PANEL r": (1024, 4096, 8192, 16384, 32768, 65536),
        "PANEL w": (64, 128, 256, 512, 1024),
        "EXCHANGE r": (1024, 8192, 32768),
        "EXCHANGE c": (256, 2048, 16384),
    },
}


def _axes(grid: dict[str, Sizes], kind: str) -> Axes:
    names, role = size_names(kind), SPECS[kind].role.name
    if names == ("w",):
        return (grid["order"],)
    return tuple(grid.get(f"{role} {name}", grid[name]) for name in names)


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
    for name in measurable():
        axes = _axes(_GRIDS[kind], name)
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
    largest = case_shapes(name, tuple(axis[-1] for axis in axes))
    return 2 * itemsize * sum(math.prod(shape) for shape in largest)  # panels are kept twice


#: Roles of kernels whose first array is restored before each call: they overwrite it, or in a run
#: read it from the caches, where the kernel before has left it.
_REFILLED = (Role.PANEL, Role.INVERSE)
#: Roles of kernels that update columns of the trailing matrix, which are in no cache any more.
_COLUMNS = (Role.UPDATE, Role.SOLVE, Role.EXCHANGE)
#: Least number of rows of the matrix of which a tile is a part, whose leading dimension it has.
_HEIGHT = 2048
#: More bytes than a cache holds.
_COLD = 2**26
#: m, k and n of the product before each call: on a CPU it evicts the caches, on a GPU it keeps the
#: device busy until the host has enqueued the call.
_BETWEEN = {"cpu": (2048, 64, 512), "gpu": (4096, 512, 4096)}
#: Most samples of one point, and seconds after which no more are taken.
_MOST, _PATIENCE = 3, 0.02
#: Seconds of a sample of repeated calls, long against the clock's resolution.
_SAMPLE = 1e-3


class KernelArrays:
    """Memory for a kernel's largest sizes on one device; each call uses a part of it."""

    def __init__(self, probe: Probe, kind: str, axes: Axes) -> None:
        self.probe, self.kind, self.spec = probe, kind, SPECS[kind]
        self.cold = self.spec.role in _COLUMNS and not self.spec.warm
        largest = case_shapes(kind, tuple(axis[-1] for axis in axes))
        self.largest = dict(zip(self.spec.extents, largest, strict=True))
        self.arenas = {name: self._arena(name, shape) for name, shape in self.largest.items()}

    def _arena(self, name: str, shape: tuple[int, ...]) -> Array | None:
        if name in INTEGERS or len(shape) == 1:
            return None  # allocated for each size: it has exactly the size of the call
        rows, columns = shape
        if name == "A" and self.spec.extents[name] == ("w", "w"):
            rows = max(rows, _HEIGHT)
        if (diagonal := self._diagonal(name)) is not None:
            return self.probe.array(rows, columns, diagonal)
        if self.cold and name in self.spec.arrays.updates:
            columns = max(columns, _COLD // (rows * self.probe.dtype.itemsize))
        # Reflectors near the identity: applied repeatedly, they do not let the matrix grow.
        return self.probe.array(rows, columns, scale=1.0 / rows if name in ("V", "T") else 1.0)

    def _diagonal(self, name: str) -> float | None:
        """Return the diagonal that well-conditioned triangles, and panels that need swaps, have."""
        role, arrays = self.spec.role, self.spec.arrays
        if role is Role.PANEL and name in arrays.updates:
            return float(self.spec.dominant)
        return 1.0 if role in (Role.SOLVE, Role.INVERSE) and name in arrays.reads else None

    def arrays(self, sizes: Sizes) -> list[Array]:
        """Return the arguments for these sizes."""
        found = {}
        for name, shape in zip(self.spec.extents, case_shapes(self.kind, sizes), strict=True):
            arena = self.arenas[name]
            if arena is not None:
                found[name] = arena[tuple(map(slice, shape))]
            elif name in INTEGERS:
                found[name] = self.probe.integers(self._indices(name, shape, sizes))
            else:
                found[name] = self.probe.device.empty(shape, self.probe.dtype)
        if "net" in self.spec.arrays.reads:
            self.probe.call("netperm", found["ipiv"], found["net"])
        return list(found.values())

    def _indices(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> np.ndarray:
        """Return swaps as a panel of random numbers has them, or a permutation."""
        if name not in self.spec.arrays.reads or name == "net":
            return np.zeros(shape)
        if name == "perm":
            return self.probe.rng.permutation(shape[0])
        rows = dict(zip(size_names(self.kind), sizes, strict=True)).get("r", 16 * shape[0])
        first = np.arange(shape[0])
        return first + (self.probe.rng.random(shape[0]) * (rows - first)).astype(int)


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
        refilled = self.spec.role in _REFILLED
        self.original = self._arena(*next(iter(self.largest.items()))) if refilled else None
        self.watch = probe.device.stopwatch()
        m, k, n = _BETWEEN[probe.kind]
        undisturbed = self.watch is None and self.spec.role is Role.UPDATE
        shapes = [] if undisturbed else [(m, k), (k, n), (m, n)]
        self.between = [probe.array(*shape) for shape in shapes]

    def rotated_arguments(self, arrays: list[Array]) -> Iterator[list[Array]]:
        """Yield the arguments for ever, each time with another array to update."""
        *others, last = arrays
        arena = self.arenas[list(self.arenas)[-1]]
        if arena is None or not self.cold:
            return itertools.cycle([arrays])
        rows, columns = last.shape
        places = itertools.product(
            range(0, arena.shape[1] - columns + 1, columns),
            range(0, arena.shape[0] - rows + 1, rows),
        )
        return (
            [*others, arena[row : row + rows, column : column + columns]]
            for column, row in itertools.cycle(places)
        )

    def _prepare(self, first: Array) -> None:
        """Do what comes before a call, untimed."""
        if self.between:
            self.probe.call("gemm", *self.between)
        if self.original is not None:
            part = self.original[tuple(map(slice, first.shape))]
            self.probe.device.copy(first, part, Queue.PANEL)

    def samples(self, sizes: Sizes) -> list[float]:
        """Return the seconds of one call, several times; of a long one, once."""
        arrays = self.arrays(sizes)
        prepared = self.between or self.original is not None
        before = functools.partial(self._prepare, arrays[0]) if prepared else None
        turns = self.rotated_arguments(arrays)

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
        clock = time.perf_counter if self.spec.columnwise else self.probe.clock(expected)
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
