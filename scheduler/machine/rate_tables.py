"""Kernel times measured on grids of sizes, and interpolation between them.

A table holds the times of one kernel over a grid of sizes.  Between the grid's points its rate
(work per second) is interpolated, linearly in the logarithms of the sizes; beyond the grid, the
rate at its edge holds.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.kernels.spec import SPECS, Shapes

Sizes = tuple[int, ...]


def measurable() -> list[str]:
    """Return the names of the kernels that are measured over their sizes."""
    return [name for name, spec in SPECS.items() if spec.measured]


def size_names(kind: str) -> tuple[str, ...]:
    """Return the names of the sizes over which a kernel is measured.

    A trapezoid is a triangle, of order w, and a product below it, which is measured as such.
    """
    spec = SPECS[kind]
    return ("k", "w") if spec.trapezoid else spec.size_names


def _by_name(kind: str, sizes: Sizes) -> Mapping[str, int]:
    named = dict(zip(size_names(kind), sizes, strict=True))
    return {"k": named["k"], "m": named["w"], "n": named["w"]} if SPECS[kind].trapezoid else named


def case_shapes(kind: str, sizes: Sizes) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays of a measured kernel."""
    return SPECS[kind].shapes(_by_name(kind, sizes))


def work(kind: str, sizes: Sizes) -> float:
    """Return the work of a measured kernel, to which its time is taken as proportional."""
    return SPECS[kind].work(_by_name(kind, sizes))


@dataclass(frozen=True, repr=False)
class RateTable:
    """Measured times of one kernel over a grid of sizes.

    Attributes
    ----------
    kind : str
        Name of a kernel that is measured.
    axes : tuple of tuple of int
        For each of its sizes, the values measured, ascending.
    seconds : tuple of float
        Median times at the points of the grid; the last size varies fastest.
    spreads : tuple of float
        For each of them, the interquartile range over the median.

    Examples
    --------
    >>> table = RateTable("potrf", ((100, 200),), (1e-4, 4e-4), (0.0, 0.0))
    >>> f"{1e4 * table.estimate((200,)):.2f} {1e4 * table.estimate((141,)):.2f}"
    '4.00 1.99'
    """

    kind: str
    axes: tuple[Sizes, ...]
    seconds: tuple[float, ...]
    spreads: tuple[float, ...]

    def __repr__(self) -> str:
        return one_line("RateTable", self.kind, counted(len(self.seconds), "point"))

    def __post_init__(self) -> None:
        points = math.prod(len(axis) for axis in self.axes)
        names = size_names(self.kind) if self.kind in measurable() else ()
        if len(self.axes) != len(names) or not points == len(self.seconds) == len(self.spreads):
            raise ValueError(
                f"a table of {self.kind} needs a time and a spread for each point of its grid "
                f"({points} for {len(self.axes)} sizes), not {len(self.seconds)}"
            )
        if any(list(axis) != sorted(set(axis)) or axis[0] < 1 for axis in self.axes):
            raise ValueError(f"the sizes of {self.kind} must be positive and ascending")
        if not all(0 < second < math.inf for second in self.seconds):
            raise ValueError(f"the times of {self.kind} must be positive")

    def points(self) -> list[Sizes]:
        """Return the points of the table's grid, in the order of `seconds`."""
        return list(itertools.product(*self.axes))

    @functools.cached_property
    def _log_rates(self) -> list[float]:
        works = (max(work(self.kind, sizes), 1.0) for sizes in self.points())
        return [math.log(w / s) for w, s in zip(works, self.seconds, strict=True)]

    @functools.cached_property
    def _log_axes(self) -> list[list[float]]:
        return [[math.log(value) for value in axis] for axis in self.axes]

    def estimate(self, sizes: Sizes) -> float:
        """Return the interpolated time for any sizes, in seconds."""
        amount = work(self.kind, sizes)
        if amount <= 0:
            return 0.0
        corners = [(0, 1.0)]
        for axis, size in zip(self._log_axes, sizes, strict=True):
            place, share = _between(axis, math.log(size))
            corners = [
                (corner * len(axis) + place + one, weight * part)
                for corner, weight in corners
                for one, part in ((0, 1 - share), (1, share))
                if part
            ]
        rates = self._log_rates
        return amount / math.exp(sum(weight * rates[corner] for corner, weight in corners))


def _between(axis: Sequence[float], value: float) -> tuple[int, float]:
    """Return the interval of `axis` that holds `value`, and the fraction along it; clamped."""
    if value <= axis[0]:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 1, 0.0
    place = bisect_right(axis, value) - 1
    return place, (value - axis[place]) / (axis[place + 1] - axis[place])


@dataclass(frozen=True)
class KernelRates:
    """Measured times of the kernels of one device.

    Attributes
    ----------
    tables : tuple of RateTable
        At most one for each kernel.
    """

    tables: tuple[RateTable, ...] = ()

    def __repr__(self) -> str:
        return one_line("KernelRates", ", ".join(table.kind for table in self.tables))

    @functools.cached_property
    def by_kind(self) -> dict[str, RateTable]:
        """Tables by kernel name."""
        return {table.kind: table for table in self.tables}

    @functools.cached_property
    def spread(self) -> float:
        """Spread of the samples of half of the kernels, relative to their medians."""
        spreads = [statistics.median(table.spreads) for table in self.tables]
        return statistics.median(spreads) if spreads else 0.0

    def estimate(self, kind: str, shapes: Shapes) -> float | None:
        """Return the seconds of a kernel in the measured type; None if it was not measured."""
        spec = SPECS[kind]
        table, product = self.by_kind.get(spec.timed_as), self.by_kind.get("gemm")
        if table is None:
            return None
        sizes = spec.sizes(shapes)
        if not spec.trapezoid:
            return table.estimate(tuple(sizes[name] for name in size_names(table.kind)))
        if product is None:
            return None
        k, n = sizes["k"], sizes["n"]
        return table.estimate((k, n)) + product.estimate((sizes["m"] - n, k, n))


NO_RATES = KernelRates()  #: of a device that was not measured over its kernels' sizes
