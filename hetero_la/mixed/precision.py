"""The argument `precision`, and the lower precision of each type."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Keyed by dtypes: NumPy takes a microsecond to make a name of one.
_LOWER = {np.dtype(full): np.dtype(low) for full, low in [("f8", "f4"), ("c16", "c8")]}


def is_mixed(precision: Any) -> bool:
    """Return whether `precision` is "mixed"; raise ValueError for an unknown value.

    Examples
    --------
    >>> is_mixed("mixed"), is_mixed("full")
    (True, False)
    """
    if not isinstance(precision, str) or precision not in ("full", "mixed"):
        raise ValueError(f"precision must be 'full' or 'mixed', not {precision!r}")
    return precision == "mixed"


def require_lower(dtype: Any) -> None:
    """Raise ValueError for a type that has no lower precision.

    Examples
    --------
    >>> require_lower(np.float32)
    Traceback (most recent call last):
        ...
    ValueError: precision='mixed' is for float64 and complex128: float32 has no lower precision
    """
    if np.dtype(dtype) not in _LOWER:
        raise ValueError(
            f"precision='mixed' is for float64 and complex128: {np.dtype(dtype).name} "
            "has no lower precision"
        )


def lower_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the type in which matrices of a type are factored.

    Examples
    --------
    >>> lower_dtype("complex128")
    dtype('complex64')
    """
    return _LOWER[np.dtype(dtype)]


def require_solvable(a: Any) -> None:
    """Raise ValueError for a matrix that is not square, with which nothing can be refined."""
    if a.shape[0] != a.shape[1]:
        raise ValueError(
            "precision='mixed' is for square matrices, whose solutions are refined, "
            f"not for one of shape {a.shape}"
        )


def refuse_stack(precision: Any) -> None:
    """Raise ValueError for factors of a stack in mixed precision."""
    if is_mixed(precision):
        raise ValueError(
            "precision='mixed' is for the factors of one matrix, not of a stack, which are "
            "plain arrays and could not be refined with"
        )
