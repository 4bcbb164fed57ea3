"""Matrices near the ends of their type's range, scaled as LAPACK's drivers do."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np


def scaling_exponent(a: Any) -> int:
    """Power of two by which `a` has to be multiplied before it is squared and divided by.

    Parameters
    ----------
    a : array
        Of float32, float64, complex64 or complex128, on any device.

    Returns
    -------
    int
        0, unless the largest entry is beyond the bounds of LAPACK's xGELS; then what brings
        it near 1.

    Examples
    --------
    >>> [scaling_exponent(np.array([largest, 0.0])) for largest in (3.0, 1e300, 1e-310)]
    [0, -997, 1029]
    """
    info = np.finfo(a.dtype)
    ends = [(float(p.max()), -float(p.min())) for p in _parts(a) if p.size]
    largest = max(itertools.chain(*ends), default=0.0)
    least = float(info.tiny) / float(info.eps)
    if least <= largest <= 1 / least or not 0 < largest < math.inf:
        return 0
    return -math.frexp(largest)[1]


def times_power_of_two(a: Any, exponent: int) -> Any:
    """`a` times 2**exponent, which need not be in the range itself; `a` itself for 0.

    Examples
    --------
    >>> times_power_of_two(np.array([1e-310]), 1029).round(3)
    array([0.575])
    """
    if not exponent:
        return a
    scaled, most = a.copy(order="F"), np.finfo(a.dtype).maxexp - 2
    with np.errstate(over="ignore", under="ignore"):  # infinity is an answer
        while exponent:
            step = max(-most, min(most, exponent))
            for part in _parts(scaled):
                part *= 2.0**step
            exponent -= step
    return scaled


def _parts(a: Any) -> list[Any]:
    """Real and imaginary part: a product of complex numbers turns infinity into NaN."""
    return [a] if a.dtype.kind == "f" else [a.real, a.imag]
