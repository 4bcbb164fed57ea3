"""Linear systems of Dask arrays."""

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
from hetero_la.dask_arrays.bands import band
from hetero_la.dask_arrays.blocks import diagonal, over_columns
from hetero_la.dask_arrays.cholesky import solve_positive
from hetero_la.dask_arrays.inputs import (
    as_matrix,
    as_system,
    as_two_dimensional,
    checked,
    transpose_of,
)
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.dask_arrays.status import Singular
from hetero_la.execution.executor_choice import require_options

_TRIANGULAR = (Structure.UPPER, Structure.LOWER)
#: Of these a run loads only a part, or something made of it.
_READ_IN_PART = (
    *_TRIANGULAR, Structure.DIAGONAL, Structure.TRIDIAGONAL, Structure.SYMMETRIC,
    Structure.HERMITIAN,
)  # fmt: skip


def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: str | None = None, transposed: bool = False, *,
    client: Any = None, **options: Any,
) -> da.Array:  # fmt: skip
    """`hetero_la.solve`, lazily; without refinement and without an estimate of the condition.

    Both need the matrix, or its factors, when the answer is there: with a Dask array, either
    would have to be kept, or made again.  Instead, one warns if the diagonal of the factor
    shows that the matrix is singular to working precision.
    """
    structure = structure_of(assume_a)
    a, b = as_system(a, b, square=True)
    if structure in _READ_IN_PART:
        a, b = checked(a, "a", check_finite), checked(b, "b", check_finite)
    else:
        options["check_finite"] = check_finite
    if transposed:
        refuse_complex(a.dtype)
    x = _solved(a, as_two_dimensional(b), structure, lower, transposed, client, options)
    return x[:, 0] if b.ndim == 1 else x


def inv(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *,
    assume_a: str | None = None, lower: bool = False, client: Any = None, **options: Any,
) -> da.Array:  # fmt: skip
    """`hetero_la.inv`, lazily."""
    structure = structure_of(assume_a, INV_NAMES)
    a = as_matrix(a, square=True)
    if structure in _READ_IN_PART:
        a = checked(a, "a", check_finite)
    else:
        options["check_finite"] = check_finite
    if structure is Structure.POSITIVE:
        return solve_positive(a, None, lower=lower, client=client, **options)
    if structure in (*_TRIANGULAR, Structure.DIAGONAL):
        identity = band(da.ones_like(a), below=0, above=0)
        return _solved(a, identity, structure, lower, False, client, options)
    a = _completed(a, structure, lower)
    run = LazyRun(
        "inverse", a, columns=len(a), singular=Singular.REFUSED, solves=True, client=client,
        **options,
    )  # fmt: skip
    return run.beside


def _solved(
    a: da.Array, b: da.Array, structure: Structure, lower: bool, transposed: bool, client: Any,
    options: dict[str, Any],
) -> da.Array:  # fmt: skip
    if structure is Structure.POSITIVE:
        return solve_positive(a, b, lower=lower, client=client, **options)
    if structure is Structure.DIAGONAL:
        require_options(options, client)
        return b / _nonzero(da.diagonal(a))[:, None]
    if structure in _TRIANGULAR:
        return _by_substitution(a, b, structure, transposed, client, options)
    a = _completed(a, structure, lower)
    matrix = transpose_of(a, "a") if transposed else a
    run = LazyRun(
        "solve", matrix, b, singular=Singular.REFUSED, solves=True, client=client, **options
    )
    return run.beside


def _completed(a: da.Array, structure: Structure, lower: bool) -> da.Array:
    """The matrix in full, from what its structure lets one read."""
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
    """A triangle is its own U, and the adjoint of a lower one is an upper one."""
    upper = structure is Structure.UPPER
    factor = band(a if upper else a.T.conj(), below=0)
    routine = "lu_solve" if upper != transposed else "lu_solve_adjoint"
    checked = over_columns(_unless_singular, factor, _nonzero(diagonal(factor)).all())
    return LazyRun(routine, checked, b, client=client, **options).beside


def _nonzero(entries: da.Array) -> da.Array:
    return entries.map_blocks(require_nonzero_diagonal, dtype=entries.dtype, meta=entries._meta)


def _unless_singular(block: Any, start: int, stop: int, verdict: Any) -> Any:
    return block
