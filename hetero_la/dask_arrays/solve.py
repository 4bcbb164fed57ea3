"""Linear systems and inverses of Dask arrays."""

from __future__ import annotations

from typing import Any

import dask.array as da

from hetero_la.api.structure import (
    INV_NAMES,
    Structure,
    refuse_complex,
    require_nonzero_diagonal,
    structure_of,
)
from hetero_la.checks.inputs import require_pivoting
from hetero_la.dask_arrays.bands import band
from hetero_la.dask_arrays.blocks import after
from hetero_la.dask_arrays.cholesky import solve_positive
from hetero_la.dask_arrays.inputs import (
    as_matrix,
    as_system,
    as_two_dimensional,
    transpose_of,
    with_checked_chunks,
)
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.dask_arrays.status import Singular
from hetero_la.execution.executor_choice import require_options
from hetero_la.planning.options import Pivoting

_TRIANGULAR = (Structure.UPPER, Structure.LOWER)
#: Structures of which a run loads only a part of the matrix, or a matrix derived from it.
_READ_IN_PART = (
    *_TRIANGULAR, Structure.DIAGONAL, Structure.TRIDIAGONAL, Structure.SYMMETRIC,
    Structure.HERMITIAN,
)  # fmt: skip


def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: str | None = None, transposed: bool = False, *,
    pivot: Pivoting = "partial", client: Any = None, **options: Any,
) -> da.Array:  # fmt: skip
    """Compute `hetero_la.solve` lazily, without refinement and without a condition estimate.

    Both need the matrix or its factors once X is known: a Dask array would have to be kept, or
    computed again.  Instead, a warning is given if the diagonal of the factor shows that the
    matrix is singular to working precision.
    """
    structure, pivoted = structure_of(assume_a), require_pivoting(pivot)
    a, b = as_system(a, b, square=True)
    if structure in _READ_IN_PART:
        a, b = with_checked_chunks(a, "a", check_finite), with_checked_chunks(b, "b", check_finite)
    else:
        options["check_finite"] = check_finite
    if transposed:
        refuse_complex(a.dtype)
    rhs = as_two_dimensional(b)
    x = _solve_structured(a, rhs, structure, lower, transposed, client, options, pivoted)
    return x[:, 0] if b.ndim == 1 else x


def inv(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *,
    assume_a: str | None = None, lower: bool = False, client: Any = None, **options: Any,
) -> da.Array:  # fmt: skip
    """Compute `hetero_la.inv` lazily."""
    structure = structure_of(assume_a, INV_NAMES)
    a = as_matrix(a, square=True)
    if structure in _READ_IN_PART:
        a = with_checked_chunks(a, "a", check_finite)
    else:
        options["check_finite"] = check_finite
    if structure is Structure.POSITIVE:
        return solve_positive(a, None, lower=lower, client=client, **options)
    if structure in (*_TRIANGULAR, Structure.DIAGONAL):
        identity = band(da.ones_like(a), below=0, above=0)
        return _solve_structured(a, identity, structure, lower, False, client, options)
    a = _full_matrix(a, structure, lower)
    run = LazyRun(
        "inverse", a, columns=len(a), singular=Singular.REFUSED, solves=True, client=client,
        **options,
    )  # fmt: skip
    return run.beside


def _solve_structured(
    a: da.Array, b: da.Array, structure: Structure, lower: bool, transposed: bool, client: Any,
    options: dict[str, Any], pivoted: bool = True,
) -> da.Array:  # fmt: skip
    if structure is Structure.POSITIVE:
        return solve_positive(a, b, lower=lower, client=client, **options)
    if structure is Structure.DIAGONAL:
        require_options(options, client)
        return b / _check_nonzero(da.diagonal(a))[:, None]
    if structure in _TRIANGULAR:
        return _by_substitution(a, b, structure, transposed, client, options)
    a = _full_matrix(a, structure, lower)
    matrix = transpose_of(a, "a") if transposed else a
    run = LazyRun(
        "solve" if pivoted else "solve_nopivot", matrix, b,
        singular=Singular.REFUSED if pivoted else Singular.NOT_PIVOTED, solves=True,
        client=client, **options,
    )  # fmt: skip
    return run.beside


def _full_matrix(a: da.Array, structure: Structure, lower: bool) -> da.Array:
    """Return the full matrix, completed from the part that its structure names."""
    if structure is Structure.TRIDIAGONAL:
        return band(a, below=1, above=1)
    if structure not in (Structure.SYMMETRIC, Structure.HERMITIAN):
        return a
    inner = band(a, above=-1) if lower else band(a, below=-1)
    middle = band(a, below=0, above=0)
    if structure is Structure.HERMITIAN:
        return inner + inner.conj().T + middle.real
    return inner + inner.T + middle


def _by_substitution(
    a: da.Array, b: da.Array, structure: Structure, transposed: bool, client: Any,
    options: dict[str, Any],
) -> da.Array:  # fmt: skip
    """Solve with a triangle, used as U of `lu_solve`; of a lower one the adjoint is U."""
    upper = structure is Structure.UPPER
    factor = band(a if upper else a.T.conj(), below=0)
    routine = "lu_solve" if upper != transposed else "lu_solve_adjoint"
    checked = after(factor, _check_nonzero(da.diagonal(factor)).all())
    return LazyRun(routine, checked, b, client=client, **options).beside


def _check_nonzero(entries: da.Array) -> da.Array:
    return entries.map_blocks(require_nonzero_diagonal, dtype=entries.dtype, meta=entries._meta)
