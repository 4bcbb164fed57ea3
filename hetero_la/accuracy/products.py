"""Products of packed triangular factors with a few columns, and norms estimated from products."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module, is_device_array
from hetero_la.tiles.kernels.cpu.lapack import product, triangle_product
from hetero_la.tiles.kernels.gpu_libraries import norms
from hetero_la.tiles.kernels.gpu_libraries.norms import Form

#: Random columns from which a norm is estimated.
PROBES = 4
#: Columns of a triangle on the host that are multiplied at once.
_BLOCK = 512


def probes(n: int, like: Any) -> Any:
    """Return columns of random signs, of the dtype and on the device of an array.

    The mean square of the 2-norm of E v over all such v is the square of E's Frobenius norm.

    Examples
    --------
    >>> v = probes(3, np.float32([1]))
    >>> v.shape, v.dtype.name, np.unique(abs(v)).tolist()
    ((3, 4), 'float32', [1.0])
    """
    signs = np.random.default_rng(n).choice([-1.0, 1.0], (n, PROBES))
    return array_module(like).asarray(signs.astype(like.dtype))


def matrix_times(a: Any, v: Any) -> Any:
    """Multiply columns by a matrix."""
    return a @ v if is_device_array(a) or not a.size else product(a, v)


def _is_whole(packed: Any) -> bool:
    """Return whether BLAS can multiply by a triangle where it is, on the host."""
    m, n = packed.shape
    return bool(not is_device_array(packed) and m == n > 0 and packed.flags.forc)


def probed_norm(product: Any) -> float:
    """Estimate the Frobenius norm of E from E V, for V of `probes`; squares do not overflow.

    Examples
    --------
    >>> probed_norm(4e200 * probes(1, np.ones(1))) == 4e200
    True
    """
    with np.errstate(all="ignore"):
        largest = float(abs(product).max()) if product.size else 0.0
        if not 0 < largest < np.inf:
            return largest
        return largest * float((abs(product / largest) ** 2).sum(dtype=np.float64) / PROBES) ** 0.5


def frobenius(a: Any) -> float:
    """Estimate the Frobenius norm of a matrix, in one pass over it.

    Examples
    --------
    >>> abs(frobenius(np.eye(9)) - 3) < 1e-12
    True
    """
    return probed_norm(matrix_times(a, probes(a.shape[1], a)))


def lower_times(packed: Any, v: Any, *, unit: bool, adjoint: bool = False) -> Any:
    """Multiply columns by the lower trapezoid L of packed factors, or by L^H.

    Examples
    --------
    >>> packed = np.full((3, 2), 2.0)
    >>> lower_times(packed, np.ones((2, 1)), unit=True).T
    array([[1., 3., 4.]])
    >>> lower_times(packed, np.ones((3, 1)), unit=False, adjoint=True).T
    array([[6., 4.]])
    """
    if _is_whole(packed):
        return triangle_product(packed, v, lower=True, unit=unit, adjoint=adjoint)
    m, k = len(packed), min(packed.shape)
    if is_device_array(packed):
        return norms.product(packed[:, :k], v, Form("lower", "ones" if unit else "as is", adjoint))
    found = np.zeros((k if adjoint else m, v.shape[1]), v.dtype)
    for start in range(0, k, _BLOCK):
        stop = min(start + _BLOCK, k)
        tile, below = packed[start:stop, start:stop], packed[stop:, start:stop]
        tile = np.tril(tile, -1) if unit else np.tril(tile)
        if adjoint:
            found[start:stop] += _adjoint_times(tile, v[start:stop])
            found[start:stop] += _adjoint_times(below, v[stop:])
        else:
            found[start:stop] += tile @ v[start:stop]
            found[stop:] += below @ v[start:stop]
    if unit:
        found[:k] += v[:k]
    return found


def upper_times(packed: Any, v: Any, *, adjoint: bool = False) -> Any:
    """Multiply columns by the upper trapezoid U of packed factors, or by U^H.

    Examples
    --------
    >>> packed = np.full((3, 2), 2.0)
    >>> upper_times(packed, np.ones((2, 1))).T, upper_times(packed, np.ones((2, 1)), adjoint=True).T
    (array([[4., 2.]]), array([[2., 4.]]))
    """
    if _is_whole(packed):
        return triangle_product(packed, v, lower=False, adjoint=adjoint)
    n, k = packed.shape[1], min(packed.shape)
    if is_device_array(packed):
        return norms.product(packed[:k], v, Form("upper", adjoint=adjoint))
    found = np.zeros((n if adjoint else k, v.shape[1]), v.dtype)
    for start in range(0, n, _BLOCK):
        stop, top = min(start + _BLOCK, n), min(start, k)
        end = min(stop, k)
        above, tile = packed[:top, start:stop], np.triu(packed[top:end, start:stop])
        if adjoint:
            found[start:stop] += _adjoint_times(above, v[:top])
            found[start:stop] += _adjoint_times(tile, v[top:end])
        else:
            found[:top] += above @ v[start:stop]
            found[top:end] += tile @ v[start:stop]
    return found


def _adjoint_times(block: Any, v: Any) -> Any:
    """Return M^H V; unlike M, V is small enough to be copied."""
    return (v.conj().T @ block).conj().T
