"""Checks of array arguments, made once, before any work starts."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.errors import UnsupportedDtypeError
from hetero_la.tiles.arrays.transfer import device_index, is_device_array, on_device_of_arrays
from hetero_la.tiles.kernels.gpu_libraries.finite import (
    is_finite,
    require_finite,
    require_system_finite,
)

DTYPES = ("float32", "float64", "complex64", "complex128")
#: LAPACK type to which SciPy casts each dtype, by NumPy's type characters.
_LAPACK_TYPES = {
    letter: np.dtype(dtype)
    for letters, dtype in (("?bBhHef", "f"), ("iIlLqQdg", "d"), ("F", "F"), ("DG", "D"))
    for letter in letters
}


def as_array(a: Any, name: str, ndims: tuple[int, ...]) -> Any:
    """Convert `a` to a NumPy or CuPy array of a LAPACK type.

    Raises
    ------
    ValueError
        If the dtype or the number of dimensions is not supported, or `a` is a masked array.
    """
    if type(a) is np.ndarray and a.ndim in ndims and a.dtype is _LAPACK_TYPES.get(a.dtype.char):
        return a  # of small matrices each call counts
    a = _dense(a, name, ndims)
    return _cast(a, lapack_dtype(a.dtype, name))


def _cast(a: Any, dtype: np.dtype[Any]) -> Any:
    """Return `a` in a dtype, without a call where it has it: of small matrices each counts."""
    return a if a.dtype is dtype else a.astype(dtype, copy=False)


def _dense(a: Any, name: str, ndims: tuple[int, ...]) -> Any:
    """Convert `a` to an array, keeping its dtype."""
    given = a
    refuse_masked(a)
    a = a if is_device_array(a) else np.asarray(a)
    if a.ndim == 0 and a.dtype.kind not in "biufc":  # an object that NumPy could not convert
        raise ValueError(f"{name} is of type {type(given).__name__}, not a dense array of numbers")
    require_dimensions(a, name, ndims)
    return a


def require_dimensions(a: Any, name: str, ndims: tuple[int, ...]) -> None:
    """Raise ValueError unless the number of dimensions of `a` is one of `ndims`."""
    if a.ndim < min(ndims) == 2:  # more dimensions are a stack
        raise ValueError(
            f"Input array {name} must be at least two-dimensional, not of shape {a.shape}"
        )
    if a.ndim not in ndims:
        wanted = " or ".join(str(ndim) for ndim in ndims)
        raise ValueError(f"{name} must have {wanted} dimensions, not shape {a.shape}")


def refuse_masked(a: Any) -> None:
    """Raise ValueError for a masked array, whose mask NumPy would silently drop."""
    if isinstance(a, np.ma.MaskedArray):
        raise ValueError(
            "masked arrays are not supported: replace the masked entries with filled()"
        )


@on_device_of_arrays
def as_finite_array(a: Any, name: str) -> Any:
    """Convert `a` to an array of any dimension; raise ValueError for NaN and infinity."""
    a = as_array(a, name, (np.ndim(a),))
    require_finite(a, name)
    return a


def lapack_dtype(given: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return the LAPACK type in which SciPy computes with an array of dtype `given`.

    Raises
    ------
    hetero_la.tiles.arrays.errors.UnsupportedDtypeError
        If it is not a numeric dtype.

    Examples
    --------
    >>> lapack_dtype(np.dtype("float16"), "a"), lapack_dtype(np.dtype("int64"), "a")
    (dtype('float32'), dtype('float64'))
    """
    if given.char not in _LAPACK_TYPES:
        hint = (
            "; if its entries are real numbers, use astype('float64')" if given.char == "O" else ""
        )
        raise UnsupportedDtypeError(
            f"{name} has dtype {given}, which cannot be cast to float(32, 64) or complex(64, 128)"
            f"{hint}"
        )
    return _LAPACK_TYPES[given.char]


def common_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Return the LAPACK type in which SciPy solves a system; for two integer dtypes, float64.

    Examples
    --------
    >>> common_dtype(np.dtype("int8"), np.dtype("int8")), lapack_dtype(np.dtype("int8"), "a")
    (dtype('float64'), dtype('float32'))
    """
    if a == b and a.isnative and a.char in "fdFD":
        return a
    for dtype, name in ((a, "a"), (b, "b")):
        lapack_dtype(dtype, name)
    both = np.result_type(a, b)
    return np.dtype(np.float64) if both.kind in "iub" else lapack_dtype(both, "a")


def as_matrix(a: Any, name: str = "a", *, square: bool = False, finite: bool = False) -> Any:
    """Convert `a` to a two-dimensional array; on request, check that it is square and finite."""
    a = as_array(a, name, (2,))
    if square:
        require_square(a, name)
    if finite:
        require_finite(a, name)
    return a


def as_stack(a: Any, *, square: bool = False, finite: bool = False) -> Any:
    """Convert a stack of matrices as `as_matrix` does each; return None if one does not pass."""
    return _cast(a, lapack_dtype(a.dtype, "a")) if _passes(a, square, finite) else None


def _passes(a: Any, square: bool, finite: bool) -> bool:
    """Return whether a stack holds something of a type that LAPACK takes, and what is asked for."""
    fits = a.size and a.dtype.char in _LAPACK_TYPES and (not square or a.shape[1] == a.shape[2])
    return bool(fits and (not finite or is_finite(a)))


def as_stack_of_systems(
    a: Any, b: Any, *, square: bool = False, finite: bool = False
) -> tuple[Any, Any] | None:
    """Convert stacks of matrices and of right-hand sides as `as_system` does each; or return None.

    None says that one system does not pass.
    """
    if a.shape[1] != b.shape[1] or not _passes(a, square, finite) or not _passes(b, False, finite):
        return None
    dtype = common_dtype(a.dtype, b.dtype)
    return _cast(a, dtype), _cast(b, dtype)


def require_square(a: Any, name: str) -> None:
    """Raise ValueError, with SciPy's message, unless `a` is a square matrix."""
    if a.shape[0] != a.shape[1]:
        raise ValueError(
            "Expected a square matrix or batch thereof: Last 2 dimensions of the array must be "
            f"square, and {name} has shape {a.shape}"
        )


@on_device_of_arrays
def require_row_numbers(piv: Any, m: int) -> None:
    """Raise ValueError unless `piv` holds `m` row numbers from 0 to m - 1."""
    require_pivot_type(piv, m)
    if not m:
        return
    least, largest = int(piv.min()), int(piv.max())
    if least < 0 or largest >= m:
        raise ValueError(f"piv must hold {m} row indices below {m}, not {least} to {largest}")


def require_pivot_type(piv: Any, m: int) -> None:
    """Raise ValueError unless `piv` has shape (m,) and an integer dtype; no element is read."""
    if piv.shape != (m,):
        raise ValueError(f"piv must hold {m} row indices below {m}, not have shape {piv.shape}")
    if m and piv.dtype.kind not in "iu":
        raise ValueError(f"piv must hold {m} row indices below {m}, not {piv.dtype}")


def as_columns_for(a: Any, b: Any, what: str, name: str = "b", *, finite: bool = False) -> Any:
    """Convert `b` to columns with as many rows as `a` (called `what`), on the same device."""
    b = as_array(b, name, (1, 2))
    require_same_device(a, b, what, name)
    require_rows(a, b, what, name)
    if finite:
        require_finite(b, name)
    return b


def require_rows(a: Any, b: Any, what: str, name: str) -> None:
    """Raise ValueError unless `b` has as many rows as `a`, which messages call `what`."""
    if b.shape[0] != a.shape[0]:
        raise ValueError(
            f"Shape mismatch: {name} has shape {b.shape}, which does not fit {what} "
            f"of shape {a.shape}"
        )


def is_writable(a: Any) -> bool:
    """Return whether `a` may be overwritten; CuPy arrays have no flag that forbids it."""
    return bool(getattr(a.flags, "writeable", True))


def as_system(
    a: Any, b: Any, *, check_finite: bool, square: bool = False, number: bool = False
) -> tuple[Any, Any]:
    """Convert matrix and right-hand sides to one dtype, and check their shapes.

    With `number`, any two arrays of up to two dimensions are accepted.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not fit, or an array is not finite.
    TypeError
        If the arrays are on different devices.
    """
    if number:
        a, b = _dense(a, "a", (0, 1, 2)), _dense(b, "b", (0, 1, 2))
    else:
        a, b = _dense(a, "a", (2,)), _dense(b, "b", (1, 2))
    if square:
        require_square(a, "a")
    require_same_device(a, b, "a", "b")
    if not number:
        require_rows(a, b, "a", "b")
    dtype = common_dtype(a.dtype, b.dtype)
    a, b = _cast(a, dtype), _cast(b, dtype)
    if check_finite:
        require_system_finite(a, b)
    return a, b


def require_same_device(a: Any, b: Any, what: str, name: str) -> None:
    """Raise TypeError unless `a`, called `what`, and `b` are both on the host, or on one GPU."""
    if device_index(a) != device_index(b):
        raise TypeError(
            f"{what} on {_place(a)} and {name} on {_place(b)} must be on the same device"
        )


def _place(a: Any) -> str:
    return f"GPU {device_index(a)}" if is_device_array(a) else "the host"


def as_sizes(shape: Any, nrhs: Any) -> tuple[int, int, int]:
    """Return rows, columns and number of right-hand sides as Python integers."""
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


def require_pivoting(pivot: Any) -> bool:
    """Return whether `pivot` asks for pivoting; raise ValueError for an unknown value."""
    if pivot not in ("partial", "none"):
        raise ValueError(f"pivot must be 'partial' or 'none', not {pivot!r}")
    return bool(pivot == "partial")
