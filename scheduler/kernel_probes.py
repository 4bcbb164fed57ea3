"""Measures kernels over grids of their sizes, on all workers of a kind at once.

CPU workers share caches, memory and the clock that many busy cores get, so each is
measured while the others do the same.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from hetero_la.scheduler.kernel_grids import Axes
from hetero_la.scheduler.probes import Probe
from hetero_la.scheduler.rates import MEASURABLE, KernelRates, RateTable, Sizes
from hetero_la.tiles.kernels.spec import Array, Queue

#: Arrays that are filled anew before each call, as they are overwritten by other numbers.
_REFILLED = frozenset({"getrf", "geqrf", "potrf"})
#: Arrays of indices, by kernel and place.
_INDICES = {
    "getrf": (1, 2), "potrf": (1,), "geqrf": (4,), "netperm": (0, 1), "compose": (0, 1),
    "swap": (0, 1), "laswp": (0,),
}  # fmt: skip
#: Diagonals, likewise: triangles have to be well conditioned, and panels to need swaps.
_DIAGONALS = {
    "trmm": {0: 1.0, 1: 1.0}, "trmm_rc": {0: 1.0, 1: 1.0}, "trsm": {0: 1.0},
    "trtri": {0: 1.0}, "trtri_n": {0: 1.0}, "potrf": {0: 1.0}, "getrf": {0: 0.0},
    "geqrf": {0: 0.0},
}  # fmt: skip

#: Kernels whose last array is a column of the trailing matrix.
_UPDATES = frozenset({"gemm", "herk", "larfb_c", "trmm", "trmm_rc", "trsm", "swap", "laswp"})
#: Bytes that no cache holds.
_COLD = 2**26

#: Kernels that go back to the interpreter for every column, and on a CPU wait for its lock.
_INTERPRETED = frozenset({"laswp", "lacpy"})

#: Of one point: samples at least and at most, and seconds after which no more are taken.
_LEAST, _MOST, _PATIENCE = 3, 7, 0.06
#: A sample of repeated calls takes this long, in seconds, so that the clock's ticks are small.
_SAMPLE = 1e-3
#: Seconds within which every worker has to come to the next point.
_MEETING = 120.0


class KernelCase:
    """One kernel on one device: memory for its largest sizes, of which each call takes a part.

    In a run, an update comes back to a column after all others: its data are in no cache.  So
    the array that is updated is one of many in turn.
    """

    def __init__(self, probe: Probe, kind: str, axes: Axes) -> None:
        self.probe, self.kind, self.shapes = probe, kind, MEASURABLE[kind].shapes
        largest = self.shapes(*(axis[-1] for axis in axes))
        self.last = len(largest) - 1
        self.arenas = [self._arena(place, shape) for place, shape in enumerate(largest)]
        self.original = self._arena(0, largest[0]) if kind in _REFILLED else None

    def _arena(self, place: int, shape: tuple[int, ...]) -> Array | None:
        if place in _INDICES.get(self.kind, ()) or len(shape) == 1:
            return None  # of the very size of the call
        rows, columns = shape
        if (diagonal := _DIAGONALS.get(self.kind, {}).get(place)) is not None:
            return self.probe.array(rows, columns, diagonal)
        if self.kind in _UPDATES and place == self.last:
            columns = max(columns, _COLD // (rows * self.probe.dtype.itemsize))
        # Reflectors near the identity: applied again and again, they make nothing grow.
        scale = 1.0 / rows if self.kind == "larfb_c" and place < 2 else 1.0
        return self.probe.array(rows, columns, scale=scale)

    def arrays(self, sizes: Sizes) -> list[Array]:
        """What the kernel is called with."""
        found = []
        for place, (arena, shape) in enumerate(zip(self.arenas, self.shapes(*sizes), strict=True)):
            if arena is not None:
                found.append(arena[tuple(map(slice, shape))])
            elif place in _INDICES.get(self.kind, ()):
                found.append(self.probe.integers(self._indices(place, shape, sizes)))
            else:
                found.append(self.probe.device.empty(shape, self.probe.dtype))
        if self.kind == "swap":
            self.probe.call("netperm", *found[:2])
        return found

    def turns(self, arrays: list[Array]) -> Iterator[list[Array]]:
        """The same with one updated array after the other, for ever."""
        *others, last = arrays
        if self.kind not in _UPDATES:
            return itertools.cycle([arrays])
        (rows, columns), arena = last.shape, self.arenas[-1]
        assert arena is not None
        return itertools.cycle(
            [
                [*others, arena[row : row + rows, column : column + columns]]
                for column in range(0, arena.shape[1] - columns + 1, columns)
                for row in range(0, arena.shape[0] - rows + 1, rows)
            ]
        )

    def _indices(self, place: int, shape: tuple[int, ...], sizes: Sizes) -> np.ndarray:
        """Swaps as a panel of random numbers has them, or a permutation."""
        if self.kind == "laswp":
            return self.probe.rng.permutation(shape[0])
        rows = {"swap": sizes[1:2], "compose": sizes[1:2], "netperm": (16 * sizes[0],)}
        if place or self.kind not in rows:
            return np.zeros(shape)
        first = np.arange(shape[0])
        return first + (self.probe.rng.random(shape[0]) * (rows[self.kind][0] - first)).astype(int)

    def samples(self, sizes: Sizes) -> list[float]:
        """Seconds of one call, several times."""
        arrays = self.arrays(sizes)
        before: Callable[[], None] | None = None
        if self.original is not None:
            part = self.original[tuple(map(slice, arrays[0].shape))]
            before = functools.partial(self.probe.device.copy, arrays[0], part, Queue.PANEL)
        turns = self.turns(arrays)

        def call() -> None:
            self.probe.call(self.kind, *next(turns))

        once = self.probe.sample(call, before=before)  # it warms up, too
        repeats = 1 if before else max(min(int(_SAMPLE / once), 100), 1)
        clock = time.perf_counter if self.kind in _INTERPRETED else self.probe.clock(once)
        taken: list[float] = []
        began = time.perf_counter()
        while len(taken) < _LEAST or (
            len(taken) < _MOST and time.perf_counter() - began < _PATIENCE
        ):
            taken.append(self.probe.sample(call, repeats, before, clock))
        return taken


def measure_kernels(
    probes: Sequence[Probe],
    wanted: Mapping[str, Axes],
    told: Callable[[str], None] = lambda kind: None,
) -> KernelRates:
    """Measure kernels on several devices of a kind at once.

    Parameters
    ----------
    probes : sequence of Probe
        One for each device.
    wanted : mapping of str to tuple
        Kernels, and the sizes to measure them at.
    told : callable, optional
        Called with each kernel's name before it is measured.
    """
    tables = []
    for kind, axes in wanted.items():
        told(kind)
        make = functools.partial(KernelCase, kind=kind, axes=axes)
        found = side_by_side(probes, make, KernelCase.samples, RateTable.grid(axes))
        tables.append(_table(kind, axes, found))
    return KernelRates(tuple(tables))


def side_by_side(
    probes: Sequence[Probe],
    make: Callable[[Probe], Any],
    measure: Callable[[Any, Any], list[float]],
    points: Sequence[Any],
) -> list[list[float]]:
    """Samples of all devices at each of several points, which they come to together.

    Parameters
    ----------
    probes : sequence of Probe
        One for each device.
    make : callable
        Prepares the measurement on one of them.
    measure : callable
        Given what was prepared and a point, returns samples.
    points : sequence
        What `measure` is called with.

    Raises
    ------
    TimeoutError
        If one of them does not come to the next point within minutes.
    """
    meeting = threading.Barrier(len(probes), timeout=_MEETING)

    def work(probe: Probe) -> list[list[float]]:
        found = []
        try:
            with probe.device.activate():
                prepared = make(probe)
                for point in points:
                    meeting.wait()
                    found.append(measure(prepared, point))
        except BaseException:
            meeting.abort()
            raise
        return found

    with ThreadPoolExecutor(len(probes), thread_name_prefix="probe") as pool:
        futures = [pool.submit(work, probe) for probe in probes]
        try:
            wait(futures)
        except BaseException:  # Ctrl-C
            meeting.abort()
            raise
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        # The first real error counts, not that of those who waited for it.
        real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
        raise real[0] if real else TimeoutError(f"a device took longer than {_MEETING:.0f} s")
    results = [future.result() for future in futures]
    return [list(itertools.chain(*samples)) for samples in zip(*results, strict=True)]


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """The median, and the distance of the quartiles over it.

    Examples
    --------
    >>> median_and_spread([1.0, 2.0, 3.0, 4.0, 5.0])
    (3.0, 0.6667)
    """
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, round((high - low) / middle, 4)


def _table(kind: str, axes: Axes, found: list[list[float]]) -> RateTable:
    seconds, spreads = zip(*map(median_and_spread, found), strict=True)
    return RateTable(kind, axes, seconds, spreads)
