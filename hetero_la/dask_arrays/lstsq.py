"""Least squares of Dask arrays by QR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import distributed
import numpy as np
from scipy.linalg import LinAlgWarning

from hetero_la._lstsq import deficient_message, require_lstsq_options, require_nonzero
from hetero_la.dask_arrays.blocks import diagonal, from_all, over_columns
from hetero_la.dask_arrays.inputs import as_system, as_two_dimensional, empty_like, transpose_of
from hetero_la.dask_arrays.runs import LazyRun
from hetero_la.tiles.transfer import to_host


def lstsq(
    a: Any, b: Any, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: str | None = None, *,
    client: Any = None, **options: Any,
) -> tuple[da.Array, da.Array, da.Array, None]:  # fmt: skip
    """`hetero_la.lstsq`, lazily; the rank is told by the diagonal of R alone.

    The residues are there for m > n whatever the rank is: nobody knows it beforehand.
    """
    require_lstsq_options(cond, lapack_driver)
    a, b = as_system(a, b)
    options["check_finite"] = check_finite
    (m, n), rhs = a.shape, as_two_dimensional(b)
    if m >= n:
        run = LazyRun("lstsq", a, rhs, client=client, **options)
    else:  # rows of zeros, which the product with Q then fills
        zeros = da.zeros_like(rhs, shape=(n - m, rhs.shape[1]))
        padded = da.concatenate([rhs.conj(), zeros])
        run = LazyRun("minimum_norm", transpose_of(a, "a"), padded, client=client, **options)
    limit = float(np.finfo(a.dtype).eps) if cond is None else cond
    rank = from_all(_rank, [diagonal(run.factors)], np.empty((), np.int64), limit)
    c = over_columns(_once_known, run.beside, rank)
    x = c[:n] if m >= n else c.conj()
    if m > n:
        residues = (abs(c[n:]) ** 2).sum(axis=0)
    else:
        residues = da.from_array(empty_like(a, (0,), np.finfo(a.dtype).dtype))
    if b.ndim == 1:
        return x[:, 0], residues[0] if m > n else residues, rank, None
    return x, residues, rank, None


def _rank(diagonals: Sequence[Any], cond: float) -> Any:
    diagonal = np.abs(np.concatenate([to_host(part) for part in diagonals]))
    require_nonzero(diagonal)
    rank = int((diagonal > cond * diagonal.max(initial=0)).sum())
    if rank < len(diagonal):
        because = f"entries of R's diagonal are at most {cond:.3g} of the largest"
        distributed.warn(deficient_message(rank, len(diagonal), because), LinAlgWarning)
    return np.int64(rank)


def _once_known(block: Any, start: int, stop: int, rank: Any) -> Any:
    return block
