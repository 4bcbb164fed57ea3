"""Copies of matrices in the lower precision, scaled by powers of two where the range asks for it.

Rows and columns are scaled as by LAPACK's ``xGEEQUB``, and Hermitian matrices by their diagonal as
by ``xPOEQUB``; that a narrower range needs it is treated by Higham, Pranesh and Zounon [1]_.

.. [1] N. J. Higham, S. Pranesh and M. Zounon, Squeezing a matrix into half precision, with an
   application to solving linear systems, SIAM J. Sci. Comput. 41, 2019.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module, is_column_major, on_device_of, to_host
from hetero_la.tiles.kernels.cpu.device import copy_on_host

#: Largest entries of rows and columns that need no scaling: their products and sums stay in range.
_LEAST, _MOST = 2.0**-40, 2.0**40
#: Rows or columns whose largest entries differ by more than this factor are scaled (``xGEEQU``).
_UNEQUAL = 10.0
#: Elements per block, so that it stays in the cache of a core, and on a GPU.
_BLOCK, _GPU_BLOCK = 1 << 16, 1 << 24


class Equilibration(NamedTuple):
    """Exponents of the powers of two by which rows and columns are multiplied.

    Attributes
    ----------
    rows, columns : array of int, on the host
        One for each row, and for each column.
    """

    rows: np.ndarray
    columns: np.ndarray


def general_equilibration(a: Any) -> Equilibration | None:
    """Return the scaling of a matrix for the lower precision, or None where it needs none.

    Rows are scaled first, and then the columns of what that gives: the largest entry of each
    becomes about 1.

    Raises
    ------
    OverflowError
        If an entry is not finite.

    Examples
    --------
    >>> general_equilibration(np.array([[1.0, 2.0], [3.0, 4.0]])) is None
    True
    >>> general_equilibration(np.array([[1e-200, 1.0], [0.0, 1.0]]))
    Equilibration(rows=array([-1, -1]), columns=array([665,   1]))
    """
    rows, columns = _largest(a, None)
    if not (np.isfinite(rows).all() and np.isfinite(columns).all()):
        raise OverflowError("an entry of the matrix is not finite")
    if _is_even(rows) and _is_even(columns):
        return None
    up = _exponents(rows)
    return Equilibration(up, _exponents(_largest(a, up)[1]))


def column_equilibration(a: Any) -> Equilibration | None:
    """Return the scaling of the columns alone, or None where they need none.

    Raises
    ------
    OverflowError
        If an entry is not finite.

    Examples
    --------
    >>> column_equilibration(np.array([[1e-200, 1.0], [0.0, 1.0]]))
    Equilibration(rows=array([0, 0]), columns=array([664,  -1]))
    """
    columns = _largest(a, None)[1]
    if not np.isfinite(columns).all():
        raise OverflowError("an entry of the matrix is not finite")
    return None if _is_even(columns) else Equilibration(np.zeros(len(a), int), _exponents(columns))


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
    Equilibration(rows=array([332,   0]), columns=array([332,   0]))
    """
    diagonal = np.abs(to_host(a.diagonal()).real)
    if not np.isfinite(diagonal).all():
        raise OverflowError("an entry of the matrix is not finite")
    if _is_even(diagonal):
        return None
    half = -(np.frexp(diagonal)[1] // 2)
    half = np.where(diagonal > 0, half, 0)
    return Equilibration(half, half)


def lowered(a: Any, dtype: Any, scaling: Equilibration | None) -> Any:
    """Return a column-major copy of a matrix in the lower precision, scaled.

    Examples
    --------
    >>> a = np.array([[1e-200, 1.0], [0.0, 1.0]])
    >>> lowered(a, np.float32, general_equilibration(a)).round(1)
    array([[0.8, 1. ],
           [0. , 1. ]], dtype=float32)
    """
    with on_device_of(a):
        xp = array_module(a)
        copy = xp.empty(a.shape, dtype, order="F")
        with np.errstate(over="ignore", under="ignore"):  # infinity shows in the factors
            if scaling is not None:
                for rows, columns in _blocks(a):
                    part = _times(a[rows, columns], scaling.rows[rows], 0)
                    copy[rows, columns] = _times(part, scaling.columns[columns], 1)
            elif xp is np:
                copy_on_host(copy, a)
            else:
                copy[...] = a
    return copy


def times_rows(a: Any, exponents: np.ndarray | None) -> Any:
    """Multiply each row by a power of two, or return `a` itself for None.

    Examples
    --------
    >>> times_rows(np.array([[1.0], [3.0]]), np.array([1, -1])).ravel()
    array([2. , 1.5])
    """
    return a if exponents is None else _times(a, exponents, 0)


def _times(a: Any, exponents: np.ndarray, axis: int) -> Any:
    """Multiply by powers of two, which are halved as they may themselves be out of range."""
    xp, first = array_module(a), exponents // 2
    for part in (first, exponents - first):
        factor = xp.asarray(np.ldexp(1.0, part))
        a = a * (factor[:, None] if axis == 0 else factor)
    return a


def _exponents(largest: np.ndarray) -> np.ndarray:
    return np.where(largest > 0, -np.frexp(largest)[1], 0)


def _is_even(largest: np.ndarray) -> bool:
    """Return whether rows or columns need no scaling; those of zeros cannot be scaled."""
    some = largest[largest > 0]
    if not some.size:
        return True
    least, most = float(some.min()), float(some.max())
    return least >= _LEAST and most <= _MOST and most <= _UNEQUAL * least


def _blocks(a: Any) -> list[tuple[slice, slice]]:
    """Return blocks of columns, or of rows of a row-major matrix, that stay in the cache."""
    m, n = a.shape
    size = _BLOCK if array_module(a) is np else _GPU_BLOCK
    along, across = (n, m) if is_column_major(a) else (m, n)
    step = max(size // max(across, 1), 1)
    parts = [slice(start, min(start + step, along)) for start in range(0, along, step)]
    whole = slice(0, across)
    return [(whole, part) if along == n and is_column_major(a) else (part, whole) for part in parts]


def _largest(a: Any, up: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest modulus in each row and column, of a matrix with scaled rows if `up`."""
    with on_device_of(a), np.errstate(over="ignore", invalid="ignore"):
        xp, (m, n) = array_module(a), a.shape
        by_row, by_column = xp.zeros(m), xp.zeros(n)
        for rows, columns in _blocks(a):
            part = abs(a[rows, columns])
            part = part if up is None else _times(part, up[rows], 0)
            by_row[rows] = xp.maximum(by_row[rows], part.max(axis=1))
            by_column[columns] = xp.maximum(by_column[columns], part.max(axis=0))
        return to_host(by_row), to_host(by_column)
