"""Row interchanges."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import array_module, to_host


def permutation(piv: Any, m: int) -> np.ndarray:
    """Return the row order p with ``A[p] = L @ U``, from LAPACK's interchanges.

    Examples
    --------
    >>> permutation([1, 1], 2)
    array([1, 0])
    """
    order = list(range(m))
    for i, p in enumerate(to_host(piv).tolist()):
        order[i], order[p] = order[p], order[i]
    return np.array(order, np.intp)


def inverse_permutations(piv: Any, m: int) -> Any:
    """Return for each matrix of a stack the row order r with ``A = (L @ U)[r]``.

    Examples
    --------
    >>> inverse_permutations(np.array([[1, 2, 2]]), 3)
    array([[2, 0, 1]])
    """
    orders = np.array([permutation(swaps, m) for swaps in to_host(piv)], np.intp)
    return array_module(piv).asarray(orders.reshape(len(piv), m).argsort(axis=1))
