"""Cholesky factorization of Dask arrays, and solves with its factor."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import dask
import dask.array as da
import numpy as np

from hetero_la.dask_arrays.bands import from_triangle
from hetero_la.dask_arrays.blocks import blocks_text, lazy_html
from hetero_la.dask_arrays.held_matrix import HeldMatrix
from hetero_la.dask_arrays.inputs import (
    as_columns,
    as_matrix,
    as_two_dimensional,
    with_checked_chunks,
)
from hetero_la.dask_arrays.lazy_run import LazyRun, Singular
from hetero_la.dask_arrays.lu import tiles_of
from hetero_la.dask_arrays.mixed import (
    HeldFactors,
    Refinable,
    RefinableFactors,
    factor_held,
    hold_promising,
)
from hetero_la.execution.report import MixedOutcome
from hetero_la.mixed.fallback import LowerPrecisionError
from hetero_la.mixed.precision import is_mixed, require_lower
from hetero_la.mixed.prediction import full_products
from hetero_la.planning.options import Precision
from hetero_la.tiles.arrays.displayed import one_line


class LazyCholeskyFactors(NamedTuple):
    """Cholesky factor of a Dask array; unpacks as ``c, lower``.

    Attributes
    ----------
    c : dask.array.Array, shape (n, n)
        The factor in one triangle; the other triangle is undefined.
    lower : bool
        Whether the factor is the lower triangle.

    Examples
    --------
    >>> import dask.array as da
    >>> import hetero_la
    >>> a = da.from_array([[4.0, 2.0], [2.0, 2.0]], chunks=1)
    >>> hetero_la.cho_factor(a).persist().solve([6.0, 4.0]).compute()
    array([1., 1.])
    """

    c: da.Array
    lower: bool

    @property
    def mixed(self) -> MixedOutcome | None:
        """What came of `precision="mixed"`, if that was asked for, as of the last solve."""
        return None

    def _repr_html_(self) -> str:
        return lazy_html(self)

    def __repr__(self) -> str:
        return one_line("LazyCholeskyFactors", blocks_text(self[0]))

    def persist(self, **kwargs: Any) -> Self:
        """Compute the factor now, and keep its blocks on the workers that computed them.

        Parameters
        ----------
        **kwargs
            Arguments of `dask.persist`.
        """
        return type(self)(*dask.persist(*self, **kwargs))

    def solve(self, b: Any, check_finite: bool = True) -> da.Array:
        """Solve A X = B, lazily.

        Parameters
        ----------
        b : array, shape (n,) or (n, nrhs)
            A Dask array, or an array that can be converted to one.
        check_finite : bool, optional
            Whether to refuse NaNs and infinities.

        Raises
        ------
        ValueError
            If `b` does not fit the matrix.
        """
        return cho_solve(self, b, check_finite=check_finite)


class MixedCholeskyFactors(RefinableFactors, LazyCholeskyFactors):
    """A Cholesky factor in the lower precision, with the matrix, by which solutions are refined.

    The attributes are those of `LazyCholeskyFactors`, and `mixed`, which says what came of
    `precision="mixed"`, as of the last solve.

    Examples
    --------
    >>> import dask.array as da
    >>> import hetero_la
    >>> a = da.from_array([[4.0, 2.0], [2.0, 2.0]], chunks=1)
    >>> factors = hetero_la.cho_factor(a, precision="mixed")
    >>> factors.solve([6.0, 4.0]).compute(), factors.mixed.fallback
    (array([1., 1.]), 'full precision is predicted to be as fast')
    """


def cholesky(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True,
    **options: Any,
) -> da.Array:  # fmt: skip
    """Compute `hetero_la.cholesky` lazily."""
    run = _run(a, lower, check_finite=check_finite, **options)
    return run.triangle(a.shape, lower=True, turned=not lower)


def cho_factor(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *,
    precision: Precision = "full", **options: Any,
) -> LazyCholeskyFactors:  # fmt: skip
    """Compute `hetero_la.cho_factor` lazily: a named tuple of a Dask array and `lower`."""
    if is_mixed(precision):
        return _factor_mixed(a, lower, check_finite, **options)
    return _factors_of(_run(a, lower, check_finite=check_finite, **options), lower)


def _factors_of(run: LazyRun, lower: bool = True) -> LazyCholeskyFactors:
    return LazyCholeskyFactors(run.factors if lower else run.factors.T, lower)


def _factor_mixed(a: Any, lower: bool, check_finite: bool, **options: Any) -> MixedCholeskyFactors:
    """Factor a matrix in the lower precision, and keep it beside the factor."""
    a = as_matrix(a, square=True)
    require_lower(a.dtype)
    whole = from_triangle(with_checked_chunks(a, "a", check_finite), lower, conjugate=True)
    full = {**options, **full_products(options)}

    def in_full() -> LazyCholeskyFactors:
        return cho_factor(whole, lower, check_finite=False, **full)

    try:
        held = hold_promising(whole, "cholesky", 1, options)
        whole = held.blocks
        found, factors_with = factor_cholesky(held, **options)
    except LowerPrecisionError as failed:
        factors = MixedCholeskyFactors(*in_full())
        factors._outcome = failed.outcome(a.dtype)
        return factors
    c = found.c if lower else found.c.T.conj()
    factors = MixedCholeskyFactors(c, lower)
    factors._refinable = Refinable(factors_with, in_full, cho_solve)
    factors._outcome = MixedOutcome(c.dtype.name)
    return factors


def factor_cholesky(held: HeldMatrix, **options: Any) -> tuple[LazyCholeskyFactors, HeldFactors]:
    """Factor a held matrix in the lower precision; see `factor_held`."""
    return factor_held(
        held, "cholesky", _factors_of, _solve_either_way, singular=Singular.NOT_POSITIVE,
        **options,
    )  # fmt: skip


def _solve_either_way(factors: LazyCholeskyFactors, b: da.Array, trans: int) -> da.Array:
    return cho_solve(factors, b, check_finite=False)


def _run(a: Any, lower: bool, **options: Any) -> LazyRun:
    a = as_matrix(a, square=True)
    a = a if lower else with_checked_chunks(a).T
    return LazyRun("cholesky", a, singular=Singular.NOT_POSITIVE, **options)


def cho_solve(
    c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True
) -> da.Array:
    """Compute `hetero_la.cho_solve` lazily, on workers that each load their part of the factor."""
    if isinstance(c_and_lower, MixedCholeskyFactors) and c_and_lower._refinable is not None:
        x, c_and_lower._outcome = c_and_lower._refinable.solve(b, check_finite=check_finite)
        return x
    c = as_matrix(c_and_lower[0], "c", square=True)
    b = as_columns(c, b, "a factor")
    dtype = np.result_type(c.dtype, b.dtype)
    factor = (c if c_and_lower[1] else with_checked_chunks(c, "c").T.conj()).astype(dtype)
    rhs = as_two_dimensional(b.astype(dtype))
    x = LazyRun(
        "cho_solve", factor, rhs, check_finite=check_finite, names=("c", "b"), nb=tiles_of(factor)
    ).beside
    return x[:, 0] if b.ndim == 1 else x


def cho_solve_checking_b(c_and_lower: tuple[Any, bool], b: da.Array) -> da.Array:
    """Solve as `cho_solve`, but check only `b`: the unused triangle of the factor is undefined."""
    return cho_solve(c_and_lower, with_checked_chunks(b, "b", True), check_finite=False)


def solve_positive(a: da.Array, b: da.Array | None, *, lower: bool, **options: Any) -> da.Array:
    """Solve A X = B, or return the inverse if `b` is None, from the triangle `lower` names."""
    turn = da.conj if not lower and a.dtype.kind == "c" else da.asarray
    # A^T is the conjugate of A: it has the conjugate solution for conjugate right-hand sides.
    run = LazyRun(
        "inverse_positive" if b is None else "solve_positive",
        a if lower else with_checked_chunks(a).T,
        None if b is None else turn(b), columns=len(a), singular=Singular.NOT_POSITIVE,
        solves=True, **options,
    )  # fmt: skip
    return turn(run.beside)
