"""Corrections from factors in the lower precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_la.mixed.equilibration import Equilibration, times_rows
from hetero_la.tiles.arrays.transfer import array_module

#: Solves for columns in their own precision, with A^H for `trans` = 2.
LowerSolve = Callable[[Any, int], Any]


def correction(
    solve: LowerSolve, dtype: Any, scaling: Equilibration | None, r: Any, trans: int = 0
) -> Any:
    """Return about A^-1 R, or A^-H R, in the precision of R, from factors in the lower one.

    Each column of R is divided by its largest entry first, as residuals become smaller than what
    the lower precision can represent.

    Parameters
    ----------
    solve : callable
        Solves with the factors of the scaled matrix.
    dtype : dtype
        The precision of the solve.
    scaling : Equilibration or None
        How the matrix was scaled.
    r : array, shape (n, nrhs)
        Right-hand sides.
    trans : {0, 2}, optional
        Whether to solve with A or A^H.

    Examples
    --------
    >>> r = np.array([[2e-300], [4e-300]])
    >>> correction(lambda b, trans: b / 2, np.float32, None, r).ravel()
    array([1.e-300, 2.e-300])
    """
    rows, columns = (None, None) if scaling is None else scaling
    if trans == 2:
        rows, columns = columns, rows
    xp, scaled = array_module(r), times_rows(r, rows)
    size = abs(scaled).max(axis=0)
    size = xp.where(size > 0, size, 1)
    with np.errstate(all="ignore"):  # what is not finite shows in the residual
        found = solve(xp.asfortranarray((scaled / size).astype(dtype)), trans)
        return times_rows(found.astype(r.dtype) * size, columns)
