"""Copies of matrices in the lower precision, scaled by powers of two where the range asks for it.

Rows and columns are scaled as by LAPACK's ``xGEEQUB``, and Hermitian matrices by their diagonal as
by ``xPOEQUB``; that a narrower range needs it is treated by Higham, Pranesh and Zounon [1]_.

.. [1] N. J. Higham, S. Pranesh and M. Zounon, Squeezing a matrix into half precision, with an
   application to solving linear systems, SIAM J. Sci. Comput. 41, 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.arrays.copies import copy_on_host
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_column_major,
    is_device_array,
    on_device_of,
    to_host,
)
from hetero_la.tiles.kernels.gpu_libraries import norms
from hetero_la.tiles.kernels.gpu_libraries.scaling import scale

#: Largest entries of rows and columns that need no scaling: their products and sums stay in range.
_LEAST, _MOST = 2.0**-40, 2.0**40
#: Rows or columns whose largest entries differ by more than this factor are scaled (``xGEEQU``).
_UNEQUAL = 10.0
#: Elements per block, so that it stays in the cache of a core.
_BLOCK = 1 << 16


class Equilibration(NamedTuple):
    """Exponents of the powers of two by which rows and columns are multiplied.

    Attributes
    ----------
    rows, columns : array of int, on the host
        One for each row, and for each column.
    """

    rows: np.ndarray
    columns: np.ndarray


#: Returns the largest modulus in each row and column of a matrix, as it is or scaled.
Measure = Callable[[Equilibration | None], tuple[np.ndarray, np.ndarray]]


def general_equilibration(a: Any, largest: Measure | None = None) -> Equilibration | None:
    """Return the scaling of a matrix for the lower precision, or None where it needs none.

    Rows or columns, whichever differ more, are scaled first, and then the others of what that
    gives: the largest entry of each column, or row, becomes about 1.

    Parameters
    ----------
    a : array, shape (m, n)
        The matrix.
    largest : callable, optional
        Measures rows and columns of a matrix that is not in one array.

    Raises
    ------
    OverflowError
        If an entry is not finite.

    Examples
    --------
    >>> general_equilibration(np.array([[1.0, 2.0], [3.0, 4.0]])) is None
    True
    >>> general_equilibration(np.array([[1e-200, 1.0], [0.0, 1.0]]))
    Equilibration(rows=array([0, 0], dtype=int32), columns=array([664,  -1], dtype=int32))
    """
    largest = largest or partial(_largest, a)
    rows, columns = largest(None)
    if not (np.isfinite(rows).all() and np.isfinite(columns).all()):
        raise OverflowError("an entry of the matrix is not finite")
    if _is_even(rows) and _is_even(columns):
        return None
    none = np.zeros(len(rows), np.int32), np.zeros(len(columns), np.int32)
    if _span(columns) > _span(rows):
        right = _exponents(columns)
        return Equilibration(_exponents(largest(Equilibration(none[0], right))[0]), right)
    left = _exponents(rows)
    return Equilibration(left, _exponents(largest(Equilibration(left, none[1]))[1]))


def column_equilibration(a: Any, largest: Measure | None = None) -> Equilibration | None:
    """Return the scaling of the columns alone, or None where they need none.

    The parameters are those of `general_equilibration`.

    Raises
    ------
    OverflowError
        If an entry is not finite.

    Examples
    --------
    >>> column_equilibration(np.array([[1e-200, 1.0], [0.0, 1.0]]))
    Equilibration(rows=array([0, 0], dtype=int32), columns=array([664,  -1], dtype=int32))
    """
    columns = (largest or partial(_largest, a))(None)[1]
    if not np.isfinite(columns).all():
        raise OverflowError("an entry of the matrix is not finite")
    none = np.zeros(len(a), np.int32)
    return None if _is_even(columns) else Equilibration(none, _exponents(columns))


def hermitian_equilibration(a: Any) -> Equilibration | None:
    """Return the scaling of a Hermitian matrix, by its diagonal, or None where it needs none.

    An entry of a positive definite matrix is at most the geometric mean of its diagonal entries.

    Raises
    ------
    OverflowError
        If an entry of the diagonal is not finite.

    Examples
    --------
    >>> hermitian_equilibration(np.diag([1e-200, 1.0]))
    Equilibration(rows=array([332,   0], dtype=int32), columns=array([332,   0], dtype=int32))
    """
    return diagonal_equilibration(to_host(a.diagonal()))


def diagonal_equilibration(diagonal: np.ndarray) -> Equilibration | None:
    """Return the scaling of a Hermitian matrix that has this diagonal."""
    diagonal = np.abs(diagonal.real)
    if not np.isfinite(diagonal).all():
        raise OverflowError("an entry of the matrix is not finite")
    if _is_even(diagonal):
        return None
    half = np.where(diagonal > 0, -(np.frexp(diagonal)[1] // 2), 0).astype(np.int32)
    return Equilibration(half, half)


def lowered(a: Any, dtype: Any, scaling: Equilibration | None) -> Any:
    """Return a column-major copy of a matrix in the lower precision, scaled.

    Examples
    --------
    >>> a = np.array([[1e-200, 1.0], [0.0, 1.0]])
    >>> lowered(a, np.float32, general_equilibration(a)).round(1)
    array([[0.8, 0.5],
           [0. , 0.5]], dtype=float32)
    """
    with on_device_of(a):
        xp = array_module(a)
        copy = xp.empty(a.shape, dtype, order="F")
        with np.errstate(over="ignore", under="ignore"):  # infinity shows in the factors
            if scaling is not None:
                _write_scaled(a, scaling, copy)
            elif xp is np:
                copy_on_host(copy, a)
            elif is_column_major(a):  # by rows: CuPy copies in their order
                copy.T[...] = a.T
            else:
                copy[...] = a
    return copy


def _write_scaled(a: Any, scaling: Equilibration, out: Any) -> None:
    """Write a scaled matrix to `out`, of any precision."""
    if is_device_array(a):
        scale(a, *scaling, out)
        return
    for rows, columns in _blocks(a):
        exponents = scaling.rows[rows], scaling.columns[columns]
        out[rows, columns] = scaled(a[rows, columns], *exponents)


def times_rows(a: Any, exponents: np.ndarray | None) -> Any:
    """Multiply each row by a power of two, or return `a` itself for None.

    Examples
    --------
    >>> times_rows(np.array([[1.0], [3.0]]), np.array([1, -1])).ravel()
    array([2. , 1.5])
    """
    return a if exponents is None else _times(a, array_module(a).asarray(exponents)[:, None])


def _times(a: Any, exponents: Any) -> Any:
    """Multiply by powers of two, which may themselves be out of range."""
    xp = array_module(a)
    if a.dtype.kind == "f":
        return xp.ldexp(a, exponents)
    scaled = xp.empty_like(a)
    scaled.real, scaled.imag = xp.ldexp(a.real, exponents), xp.ldexp(a.imag, exponents)
    return scaled


def scaled(part: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Multiply the rows and columns of a block by powers of two.

    Examples
    --------
    >>> scaled(np.eye(2), np.array([1, 2]), np.array([0, -1]))
    array([[2., 0.],
           [0., 2.]])
    """
    if is_device_array(part):
        product = array_module(part).empty_like(part)
        scale(part, rows, columns, product)
        return product
    turned = is_column_major(part)
    first, second = (columns, rows) if turned else (rows, columns)
    exponents = first[:, None] + second  # in the memory order of the block
    return _times(part, exponents.T if turned else exponents)


def _exponents(largest: np.ndarray) -> np.ndarray:
    return np.where(largest > 0, -np.frexp(largest)[1], 0).astype(np.int32)


def _span(largest: np.ndarray) -> float:
    """Return the ratio of the largest and the least positive number."""
    some = largest[largest > 0]
    with np.errstate(over="ignore"):
        return float(some.max() / some.min()) if some.size else 1.0


def _is_even(largest: np.ndarray) -> bool:
    """Return whether rows or columns need no scaling; those of zeros cannot be scaled."""
    some = largest[largest > 0]
    if not some.size:
        return True
    return bool(some.min() >= _LEAST and some.max() <= _MOST and _span(some) <= _UNEQUAL)


def _blocks(a: np.ndarray) -> list[tuple[slice, slice]]:
    """Return blocks of columns, or of rows of a row-major matrix, that stay in the cache."""
    turned, whole = is_column_major(a), slice(None)
    across, along = a.shape if turned else a.shape[::-1]
    step = max(_BLOCK // max(across, 1), 1)
    parts = [slice(start, min(start + step, along)) for start in range(0, along, step)]
    return [(whole, part) if turned else (part, whole) for part in parts]


def _largest(a: Any, scaling: Equilibration | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest modulus in each row and column of a matrix, as it is or scaled."""
    if is_device_array(a):
        with on_device_of(a):
            return norms.largest_by_row_and_column(a, scaling)
    by_row, by_column = (np.zeros(length) for length in a.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        for rows, columns in _blocks(a):
            part = a[rows, columns]
            if scaling is not None:
                part = scaled(part, scaling.rows[rows], scaling.columns[columns])
            moduli = abs(part)
            by_row[rows] = np.maximum(by_row[rows], moduli.max(axis=1))
            by_column[columns] = np.maximum(by_column[columns], moduli.max(axis=0))
    return by_row, by_column
