"""Least squares of Dask arrays."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import distributed
import numpy as np
from scipy.linalg import LinAlgWarning

from hetero_la.api.lstsq import (
    as_cond,
    deficient_message,
    require_driver,
    require_gels,
    require_nonzero,
    residues_dtype,
)
from hetero_la.dask_arrays.blocks import after, apply_to_whole, host_diagonal, tuple_entry
from hetero_la.dask_arrays.held_matrix import HeldMatrix, placed
from hetero_la.dask_arrays.inputs import (
    as_system,
    as_two_dimensional,
    empty_like,
    refuse_report,
    with_checked_chunks,
)
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.dask_arrays.mixed import (
    hold_promising,
    lower_run,
    report_of,
    require_predicted_condition,
)
from hetero_la.execution.report import MixedOutcome
from hetero_la.mixed.equilibration import column_equilibration
from hetero_la.mixed.fallback import LowerPrecisionError, give_up
from hetero_la.mixed.least_squares import Products, corrections, refined_tall, refined_wide
from hetero_la.mixed.precision import is_mixed, lower_dtype, require_lower
from hetero_la.mixed.prediction import full_products
from hetero_la.numerics.triangle_lstsq import square_lstsq
from hetero_la.planning.options import Precision
from hetero_la.planning.plan import Plan
from hetero_la.tiles.arrays.counted import a_matrix


def lstsq(
    a: Any, b: Any, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: str | None = None,
    *, precision: Precision = "full", report: bool = False, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Compute `hetero_la.lstsq` lazily: QR on all workers, and the solve with R in one task.

    That task holds R, of order min(m, n).  "gels" estimates the rank from R's diagonal alone.
    """
    mixed = is_mixed(precision)
    driver = require_driver("gels" if mixed and lapack_driver is None else lapack_driver)
    a, b = as_system(a, b)
    cond = as_cond(cond, a.dtype)
    if mixed:
        require_lower(a.dtype)
        require_gels(driver)
        *found, made = _lstsq_mixed(a, b, cond, check_finite, **options)
        return (*found, made) if report else tuple(found)
    refuse_report(report)
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


def _lstsq_mixed(
    a: da.Array, b: da.Array, cond: float, check_finite: bool, **options: Any
) -> tuple[Any, ...]:
    """Solve at once in mixed precision, or where that fails lazily in full precision."""
    began, (m, n) = time.perf_counter(), a.shape
    a, b = (with_checked_chunks(one, i, check_finite) for one, i in ((a, "a"), (b, "b")))
    title = f"least squares of {a_matrix(m, n, a.dtype.name)}"
    full = {**options, **full_products(options)}
    tall = a if m >= n else a.T
    try:
        nrhs = b.size // max(m, 1)
        held = hold_promising(tall, "qr", nrhs, options)
        tall = held.blocks
        x, left, rcond, plan, outcome = _refined(held, m >= n, b, cond, options)
    except LowerPrecisionError as failed:
        made = report_of(
            title, began, LazyRun("qr", tall, **full).plan, a.dtype, failed.outcome(a.dtype)
        )
        found = lstsq(
            tall if m >= n else tall.T, b, cond, check_finite=False, lapack_driver="gels", **full
        )
        return (*found, made)
    residues = (np.abs(left) ** 2).sum(axis=0) if m > n else np.empty(0)
    residues = residues[0] if b.ndim == 1 and m > n else residues
    made = replace(report_of(title, began, plan, a.dtype, outcome), rank=min(m, n), rcond=rcond)
    x = x[:, 0] if b.ndim == 1 else x
    residues = np.asarray(residues, residues_dtype(a))
    rank = da.from_array(np.asarray(np.int64(min(m, n))))
    return placed(x, b), placed(residues, b), rank, None, made


def _refined(
    tall: HeldMatrix, is_tall: bool, b: da.Array, cond: float, options: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, float, Plan, MixedOutcome]:
    """Return X, its residual, 1 / condition, the plan of QR, and how X was found."""
    computing = tall.computing
    try:
        scaling = column_equilibration(tall.blocks, tall.largest)
    except OverflowError as error:
        give_up(str(error))
    lower = tall.lowered(lower_dtype(b.dtype), scaling)
    run = lower_run("qr", lower, options)
    rhs = computing.host(b)[0].reshape(len(b), -1)
    require_predicted_condition(tall, lower, options.get("client"))
    k = tall.shape[1]
    (r,) = computing.host(run.triangle((k, k), lower=False))
    correct, rcond = corrections(r, scaling, cond)
    if is_tall:
        products = Products(tall.times, partial(tall.times, trans=2))
        refined = refined_tall(products, tall.shape, tall.frobenius(), rhs, correct)
    else:  # A^H R is the conjugate of A^T conj(R), and A^T is held
        products = Products(partial(tall.times, trans=1), lambda r: tall.times(r.conj()).conj())
        refined = refined_wide(products, tall.norms(None)[1], rhs, correct)
    outcome = MixedOutcome(r.dtype.name, refined.steps, refined.inner_steps)
    return refined.x, rhs - products.times(refined.x), rcond, run.plan, outcome


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
