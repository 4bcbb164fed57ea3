"""Tests for NaN and infinity."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.arrays.transfer import (
    Array,
    array_module,
    is_device_array,
    on_device_of,
    to_host,
)

#: Elements up to which each is tested, which is faster than a sum but takes a mask.
_FEW = 1 << 18


def is_finite(a: Array) -> bool:
    """Return whether `a` holds neither NaN nor infinity."""
    if a.size <= _FEW and not is_device_array(a):
        return bool(np.isfinite(a).all())
    xp = array_module(a)
    with on_device_of(a), np.errstate(all="ignore"):
        if is_device_array(a):  # in the order of memory, which CuPy sums many times as fast
            a = a.transpose(np.argsort([-stride for stride in a.strides]).tolist())
        # One pass without a temporary; each element is tested only if the sum is not finite.
        return bool(np.isfinite(to_host(a.sum())) or xp.isfinite(a).all())


def require_finite(a: Array, name: str) -> None:
    """Raise ValueError if `a` holds a NaN or an infinity."""
    if not is_finite(a):
        raise ValueError(f"{name}: array must not contain infs or NaNs")
