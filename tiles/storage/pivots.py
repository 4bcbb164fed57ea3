"""Row interchanges."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg.lapack import dlaswp

from hetero_la.tiles.arrays.transfer import array_module, to_host


def permutation(piv: Any, m: int) -> np.ndarray:
    """Return the row order p with ``A[p] = L @ U``, from LAPACK's interchanges.

    Examples
    --------
    >>> permutation([1, 1], 2)
    array([1, 0])
    """
    piv = to_host(piv)
    if len(piv) and not 0 <= piv.min() <= piv.max() < m:
        raise IndexError(f"interchanges of {m} rows are not {piv.min()} to {piv.max()}")
    return interchanged(piv, m)


def interchanged(piv: np.ndarray, m: int) -> np.ndarray:
    """Return the numbers of m rows after interchanges, each with one of them: it is not checked."""
    rows = np.arange(m, dtype=float)[:, None]  # exact up to 2^53
    if len(piv):
        rows = dlaswp(rows, piv, overwrite_a=True)
    return rows[:, 0].astype(np.intp)


def inverse_permutations(piv: Any, m: int) -> Any:
    """Return for each matrix of a stack the row order r with ``A = (L @ U)[r]``.

    Examples
    --------
    >>> inverse_permutations(np.array([[1, 2, 2]]), 3)
    array([[2, 0, 1]])
    """
    orders = np.array([permutation(swaps, m) for swaps in to_host(piv)], np.intp)
    return array_module(piv).asarray(orders.reshape(len(piv), m).argsort(axis=1))
