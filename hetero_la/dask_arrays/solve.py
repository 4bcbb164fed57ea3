"""Linear systems and inverses of Dask arrays."""

from __future__ import annotations

import time
from typing import Any

import dask.array as da

from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.structure import (
    INV_NAMES,
    Structure,
    refuse_complex,
    require_nonzero_diagonal,
    structure_of,
)
from hetero_la.checks.inputs import require_pivoting
from hetero_la.dask_arrays.bands import band, from_triangle
from hetero_la.dask_arrays.blocks import after
from hetero_la.dask_arrays.cholesky import factor_cholesky, solve_positive
from hetero_la.dask_arrays.inputs import (
    as_matrix,
    as_system,
    as_two_dimensional,
    refuse_report,
    with_checked_chunks,
)
from hetero_la.dask_arrays.lazy_run import LazyRun, Singular
from hetero_la.dask_arrays.lu import factor_lu
from hetero_la.dask_arrays.mixed import hold_promising, refine_held, report_of
from hetero_la.execution.executor_choice import require_options
from hetero_la.mixed.fallback import LowerPrecisionError
from hetero_la.mixed.precision import is_mixed, require_lower
from hetero_la.mixed.prediction import full_products
from hetero_la.planning.options import Pivoting, Precision
from hetero_la.tiles.arrays.counted import a_matrix

_TRIANGULAR = (Structure.UPPER, Structure.LOWER)
#: Structures of which a run loads only a part of the matrix, or a matrix derived from it.
_READ_IN_PART = (
    *_TRIANGULAR, Structure.DIAGONAL, Structure.TRIDIAGONAL, Structure.SYMMETRIC,
    Structure.HERMITIAN,
)  # fmt: skip


def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: str | None = None, transposed: bool = False, *,
    pivot: Pivoting = "partial", precision: Precision = "full", report: bool = False,
    **options: Any,
) -> da.Array:  # fmt: skip
    """Compute `hetero_la.solve` lazily, without refinement and without a condition estimate.

    Both need the matrix or its factors once X is known: a Dask array would have to be kept, or
    computed again.  Instead, a warning is given if the diagonal of the factor shows that the
    matrix is singular to working precision.
    """
    structure, pivoted = structure_of(assume_a), require_pivoting(pivot)
    mixed = is_mixed(precision)
    if not mixed:
        refuse_report(report)
    a, b = as_system(a, b, square=True)
    if transposed:
        refuse_complex(a.dtype)
    if mixed:
        require_lower(a.dtype)
    arguments = check_finite, lower, transposed, pivoted
    if mixed and structure not in (*_TRIANGULAR, Structure.DIAGONAL):
        x, made = _solve_mixed(a, b, structure, *arguments, **options)
        return (x, made) if report else x
    refuse_report(report)
    x = _solve(a, as_two_dimensional(b), structure, *arguments, **options)
    return x[:, 0] if b.ndim == 1 else x


def _solve_mixed(
    a: da.Array, b: da.Array, structure: Structure, check_finite: bool, lower: bool,
    transposed: bool, pivoted: bool, **options: Any,
) -> tuple[da.Array, AccuracyReport]:  # fmt: skip
    """Solve at once in mixed precision, or where that fails lazily in full precision."""
    began, positive = time.perf_counter(), structure is Structure.POSITIVE
    a, b = (with_checked_chunks(one, n, check_finite) for one, n in ((a, "a"), (b, "b")))
    known = Structure.HERMITIAN if positive else structure
    matrix = _full_matrix(a.T if transposed else a, known, lower)
    routine, nrhs = "cholesky" if positive else "lu", b.size // max(len(b), 1)
    try:
        held = hold_promising(matrix, routine, nrhs, options)
        matrix = held.blocks
        if positive:
            _, factors = factor_cholesky(held, **options)
        else:
            _, factors = factor_lu(held, pivoted=pivoted, **options)
        x, outcome, find_error = refine_held(factors, b)
        plan, error = factors.plan, find_error()
    except LowerPrecisionError as failed:
        outcome, error = failed.outcome(a.dtype), None
        full = {**options, **full_products(options)}
        plan = LazyRun(routine, matrix, **full).plan
        general, rhs = structure if positive else Structure.GENERAL, as_two_dimensional(b)
        x = _solve(matrix, rhs, general, False, True, pivoted=pivoted, **full)
        x = x[:, 0] if b.ndim == 1 else x
    title = f"solve of {a_matrix(len(a), len(a), a.dtype.name)}"
    return x, report_of(title, began, plan, a.dtype, outcome, error)


def inv(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *,
    assume_a: str | None = None, lower: bool = False, **options: Any,
) -> da.Array:  # fmt: skip
    """Compute `hetero_la.inv` lazily."""
    structure = structure_of(assume_a, INV_NAMES)
    return _solve(as_matrix(a, square=True), None, structure, check_finite, lower, **options)


def _solve(
    a: da.Array, b: da.Array | None, structure: Structure, check_finite: bool, lower: bool,
    transposed: bool = False, pivoted: bool = True, **options: Any,
) -> da.Array:  # fmt: skip
    """Solve A X = B, or return the inverse if `b` is None."""
    if structure in _READ_IN_PART:
        a = with_checked_chunks(a, "a", check_finite)
        b = b if b is None else with_checked_chunks(b, "b", check_finite)
    else:
        options["check_finite"] = check_finite
    if structure is Structure.POSITIVE:
        return solve_positive(a, b, lower=lower, **options)
    if b is None and structure in (*_TRIANGULAR, Structure.DIAGONAL):
        b = band(da.ones_like(a), below=0, above=0)
    if structure is Structure.DIAGONAL:
        client = options.pop("client", None)
        require_options(options, client)
        return b / _check_nonzero(da.diagonal(a))[:, None]
    if structure in _TRIANGULAR:  # used as U of `lu_solve`; of a lower one the adjoint is U
        upper = structure is Structure.UPPER
        factor = band(a if upper else a.T.conj(), below=0)
        checked = after(factor, _check_nonzero(da.diagonal(factor)).all())
        routine = "lu_solve" if upper != transposed else "lu_solve_adjoint"
        return LazyRun(routine, checked, b, **options).beside
    a = _full_matrix(a, structure, lower)
    return LazyRun(
        "inverse" if b is None else "solve" if pivoted else "solve_nopivot",
        with_checked_chunks(a).T if transposed else a, b, columns=len(a),
        singular=Singular.REFUSED if pivoted else Singular.NOT_PIVOTED, solves=True, **options,
    ).beside  # fmt: skip


def _full_matrix(a: da.Array, structure: Structure, lower: bool) -> da.Array:
    """Return the full matrix, completed from the part that its structure names."""
    if structure is Structure.TRIDIAGONAL:
        return band(a, below=1, above=1)
    if structure not in (Structure.SYMMETRIC, Structure.HERMITIAN):
        return a
    return from_triangle(a, lower, conjugate=structure is Structure.HERMITIAN)


def _check_nonzero(entries: da.Array) -> da.Array:
    return entries.map_blocks(require_nonzero_diagonal, dtype=entries.dtype, meta=entries._meta)
