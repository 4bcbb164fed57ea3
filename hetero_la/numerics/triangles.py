"""Triangles of matrices: copying, completing and solving, on the host or on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module, is_device_array, linalg_module
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.gpu_libraries.norms import complete_from_lower

#: Columns per block.
_BLOCK = 256


def _above(like: Any, beyond: int = 0) -> Any:
    """Return which entries of matrices are in the upper triangle, or `beyond` its diagonal.

    The mask is column-major as the matrices are: so it is read in the order of their memory.
    """
    (m, n), xp = like.shape[-2:], array_module(like)
    if xp is np:
        return _mask(m, n, beyond)
    return xp.broadcast_to(xp.tri(n, m, -beyond, dtype=bool).T, like.shape)


@functools.lru_cache(16)
def _mask(m: int, n: int, beyond: int) -> np.ndarray:
    """Return the mask on the host: many small matrices of one size need the same."""
    mask = np.tri(n, m, -beyond, dtype=bool).T
    mask.flags.writeable = False
    return mask


def _column_major_zeros(like: Any) -> Any:
    *leading, m, n = like.shape
    return array_module(like).zeros((*leading, n, m), like.dtype).swapaxes(-1, -2)


def upper_triangle(a: Any) -> Any:
    """Return a column-major copy of the upper triangle, or those of a stack, with zeros below it.

    Only the blocks that are not zero are written, so zeroed memory pages stay untouched.

    Examples
    --------
    >>> import numpy as np
    >>> upper_triangle(np.ones((2, 3)))
    array([[1., 1., 1.],
           [0., 1., 1.]])
    """
    xp, copy = array_module(a), _column_major_zeros(a)
    for start in range(0, a.shape[-1], _BLOCK):
        here = slice(start, start + _BLOCK)
        copy[..., :start, here] = a[..., :start, here]
        tile = a[..., here, here]
        xp.copyto(copy[..., here, here], tile, where=_above(tile))
    return copy


def unit_lower_triangle(a: Any) -> Any:
    """Return a column-major copy of a strict lower triangle, or several, with ones on the diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> unit_lower_triangle(np.full((3, 2), 5.0))
    array([[1., 0.],
           [5., 1.],
           [5., 5.]])
    """
    xp, copy = array_module(a), _column_major_zeros(a)
    for start in range(0, a.shape[-1], _BLOCK):
        here, below = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
        tile = a[..., here, here]
        xp.copyto(copy[..., here, here], tile, where=~_above(tile))
        copy[..., below, here] = a[..., below, here]
    own = xp.arange(min(a.shape[-2:]))
    copy[..., own, own] = 1
    return copy


def zero_upper_triangle(a: Any) -> None:
    """Set the entries above the diagonal to zero, in place, in a matrix or a stack.

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
    for start in range(0, a.shape[-1], _BLOCK):
        here = slice(start, start + _BLOCK)
        a[..., :start, here] = 0
        tile = a[..., here, here]
        xp.copyto(tile, xp.zeros((), a.dtype), where=_above(tile, 1))


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
    if is_device_array(a):
        complete_from_lower(a if lower else a.swapaxes(-1, -2), conjugate=conjugate)
        return
    turn = np.conj if conjugate and a.dtype.kind == "c" else np.asarray
    for start in range(0, a.shape[-1], _BLOCK):
        here, rest = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
        tile = a[..., here, here]
        if conjugate and a.dtype.kind == "c":
            own = np.arange(tile.shape[-1])
            tile[..., own, own] = tile[..., own, own].real
        turned = turn(tile.swapaxes(-1, -2).copy())
        np.copyto(tile, turned, where=_above(tile, 1) if lower else ~_above(tile))
        if lower:
            a[..., here, rest] = turn(a[..., rest, here].swapaxes(-1, -2))
        else:
            a[..., rest, here] = turn(a[..., here, rest].swapaxes(-1, -2))


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


def solve_with_cholesky(c: Any, b: Any, *, lower: bool, overwrite_b: bool = False) -> Any:
    """Solve L L^H X = B or U^H U X = B, L or U being a triangle of the square matrix `c`.

    Examples
    --------
    >>> import numpy as np
    >>> solve_with_cholesky(np.array([[2.0, 9.0], [1.0, 1.0]]), np.array([4.0, 3.0]), lower=True)
    array([0.5, 1. ])
    """
    if not is_device_array(c):
        return lapack.cho_solve(c, b, lower, overwrite_b)
    y = solve_with_triangle(c, b, lower=lower, adjoint=not lower, overwrite_b=overwrite_b)
    return solve_with_triangle(c, y, lower=lower, adjoint=lower, overwrite_b=True)
