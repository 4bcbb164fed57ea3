"""How the entries of rows are shown in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_la.studies.common.study import Show
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds, in_units

#: What `spread` returns, but for the number of samples.
SECONDS: Mapping[str, Show] = {"seconds": in_seconds, "least": in_seconds, "most": in_seconds}
WORD: Show = str
BYTES: Show = in_bytes


def number(digits: int = 3) -> Show:
    """Return what shows a number to so many digits; whole ones completely.

    Examples
    --------
    >>> number()(3.14159), number()(65536), number(2)(0.0123)
    ('3.14', '65536', '0.012')
    """
    return lambda value: str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def percent(value: float) -> str:
    """Return a fraction in percent.

    Examples
    --------
    >>> percent(0.875)
    '88 %'
    """
    return f"{100 * value:.0f} %"


def signed(gain: float) -> str:
    """Return a fraction that is gained or lost, in percent.

    Examples
    --------
    >>> signed(0.0125), signed(-0.5)
    ('+1.2 %', '-50.0 %')
    """
    return f"{100 * gain:+.1f} %"


def rate(unit: str) -> Show:
    """Return what shows a quantity in its unit.

    Examples
    --------
    >>> rate("B/s")(3.35e12)
    '3.35 TB/s'
    """

    def shown(value: Any) -> str:
        return in_units(value, unit)

    return shown
