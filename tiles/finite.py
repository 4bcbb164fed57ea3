"""Whether all numbers of an array are numbers."""

from __future__ import annotations

import numpy as np

from hetero_la.tiles.transfer import Array, array_module, on_device_of


def require_finite(a: Array, name: str) -> None:
    """Raise ValueError if `a` holds a NaN or an infinity."""
    xp = array_module(a)
    if a.size == 0:
        return
    with on_device_of(a), np.errstate(all="ignore"):
        # One pass without a temporary; only where the sum overflows, too, look at each.
        if not xp.isfinite(a.sum()) and not xp.isfinite(a).all():
            raise ValueError(f"{name}: array must not contain infs or NaNs")
