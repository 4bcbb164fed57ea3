"""Least squares of Dask arrays."""

from __future__ import annotations

from typing import Any

import dask.array as da
import distributed
import numpy as np
from scipy.linalg import LinAlgWarning

from hetero_la.api.lstsq import (
    as_cond,
    deficient_message,
    require_driver,
    require_nonzero,
    residues_dtype,
)
from hetero_la.dask_arrays.blocks import after, apply_to_whole, host_diagonal, tuple_entry
from hetero_la.dask_arrays.inputs import (
    as_system,
    as_two_dimensional,
    empty_like,
    refuse_mixed,
    refuse_report,
    with_checked_chunks,
)
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.numerics.triangle_lstsq import square_lstsq
from hetero_la.planning.options import Precision


def lstsq(
    a: Any, b: Any, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: str | None = None,
    *, precision: Precision = "full", report: bool = False, **options: Any,
) -> tuple[da.Array, da.Array, da.Array, da.Array | None]:  # fmt: skip
    """Compute `hetero_la.lstsq` lazily: QR on all workers, and the solve with R in one task.

    That task holds R, of order min(m, n).  "gels" estimates the rank from R's diagonal alone.
    """
    driver = require_driver(lapack_driver)
    refuse_report(report)
    refuse_mixed(precision)
    a, b = as_system(a, b)
    cond = as_cond(cond, a.dtype)
    (m, n), rhs = a.shape, as_two_dimensional(b)
    options["check_finite"] = check_finite
    if driver == "gels":
        x, rest, rank, s = _solve_by_qr(a, rhs, cond, options)
    else:
        x, rest, rank, s = _solve_by_driver(a, rhs, cond, driver, options)
    dtype = residues_dtype(a)
    if (m > n and driver != "gelsy") or not n:
        sums = (abs(rest) ** 2).sum(axis=0).astype(dtype)
        meta = empty_like(a, sums.shape, dtype)
        residues = apply_to_whole(_nan_if_deficient, [sums, rank], meta, n)
    else:
        residues = da.from_array(empty_like(a, (0,), dtype))
    if b.ndim == 1:
        return x[:, 0], residues[0] if residues.size else residues, rank, s
    return x, residues, rank, s


def _solve_by_driver(
    a: da.Array, b: da.Array, cond: float, driver: str, options: dict[str, Any]
) -> tuple[Any, ...]:
    """Return X, the rest of B, the rank, and the singular values."""
    (m, n), k = a.shape, min(a.shape)
    if m >= n:
        run = LazyRun("qr", a, b, **options)
        right = run.beside[:n]
    else:
        run = LazyRun("explicit_q", with_checked_chunks(a).T, columns=m, **options)
        right = with_checked_chunks(b, "b", options["check_finite"])
    r = run.triangle((k, k), lower=False)
    given, meta = [r.T if m < n else r, right], np.empty((), object)
    found = apply_to_whole(square_lstsq, given, meta, cond, driver, lower=m < n)
    real = np.finfo(a.dtype).dtype if k else np.dtype(np.float64)
    y = tuple_entry(found, 0, empty_like(a, (k, b.shape[1]), a.dtype))
    rank = tuple_entry(found, 1, np.empty((), np.int64))
    s = None if driver == "gelsy" and k else tuple_entry(found, 2, empty_like(a, (k,), real))
    if m >= n:
        return y, run.beside[n:], rank, s
    return run.beside.conj() @ y, b[:0], rank, s


def _solve_by_qr(a: da.Array, b: da.Array, cond: float, options: dict[str, Any]) -> tuple[Any, ...]:
    m, n = a.shape
    if m >= n:
        run = LazyRun("lstsq", a, b, **options)
    else:  # rows of zeros, which the product with Q overwrites
        zeros = da.zeros_like(b, shape=(n - m, b.shape[1]))
        padded = da.concatenate([b.conj(), zeros])
        run = LazyRun("minimum_norm", with_checked_chunks(a).T, padded, **options)
    rank = apply_to_whole(_rank, [host_diagonal(run.factors)], np.empty((), np.int64), cond)
    c = after(run.beside, rank)
    return c[:n] if m >= n else c.conj(), c[n:], rank, None


def _rank(diagonal: np.ndarray, cond: float) -> Any:
    diagonal = np.abs(diagonal)
    require_nonzero(diagonal)
    rank = int((diagonal > cond * diagonal.max(initial=0)).sum())
    if rank < len(diagonal):
        because = f"entries of R's diagonal are at most {cond:.3g} of the largest"
        distributed.warn(deficient_message(rank, len(diagonal), because), LinAlgWarning)
    return np.int64(rank)


def _nan_if_deficient(sums: Any, rank: Any, n: int) -> Any:
    return sums if rank == n else sums * np.nan
