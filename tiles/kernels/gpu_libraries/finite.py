"""Tests for NaN and infinity, on the host and on GPUs."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.arrays.transfer import Array, is_device_array, on_device_of
from hetero_la.tiles.kernels.gpu_libraries.norms import holds_not_finite

#: Elements up to which each is tested, which is faster than a sum but takes a mask.
_FEW = 1 << 18


def is_finite(a: Array) -> bool:
    """Return whether `a` holds neither NaN nor infinity."""
    if is_device_array(a):
        with on_device_of(a):
            if a.dtype.char == "e":  # half precision
                a = a.astype(np.float32)
            return a.dtype.kind not in "fc" or not holds_not_finite(a)
    if a.size <= _FEW:
        return bool(np.isfinite(a).all())
    with np.errstate(all="ignore"):
        # One pass without a temporary; each element is tested only if the sum is not finite.
        return bool(np.isfinite(a.sum()) or np.isfinite(a).all())


def require_finite(a: Array, name: str) -> None:
    """Raise ValueError if `a` holds a NaN or an infinity."""
    if not is_finite(a):
        raise ValueError(f"{name}: array must not contain infs or NaNs")
