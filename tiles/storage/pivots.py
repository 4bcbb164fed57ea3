"""Row interchanges."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import to_host


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
