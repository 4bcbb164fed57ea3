"""Triangles of matrices: copying, completing and solving, on the host or on a GPU."""

from __future__ import annotations

from typing import Any

from hetero_la.tiles.arrays.transfer import array_module, linalg_module

#: Columns per block.
_BLOCK = 512


def upper_triangle(a: Any) -> Any:
    """Return a column-major copy of the upper triangle, with zeros below it.

    Only the blocks that are not zero are written, so zeroed memory pages stay untouched.

    Examples
    --------
    >>> import numpy as np
    >>> upper_triangle(np.ones((2, 3)))
    array([[1., 1., 1.],
           [0., 1., 1.]])
    """
    xp = array_module(a)
    copy = xp.zeros(a.shape, a.dtype, order="F")
    for start in range(0, a.shape[1], _BLOCK):
        here = slice(start, start + _BLOCK)
        copy[:start, here] = a[:start, here]
        copy[here, here] = xp.triu(a[here, here])
    return copy


def unit_lower_triangle(a: Any) -> Any:
    """Return a column-major copy of the strict lower triangle, with ones on the diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> unit_lower_triangle(np.full((3, 2), 5.0))
    array([[1., 0.],
           [5., 1.],
           [5., 5.]])
    """
    xp = array_module(a)
    copy = xp.zeros(a.shape, a.dtype, order="F")
    for start in range(0, a.shape[1], _BLOCK):
        here, below = slice(start, start + _BLOCK), slice(start + _BLOCK, len(a))
        copy[here, here] = xp.tril(a[here, here], -1)
        copy[below, here] = a[below, here]
    own = xp.arange(min(a.shape))
    copy[own, own] = 1
    return copy


def zero_upper_triangle(a: Any) -> None:
    """Set the entries above the diagonal to zero, in place.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.ones((2, 3))
    >>> zero_upper_triangle(a)
    >>> a
    array([[1., 0., 0.],
           [1., 1., 0.]])
    """
    xp = array_module(a)
    for start in range(0, a.shape[1], _BLOCK):
        here = slice(start, start + _BLOCK)
        a[:start, here] = 0
        a[here, here] = xp.tril(a[here, here])


def complete_from_triangle(a: Any, *, lower: bool, conjugate: bool) -> None:
    """Make `a` symmetric or Hermitian, in place, from its lower or upper triangle.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([[1.0, 9.0], [2.0, 3.0]])
    >>> complete_from_triangle(a, lower=True, conjugate=False)
    >>> a
    array([[1., 2.],
           [2., 3.]])
    """
    xp = array_module(a)
    turn = xp.conj if conjugate else xp.asarray
    triangle = xp.tril if lower else xp.triu
    for start in range(0, len(a), _BLOCK):
        here, rest = slice(start, start + _BLOCK), slice(start + _BLOCK, len(a))
        tile = triangle(a[here, here])
        own = xp.arange(len(tile))
        diagonal = tile[own, own].real if conjugate else tile[own, own]
        tile += turn(triangle(tile, -1 if lower else 1).T)  # twice the diagonal may overflow
        tile[own, own] = diagonal
        a[here, here] = tile
        if lower:
            a[here, rest] = turn(a[rest, here].T)
        else:
            a[rest, here] = turn(a[here, rest].T)


def solve_with_triangle(
    a: Any, b: Any, *, lower: bool, adjoint: bool = False, overwrite_b: bool = False
) -> Any:
    """Solve T X = B or T^H X = B, T being a triangle of the square matrix `a`.

    Examples
    --------
    >>> import numpy as np
    >>> solve_with_triangle(np.array([[2.0, 9.0], [1.0, 1.0]]), np.array([2.0, 2.0]), lower=True)
    array([1., 1.])
    """
    return linalg_module(a).solve_triangular(
        a, b, trans=2 if adjoint else 0, lower=lower, overwrite_b=overwrite_b, check_finite=False
    )
