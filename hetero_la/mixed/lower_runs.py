"""Options of runs in the lower precision, and of those that follow where it fails."""

from __future__ import annotations

from typing import Any

from hetero_la.execution.resident_factors import Residency
from hetero_la.mixed.precision import lower_dtype
from hetero_la.mixed.prediction import split_products
from hetero_la.tiles.arrays.transfer import device_index

#: How a copy is factored that nobody else has: factors that GPUs of this process have computed stay
#: with them, where they solve.
LOWER_RUN: dict[str, Any] = {"overwrite_a": True, "residency": Residency.WORKERS}
#: And how it is where the caller gets the factors.
LOWER_FACTORS: dict[str, Any] = {**LOWER_RUN, "residency": Residency.BOTH}


def with_lower_products(routine: str, a: Any, how: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run on the lower copy of A: with products from parts, if faster.

    Examples
    --------
    >>> import numpy as np
    >>> with_lower_products("lu", np.eye(3), {"nb": 2})
    {'nb': 2}
    """
    if how.get("products") is not None or how.get("client") is not None:
        return how
    chosen = split_products(routine, a.shape, lower_dtype(a.dtype), device_index(a))
    return how if chosen is None else {**how, **chosen}


def full_products(how: dict[str, Any]) -> dict[str, Any]:
    """Return what takes the place of products from parts in a run in full precision.

    Examples
    --------
    >>> full_products({"products": "split"}), full_products({"nb": 2})
    ({'products': None}, {})
    """
    return {"products": None} if how.get("products") == "split" else {}
