"""LU factorization of Dask arrays, solves with its factors, and determinants."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Self

import dask
import dask.array as da
import numpy as np

from hetero_la.api.determinant import SlogdetResult, det_of, sign_of, slogdet_of
from hetero_la.checks.inputs import require_pivot_type, require_pivoting, require_row_numbers
from hetero_la.dask_arrays.bands import between_diagonals
from hetero_la.dask_arrays.blocks import (
    apply_to_whole,
    blocks_text,
    host_diagonal,
    lazy_html,
    map_column_blocks,
    tuple_entry,
)
from hetero_la.dask_arrays.held_matrix import HeldMatrix
from hetero_la.dask_arrays.inputs import (
    as_columns,
    as_matrix,
    as_two_dimensional,
    empty_like,
    on_gpu,
    with_checked_chunks,
)
from hetero_la.dask_arrays.lazy_run import LazyRun, Singular
from hetero_la.dask_arrays.mixed import (
    HeldFactors,
    Refinable,
    RefinableFactors,
    factor_held,
    hold_promising,
)
from hetero_la.dask_arrays.permutations import inverse_order, permutation_matrix, row_order
from hetero_la.execution.report import MixedOutcome
from hetero_la.mixed.fallback import LowerPrecisionError
from hetero_la.mixed.precision import is_mixed, require_lower, require_solvable
from hetero_la.mixed.prediction import full_products
from hetero_la.planning.options import Pivoting, Precision
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.arrays.transfer import array_module, on_device_of_arrays, to_device_of
from hetero_la.tiles.storage.pivots import permutation
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_of_cut

#: Blocks per side of P in one process: large blocks take no more memory than small ones.  With one
#: block, Dask would turn it into a NumPy array before L and U are computed.
_P_SIDE = 2
#: The routines without and with row interchanges.
_ROUTINES = "lu_nopivot", "lu"
#: Columns from which a block of factors is taken for several tile columns.
_WIDEST_TILE = 2048


class LazyLUFactors(NamedTuple):
    """LU factors of a Dask array; unpacks as ``lu, piv``.

    Attributes
    ----------
    lu : dask.array.Array, shape (m, n)
        U, and below the diagonal L without its unit diagonal, chunked by one or more tile columns.
    piv : dask.array.Array of int32, shape (min(m, n),)
        Row i was interchanged with row ``piv[i]``, 0-based.

    Examples
    --------
    >>> import dask.array as da
    >>> import hetero_la
    >>> a = da.from_array([[1.0, 2.0], [4.0, 4.0]], chunks=1)
    >>> factors = hetero_la.lu_factor(a).persist()
    >>> factors.solve([3.0, 8.0]).compute()
    array([1., 1.])
    """

    lu: da.Array
    piv: da.Array

    @property
    def mixed(self) -> MixedOutcome | None:
        """What came of `precision="mixed"`, if that was asked for, as of the last solve."""
        return None

    def _repr_html_(self) -> str:
        return lazy_html(self)

    def __repr__(self) -> str:
        return one_line("LazyLUFactors", blocks_text(self[0]))

    def persist(self, **kwargs: Any) -> Self:
        """Compute the factors now, and keep their blocks on the workers that computed them.

        Parameters
        ----------
        **kwargs
            Arguments of `dask.persist`.
        """
        return type(self)(*dask.persist(*self, **kwargs))

    def solve(self, b: Any, trans: int = 0, check_finite: bool = True) -> da.Array:
        """Solve A X = B (`trans` 0), Aᵀ X = B (1) or Aᴴ X = B (2), lazily.

        Parameters
        ----------
        b : array, shape (m,) or (m, nrhs)
            A Dask array, or an array that can be converted to one.
        trans : {0, 1, 2}, optional
            0 for A, 1 for Aᵀ, 2 for Aᴴ.
        check_finite : bool, optional
            Whether to refuse NaNs and infinities.

        Raises
        ------
        ValueError
            If the matrix is not square, or `b` does not fit it.
        """
        return lu_solve(self, b, trans, check_finite=check_finite)


class MixedLUFactors(RefinableFactors, LazyLUFactors):
    """LU factors in the lower precision, with the matrix, by which solutions are refined.

    They are held by the workers.  Where mixed precision was given up, they are those in full
    precision, which are lazy.

    Attributes
    ----------
    lu, piv : dask.array.Array
        As of `LazyLUFactors`, of a matrix that may have been scaled.
    mixed : MixedOutcome
        What came of `precision="mixed"`, as of the last solve.

    Examples
    --------
    >>> import dask.array as da
    >>> import hetero_la
    >>> a = da.from_array([[1.0, 2.0], [4.0, 4.0]], chunks=1)
    >>> factors = hetero_la.lu_factor(a, precision="mixed")
    >>> factors.solve([3.0, 8.0]).compute(), factors.mixed.fallback
    (array([1., 1.]), 'full precision is predicted to be as fast')
    """


def lu_factor(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *, pivot: Pivoting = "partial",
    precision: Precision = "full", **options: Any,
) -> LazyLUFactors:  # fmt: skip
    """Compute `hetero_la.lu_factor` lazily: a named tuple of two Dask arrays, which can solve.

    Examples
    --------
    >>> import dask.array as da
    >>> import hetero_la
    >>> lu, piv = hetero_la.lu_factor(da.from_array([[1.0, 2.0], [4.0, 4.0]], chunks=1))
    >>> piv.compute()
    array([1, 1], dtype=int32)
    """
    pivoted = require_pivoting(pivot)
    if is_mixed(precision):
        return _factor_mixed(a, check_finite, pivoted, **options)
    run = LazyRun(
        _ROUTINES[pivoted], as_matrix(a), check_finite=check_finite,
        singular=Singular.WARNED_OF if pivoted else Singular.NOT_PIVOTED, **options,
    )  # fmt: skip
    return _factors_of(run)


def _factors_of(run: LazyRun) -> LazyLUFactors:
    return LazyLUFactors(run.factors, run.vector("ipiv"))


def _factor_mixed(a: Any, check_finite: bool, pivoted: bool, **options: Any) -> MixedLUFactors:
    """Factor a square matrix in the lower precision, and keep it beside the factors."""
    a = as_matrix(a)
    require_lower(a.dtype)
    require_solvable(a)
    matrix = with_checked_chunks(a, "a", check_finite)
    full = {"pivot": "partial" if pivoted else "none", **options, **full_products(options)}

    def in_full() -> LazyLUFactors:
        return lu_factor(matrix, check_finite=False, **full)

    try:
        held = hold_promising(matrix, _ROUTINES[pivoted], 1, options)
        matrix = held.blocks
        found, lower = factor_lu(held, pivoted=pivoted, **options)
    except LowerPrecisionError as failed:
        factors = MixedLUFactors(*in_full())
        factors._outcome = failed.outcome(a.dtype)
        return factors
    factors = MixedLUFactors(*found)
    factors._refinable = Refinable(lower, in_full, lu_solve)
    factors._outcome = MixedOutcome(found.lu.dtype.name)
    return factors


def factor_lu(
    held: HeldMatrix, *, pivoted: bool, **options: Any
) -> tuple[LazyLUFactors, HeldFactors]:
    """Factor a held matrix in the lower precision; see `factor_held`."""
    singular = Singular.RETURNED if pivoted else Singular.NOT_PIVOTED
    solve = partial(lu_solve, check_finite=False)
    return factor_held(held, _ROUTINES[pivoted], _factors_of, solve, singular=singular, **options)


def lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True,
    p_indices: bool = False, **options: Any,
) -> tuple[da.Array, ...]:  # fmt: skip
    """Compute `hetero_la.lu` lazily."""
    a = as_matrix(a)
    run = LazyRun("lu", a, check_finite=check_finite, **options)
    m, n = a.shape
    k = min(m, n)
    upper = run.triangle((k, n), lower=False)
    number = m == n == 1  # for which SciPy returns other dtypes
    dtype = np.dtype(np.int64 if number else np.int32)
    like = empty_like(a, (m,), dtype)
    indices = apply_to_whole(row_order, [run.vector("ipiv")], like, m, dtype, on_gpu(a))
    if permute_l:
        return map_column_blocks(_permuted_lower, run.factors, indices, shape=(m, k)), upper
    lower = run.triangle((m, k), lower=True, ones=True)
    if p_indices:
        return indices, lower, upper
    dtype = a.dtype if number else np.finfo(a.dtype).dtype
    return permutation_matrix(indices, run.row_chunks(m, _P_SIDE), dtype), lower, upper


@on_device_of_arrays
def _permuted_lower(block: Any, start: int, stop: int, indices: Any) -> Any:
    xp = array_module(block)
    lower = between_diagonals(block[:, : stop - start], -start, above=-1)
    lower[xp.arange(start, stop), xp.arange(stop - start)] = 1
    return lower[to_device_of(lower, indices)]


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0, overwrite_b: bool = False,
    check_finite: bool = True,
) -> da.Array:  # fmt: skip
    """Compute `hetero_la.lu_solve` lazily, on workers that each load their part of the factors."""
    if trans not in (0, 1, 2):
        raise ValueError(f"trans must be 0, 1 or 2, not {trans!r}")
    if isinstance(lu_and_piv, MixedLUFactors) and lu_and_piv._refinable is not None:
        x, lu_and_piv._outcome = lu_and_piv._refinable.solve(b, trans, check_finite=check_finite)
        return x
    packed = as_matrix(lu_and_piv[0], "lu", square=True)
    piv = da.asarray(lu_and_piv[1])
    require_pivot_type(piv, len(packed))
    b = as_columns(packed, b, "factors")
    dtype = np.result_type(packed.dtype, b.dtype)
    rhs = as_two_dimensional(b.astype(dtype))
    options: dict[str, Any] = {
        "nb": tiles_of(packed), "check_finite": check_finite, "names": ("lu", "b")
    }  # fmt: skip
    packed, piv = packed.astype(dtype), piv.rechunk(-1)
    if trans == 0:
        ordered = map_column_blocks(_permute_rows, with_checked_chunks(rhs, "b"), piv, False)
        x = LazyRun("lu_solve", packed, ordered, **options).beside
    else:
        # A^T is conj(A^H).
        turn = da.conj if trans == 1 and dtype.kind == "c" else da.asarray
        x = LazyRun("lu_solve_adjoint", packed, turn(rhs), **options).beside
        x = turn(map_column_blocks(_permute_rows, x, piv, True))
    return x[:, 0] if b.ndim == 1 else x


def tiles_of(packed: da.Array) -> TileSizes | None:
    """Return the tile sizes of factors chunked by columns, so that no block has to move."""
    rows, columns = packed.chunks
    cut = len(rows) == 1 and min(columns) and max(columns) <= _WIDEST_TILE
    return sizes_of_cut(columns) if cut else None


@on_device_of_arrays
def _permute_rows(block: Any, start: int, stop: int, piv: Any, back: bool) -> Any:
    require_row_numbers(piv, len(block))
    order = (inverse_order if back else permutation)(piv, len(block))
    return block[array_module(block).asarray(order)]


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True, **options: Any) -> da.Array:
    """Compute `hetero_la.det` lazily: an array of one number."""
    a = as_matrix(a, square=True)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    given = _diagonal_and_piv(a, check_finite=check_finite, **options)
    return apply_to_whole(_det, given, np.empty((), wide))


def slogdet(a: Any, check_finite: bool = True, **options: Any) -> Any:
    """Compute `hetero_la.slogdet` lazily: a named tuple of two arrays of one number."""
    a = as_matrix(a, square=True)
    given = _diagonal_and_piv(a, check_finite=check_finite, **options)
    found, like = apply_to_whole(_slogdet, given, np.empty((), object)), np.empty((), a.dtype)
    return SlogdetResult(tuple_entry(found, 0, like), tuple_entry(found, 1, like.real))


def _diagonal_and_piv(a: da.Array, **options: Any) -> tuple[da.Array, da.Array]:
    run = LazyRun("lu", a, **options)
    return host_diagonal(run.factors), run.vector("ipiv")


def _det(diagonal: np.ndarray, piv: Any) -> Any:
    return det_of(diagonal, sign_of(piv))


def _slogdet(diagonal: np.ndarray, piv: Any) -> Any:
    return slogdet_of(diagonal, sign_of(piv))
