"""Kernel times measured on grids of sizes, and interpolation between them.

A table holds the times of one kernel over a grid of sizes.  Between the grid's points its rate
(work per second) is interpolated, linearly in the logarithms of the sizes; beyond the grid, the
rate at its edge holds.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hetero_la.tiles.kernels.spec import SPECS

Shapes = Sequence[tuple[int, ...]]
Sizes = tuple[int, ...]


class Measurable(NamedTuple):
    """Sizes, array shapes and work of a kernel that is measured over its sizes.

    Attributes
    ----------
    names : tuple of str
        Names of the sizes: m, n and k of a product, r rows, c columns, order w of a tile.
    shapes : callable
        Maps the sizes to the shapes of the kernel's arrays.
    sizes : callable
        Maps the shapes of its arrays, or of those of a kernel like it, to the sizes.
    work : callable or None, optional
        Maps the sizes to the work to which the time is taken as proportional; None: flops.
    """

    names: tuple[str, ...]
    shapes: Callable[..., list[tuple[int, ...]]]
    sizes: Callable[[Shapes], Sizes]
    work: Callable[..., float] | None = None


#: The kernels that are measured, by name.
MEASURABLE = {
    "gemm": Measurable(
        ("m", "k", "n"), lambda m, k, n: [(m, k), (k, n), (m, n)], lambda s: (*s[0], s[1][1])
    ),
    "herk": Measurable(("k", "w"), lambda k, w: [(w, k), (w, w)], lambda s: (s[0][1], s[1][1])),
    "larfb_c": Measurable(
        ("m", "k", "n"), lambda m, k, n: [(m, k), (k, k), (m, n)],
        lambda s: (s[0][0], s[1][0], s[2][1]),
    ),
    "trmm": Measurable(("w", "c"), lambda w, c: [(w, w), (w, w), (w, c)], lambda s: s[2]),
    "trmm_rc": Measurable(
        ("w", "r"), lambda w, r: [(w, w), (w, w), (r, w)], lambda s: (s[2][1], s[2][0])
    ),
    "trsm": Measurable(
        ("w", "c"), lambda w, c: [(w, w), (w, c)], lambda s: (min(s[0]), s[1][1])
    ),
    "getrf": Measurable(("r", "w"), lambda r, w: [(r, w), (w,), (1,)], lambda s: s[0]),
    "geqrf": Measurable(
        ("r", "w"), lambda r, w: [(r, w), (w,), (w, w), (w, w), (1,)], lambda s: s[0]
    ),
    "potrf": Measurable(("w",), lambda w: [(w, w), (1,)], lambda s: s[0][:1]),
    "trtri": Measurable(("w",), lambda w: [(w, w), (w, w)], lambda s: s[1][:1]),
    "trtri_n": Measurable(("w",), lambda w: [(w, w), (w, w)], lambda s: s[1][:1]),
    "netperm": Measurable(("w",), lambda w: [(w,), (2, 2 * w)], lambda s: s[0], lambda w: w),
    "compose": Measurable(
        ("w", "r"), lambda w, r: [(w,), (r,)], lambda s: (s[0][0], s[-1][0]), lambda w, r: w
    ),
    "swap": Measurable(
        ("w", "r", "c"), lambda w, r, c: [(w,), (2, 2 * w), (r, c)],
        lambda s: (s[0][0], *s[2]), lambda w, r, c: w * c,
    ),
    "laswp": Measurable(
        ("r", "c"), lambda r, c: [(r,), (r, c)], lambda s: (s[0][0], s[1][1]), lambda r, c: r * c
    ),
    "lacpy": Measurable(("w",), lambda w: [(w, w), (w, w)], lambda s: s[0][:1], lambda w: w * w),
}  # fmt: skip


def _product_sizes(kind: str, shapes: Shapes) -> Sizes:
    """Return m, k, n of a matrix product in any of its forms."""
    (a, b), (c, d) = shapes[0], shapes[1]
    return (b, a, d) if kind == "gemm_cn" else (a, b, c if kind == "gemm_nc" else d)


def work(kind: str, sizes: Sizes) -> float:
    """Return the work of a measurable kernel, to which its time is taken as proportional."""
    known = MEASURABLE[kind]
    return known.work(*sizes) if known.work else SPECS[kind].flops(known.shapes(*sizes))


@dataclass(frozen=True)
class RateTable:
    """Measured times of one kernel over a grid of sizes.

    Attributes
    ----------
    kind : str
        A key of `MEASURABLE`.
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

    def __post_init__(self) -> None:
        points = math.prod(len(axis) for axis in self.axes)
        names = MEASURABLE[self.kind].names if self.kind in MEASURABLE else ()
        if len(self.axes) != len(names) or not points == len(self.seconds) == len(self.spreads):
            raise ValueError(
                f"a table of {self.kind} needs a time and a spread for each point of its grid "
                f"({points} for {len(self.axes)} sizes), not {len(self.seconds)}"
            )
        if any(list(axis) != sorted(set(axis)) or axis[0] < 1 for axis in self.axes):
            raise ValueError(f"the sizes of {self.kind} must be positive and ascending")
        if not all(0 < second < math.inf for second in self.seconds):
            raise ValueError(f"the times of {self.kind} must be positive")

    @staticmethod
    def grid(axes: Sequence[Sizes]) -> list[Sizes]:
        """Return all points of a grid, in the order of `seconds`."""
        return list(itertools.product(*axes))

    def points(self) -> list[Sizes]:
        """Return the points of the table's grid."""
        return self.grid(self.axes)

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

    @functools.cached_property
    def by_kind(self) -> dict[str, RateTable]:
        """Tables by kernel name."""
        return {table.kind: table for table in self.tables}

    def estimate(self, kind: str, shapes: Shapes) -> float | None:
        """Return the seconds of a kernel in the measured type; None if it was not measured."""
        if kind == "herk":
            return self._herk(shapes)
        table = self.by_kind.get(SPECS[kind].timed_as)
        if table is None:
            return None
        if table.kind == "gemm":
            return table.estimate(_product_sizes(kind, shapes))
        return table.estimate(MEASURABLE[table.kind].sizes(shapes))

    def _herk(self, shapes: Shapes) -> float | None:
        """Return the seconds of herk: of its triangle and of the product below it."""
        triangle, product = self.by_kind.get("herk"), self.by_kind.get("gemm")
        if triangle is None or product is None:
            return None
        (m, k), (_, n) = shapes
        return triangle.estimate((k, n)) + product.estimate((m - n, k, n))


NO_RATES = KernelRates()  #: of a device that was not measured over its kernels' sizes
