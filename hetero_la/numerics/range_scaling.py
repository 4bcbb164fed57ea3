"""Scaling by powers of two, which is exact, of matrices near overflow or underflow."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module, is_device_array, on_device_of, to_host
from hetero_la.tiles.kernels.gpu_libraries.norms import largest_modulus


def largest_entry(a: Any) -> float:
    """Return the largest absolute value of real and imaginary parts, 0 for an empty array."""
    with on_device_of(a):  # without a temporary, as abs(a) would be
        if is_device_array(a) and a.dtype.kind == "f" and a.size:
            return float(largest_modulus(a))  # waits once
        ends = [(float(p.max()), -float(p.min())) for p in _real_parts(a) if p.size]
    return max(itertools.chain(*ends), default=0.0)


def scaling_exponent(a: Any) -> int:
    """Return the exponent of the power of two that scales `a` so that squares stay in range.

    Parameters
    ----------
    a : array
        Of float32, float64, complex64 or complex128, on any device.

    Returns
    -------
    int
        0 if the largest entry is within the bounds of LAPACK's xGELS; otherwise the exponent
        that brings it near 1.

    Examples
    --------
    >>> [scaling_exponent(np.array([largest, 0.0])) for largest in (3.0, 1e300, 1e-310)]
    [0, -997, 1029]
    """
    info = np.finfo(a.dtype)
    largest = largest_entry(a)
    least = float(info.tiny) / float(info.eps)
    if least <= largest <= 1 / least or not 0 < largest < math.inf:
        return 0
    return -math.frexp(largest)[1]


def needs_scaling(a: Any) -> Any:
    """Return for each matrix of a stack, where it is, whether `scaling_exponent` may not be 0.

    Examples
    --------
    >>> needs_scaling(np.array([[[1.0, 0.0]], [[1e300, 0.0]], [[0.0, 0.0]]]))
    array([False,  True, False])
    """
    info, largest = np.finfo(a.dtype), abs(a).max(axis=(1, 2))
    least = info.tiny / info.eps
    return ~((largest == 0) | ((largest >= least) & (largest <= 0.5 / least)))


def column_exponents(a: Any, least: float = 0) -> np.ndarray:
    """Return exponents that scale each column so that elimination has most room to grow.

    Parameters
    ----------
    a : array, shape (m, n)
        Of float32, float64, complex64 or complex128, on any device.
    least : float, optional
        Columns whose largest entry is not above it get the exponent 0.

    Returns
    -------
    array of int, shape (n,)
        Exponents that bring each column's largest entry into the lower part of the range, so
        that it may grow most; entries that underflow there are far below the column's
        rounding errors.  0 for a column that is zero or not finite.

    Examples
    --------
    >>> column_exponents(np.array([[1e300, 0.0, 0.7], [1.0, 0.0, 0.1]])).tolist()
    [-1765, 0, -768]
    """
    largest = np.zeros(a.shape[1])
    for part in _real_parts(a) if a.size else ():
        ends = to_host(part.max(axis=0)), -to_host(part.min(axis=0))
        largest = np.maximum(largest, np.maximum(*ends))
    usable = (largest > least) & np.isfinite(largest)
    low = -3 * np.finfo(a.dtype).maxexp // 4
    return np.where(usable, low - np.frexp(largest)[1], 0)


def times_power_of_two(a: Any, exponent: Any, *, overwrite: bool = False) -> Any:
    """Multiply `a` by 2**exponent, which may itself be out of range; return `a` itself for 0.

    Parameters
    ----------
    a : array
        Of float32, float64, complex64 or complex128, on any device.
    exponent : int or array of int
        One number, or one for each column.
    overwrite : bool, optional
        Whether the product takes the place of `a`.

    Examples
    --------
    >>> times_power_of_two(np.array([1e-310]), 1029).round(3)
    array([0.575])
    """
    left = np.asarray(exponent)
    if not left.any():
        return a
    xp, most = array_module(a), np.finfo(a.dtype).maxexp - 2
    scaled = a if overwrite else a.copy(order="F")
    with np.errstate(over="ignore", under="ignore"):  # infinity is a valid result
        while left.any():
            step = np.clip(left, -most, most)
            factor = xp.asarray(np.ldexp(1.0, step).astype(a.real.dtype))
            for part in _real_parts(scaled):
                part *= factor
            left = left - step
    return scaled


def _real_parts(a: Any) -> list[Any]:
    """Return the real parts of `a`: a complex product would turn infinity into NaN."""
    return [a] if a.dtype.kind == "f" else [a.real, a.imag]
