"""Plain versions of what studies measure, in NumPy."""

from __future__ import annotations

import numpy as np


def lu_by_columns(a: np.ndarray) -> np.ndarray:
    """Return L and U of a matrix without pivoting, packed, in the type of the matrix.

    Examples
    --------
    >>> lu_by_columns(np.array([[2.0, 4.0], [1.0, 5.0]]))
    array([[2. , 4. ],
           [0.5, 3. ]])
    """
    lu = a.copy()
    for k in range(len(lu)):
        lu[k + 1 :, k] /= lu[k, k]
        lu[k + 1 :, k + 1 :] -= lu[k + 1 :, k, None] * lu[k, k + 1 :]
    return lu
