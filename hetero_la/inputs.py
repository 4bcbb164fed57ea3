"""Preconditions, checked once, before any work starts."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from hetero_la.tiles.finite import require_finite
from hetero_la.tiles.transfer import (
    array_module,
    device_index,
    is_device_array,
    on_device_of_arrays,
)

DTYPES = ("float32", "float64", "complex64", "complex128")


def as_array(a: Any, name: str, ndims: tuple[int, ...]) -> Any:
    """`a` as a NumPy or CuPy array of a LAPACK type; integers become float64.

    Raises
    ------
    ValueError
        If the dtype or the number of dimensions does not do, or for a masked array.
    """
    given = a
    refuse_masked(a)
    a = a if is_device_array(a) else np.asarray(a)
    if a.ndim == 0 and a.dtype.kind not in "biufc":  # what NumPy could not take apart
        raise ValueError(f"{name} is of type {type(given).__name__}, not a dense array of numbers")
    if a.ndim not in ndims:
        wanted = " or ".join(str(ndim) for ndim in ndims)
        raise ValueError(f"{name} must have {wanted} dimensions, not shape {a.shape}")
    return a.astype(lapack_dtype(a.dtype, name), copy=False)


def refuse_masked(a: Any) -> None:
    """Raise ValueError for a masked array, of which NumPy would drop the mask without a word."""
    if isinstance(a, np.ma.MaskedArray):
        raise ValueError("masked arrays are not supported")


@on_device_of_arrays
def as_finite_array(a: Any, name: str) -> Any:
    """`a` as an array of any number of dimensions, which holds no NaN and no infinity."""
    a = as_array(a, name, (np.ndim(a),))
    require_finite(a, name)
    return a


def lapack_dtype(given: np.dtype[Any], name: str) -> np.dtype[Any]:
    """The LAPACK type in which an array of dtype `given` is worked on."""
    if given.kind in "iub":
        return np.dtype(np.float64)
    dtype = given.newbyteorder("=")
    if dtype.name not in DTYPES:
        raise ValueError(f"{name} has dtype {given}; supported are {', '.join(DTYPES)}")
    return dtype


def as_matrix(a: Any, name: str = "a", *, square: bool = False) -> Any:
    """`a` as a two-dimensional array, square if so wanted."""
    a = as_array(a, name, (2,))
    if square and a.shape[0] != a.shape[1]:
        raise ValueError(f"{name} must be a square matrix, not of shape {a.shape}")
    return a


@on_device_of_arrays
def require_row_numbers(piv: Any, m: int) -> None:
    """Raise ValueError unless `piv` says with which of `m` rows each was exchanged."""
    require_pivot_type(piv, m)
    if not m:
        return
    least, largest = int(piv.min()), int(piv.max())
    if least < 0 or largest >= m:
        raise ValueError(f"piv must hold {m} row numbers below {m}, not {least} to {largest}")


def require_pivot_type(piv: Any, m: int) -> None:
    """What `require_row_numbers` can tell without looking at a number: of a Dask array, too."""
    if piv.shape != (m,):
        raise ValueError(f"piv must hold {m} row numbers below {m}, not have shape {piv.shape}")
    if m and piv.dtype.kind not in "iu":
        raise ValueError(f"piv must hold {m} row numbers below {m}, not {piv.dtype}")


def as_columns_for(a: Any, b: Any, what: str, name: str = "b") -> Any:
    """`b` as one or more columns with as many rows as `a` has, which is `what`, and where it is."""
    b = as_array(b, name, (1, 2))
    same_place(a, b, what, name)
    if b.shape[0] != a.shape[0]:
        raise ValueError(
            f"{name} has shape {b.shape}, which does not fit {what} of shape {a.shape}"
        )
    return b


def is_writable(a: Any) -> bool:
    """Whether `a` may be overwritten; CuPy's arrays have no flag that forbids it."""
    return bool(getattr(a.flags, "writeable", True))


def as_system(a: Any, b: Any, *, check_finite: bool, square: bool = False) -> tuple[Any, Any]:
    """Matrix and right-hand sides that fit, of one dtype.

    Raises
    ------
    ValueError, TypeError
        If they do not fit, are in different places, or are not finite.
    """
    a = as_matrix(a, square=square)
    b = as_columns_for(a, b, "a")
    if check_finite:
        require_finite(a, "a")
        require_finite(b, "b")
    dtype = array_module(a).result_type(a, b)
    return a.astype(dtype, copy=False), b.astype(dtype, copy=False)


def same_place(a: Any, b: Any, what: str, name: str) -> None:
    """Raise TypeError unless `a`, which is `what`, and `b` are both on the host, or on one GPU."""
    if device_index(a) != device_index(b):
        raise TypeError(f"{what} on {_place(a)} and {name} on {_place(b)} must be in one place")


def _place(a: Any) -> str:
    return f"GPU {device_index(a)}" if is_device_array(a) else "the host"


def plain_sizes(shape: Any, nrhs: Any) -> tuple[int, int, int]:
    """Rows, columns and right-hand sides as plain integers, which those of NumPy become."""
    try:
        m, n = map(_size, shape)
    except (TypeError, ValueError):
        raise ValueError(f"shape must be two non-negative integers, not {shape!r}") from None
    try:
        return m, n, _size(nrhs)
    except (TypeError, ValueError):
        raise ValueError(f"nrhs must be a non-negative integer, not {nrhs!r}") from None


def _size(value: Any) -> int:
    if isinstance(value, bool | np.bool_) or operator.index(value) < 0:
        raise ValueError
    return operator.index(value)
