"""Distributions of numbers over many powers of ten, and their picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hetero_la.pictures.palette import GRID, MUTED, SERIES
from hetero_la.pictures.scene import Line, Rect, Scene, Text

#: Classes for a power of ten; more powers than there may be classes make these wider.
_PER_DECADE, _MOST = 4, 80
_LEFT, _TOP, _WIDTH, _HEIGHT, _APART = 60.0, 62.0, 480.0, 140.0, 84.0


@dataclass(frozen=True)
class Histogram:
    """How many numbers are in classes of equal width on a logarithmic scale.

    Attributes
    ----------
    begin, step : float
        Decimal logarithm at which the first class begins, and the width of each.
    counts : tuple of int
        Numbers in each class.
    zeros : int
        Zeros, which are in none.
    not_finite : int
        Numbers that are NaN or infinite.

    Examples
    --------
    >>> Histogram.of(np.array([0.0, 1.0, 1.5, 20.0]))
    Histogram(begin=0.0, step=0.25, counts=(2, 0, 0, 0, 0, 1), zeros=1, not_finite=0)
    """

    begin: float
    step: float
    counts: tuple[int, ...]
    zeros: int = 0
    not_finite: int = 0

    @classmethod
    def of(cls, values: Any) -> Histogram:
        """Return the distribution of the moduli of numbers."""
        moduli = np.abs(np.asarray(values, dtype=np.float64)).ravel()
        finite = moduli[np.isfinite(moduli)]
        zeros, odd = int((finite == 0).sum()), moduli.size - finite.size
        logs = np.log10(finite[finite > 0])
        if not logs.size:
            return cls(0.0, 1 / _PER_DECADE, (), zeros, odd)
        begin, end = math.floor(logs.min()), math.floor(logs.max()) + 1
        decades = -(-(end - begin) // (_MOST // _PER_DECADE))
        step = decades / _PER_DECADE
        places = np.floor((logs - begin) / step).astype(int)
        counts = tuple(np.bincount(places).tolist())
        return cls(float(begin), step, counts, zeros, odd)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as what JSON has."""
        return {**asdict(self), "counts": list(self.counts)}


def draw_histograms(title: str, shown: Sequence[tuple[str, Histogram]]) -> Scene:
    """Draw distributions below each other; raise ValueError if there is none.

    Examples
    --------
    >>> scene = draw_histograms("lu", [("pivots", Histogram(0.0, 0.25, (2, 1)))])
    >>> [shape.tip for shape in scene.shapes if isinstance(shape, Rect)]
    ['2 from 1 to 1.8', '1 from 1.8 to 3.2']
    """
    if not shown:
        raise ValueError(f"there is nothing to draw of {title}: no pivots, and no errors")
    scene = Scene(title=title)
    scene.add(Text(16, 26, title, 14, bold=True))
    for number, (label, histogram) in enumerate(shown):
        _draw(scene, label, histogram, _TOP + number * (_HEIGHT + _APART), SERIES[number])
    scene.fit()
    return scene


def _draw(scene: Scene, label: str, histogram: Histogram, top: float, colour: str) -> None:
    """Draw one distribution: bars, an axis of powers of ten, and what is in no class."""
    counts, bottom = histogram.counts, top + _HEIGHT
    others = ((histogram.zeros, "zeros"), (histogram.not_finite, "not finite"))
    beside = "".join(f"; {count} {what}" for count, what in others if count)
    scene.add(Text(_LEFT, top - 8, f"{label}, {sum(counts)} of them{beside}", 12))
    most, width = max(counts, default=1), _WIDTH / max(len(counts), 1)
    for share in (0.5, 1.0):
        y = bottom - share * _HEIGHT
        scene.add(Line(((_LEFT, y), (_LEFT + _WIDTH, y)), GRID))
        scene.add(Text(_LEFT - 6, y + 4, f"{share * most:g}", 10, "end", MUTED))
    for place, count in enumerate(counts):
        low, high = (10 ** (histogram.begin + (place + at) * histogram.step) for at in (0, 1))
        height, tip = count / most * _HEIGHT, f"{count} from {low:.2g} to {high:.2g}"
        if count:
            x = _LEFT + place * width
            scene.add(Rect(x + 0.5, bottom - height, max(width - 1, 1), height, colour, tip=tip))
    scene.add(Line(((_LEFT, bottom), (_LEFT + _WIDTH, bottom)), MUTED))
    _draw_powers(scene, histogram, bottom, width)


def _draw_powers(scene: Scene, histogram: Histogram, bottom: float, width: float) -> None:
    """Write powers of ten below the axis, at most about ten."""
    end = histogram.begin + len(histogram.counts) * histogram.step
    every = max(math.ceil((end - histogram.begin) / 10), 1)
    for power in range(math.ceil(histogram.begin), math.floor(end) + 1, every):
        x = _LEFT + (power - histogram.begin) / histogram.step * width
        scene.add(Line(((x, bottom), (x, bottom + 4)), MUTED))
        scene.add(Text(x, bottom + 17, f"1e{power}", 10, "middle", MUTED))
