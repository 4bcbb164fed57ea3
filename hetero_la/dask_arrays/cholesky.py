"""Cholesky factorization of Dask arrays, and solving with it."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import dask
import dask.array as da
import numpy as np

from hetero_la.dask_arrays.inputs import (
    as_columns,
    as_matrix,
    as_two_dimensional,
    checked,
    transpose_of,
)
from hetero_la.dask_arrays.lazy_run import LazyRun
from hetero_la.dask_arrays.lu import tiles_of
from hetero_la.dask_arrays.status import Singular


class LazyCholeskyFactors(NamedTuple):
    """What `hetero_la.cho_factor` makes of a Dask array; unpacks as ``c, lower``.

    Attributes
    ----------
    c : dask.array.Array, shape (n, n)
        The factor in one triangle; what is in the other one means nothing.
    lower : bool
        Which triangle.

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

    def persist(self, **kwargs: Any) -> Self:
        """Factor now; the blocks stay where they were made, for as long as they are wanted.

        Parameters
        ----------
        **kwargs
            For `dask.persist`.
        """
        (c,) = dask.persist(self.c, **kwargs)
        return type(self)(c, self.lower)

    def solve(self, b: Any, check_finite: bool = True) -> da.Array:
        """X of A X = B, lazily.

        Parameters
        ----------
        b : array, shape (n,) or (n, nrhs)
            A Dask array, or one that can be made into one.
        check_finite : bool, optional
            Whether NaN and infinity are an error.

        Raises
        ------
        ValueError
            If `b` does not fit the matrix.
        """
        return cho_solve(self, b, check_finite=check_finite)


def cholesky(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *,
    client: Any = None, **options: Any,
) -> da.Array:  # fmt: skip
    """`hetero_la.cholesky`, lazily."""
    factor = _run(a, lower, check_finite, client, options).triangle(a.shape, lower=True)
    return factor if lower else factor.T


def cho_factor(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *,
    client: Any = None, **options: Any,
) -> LazyCholeskyFactors:  # fmt: skip
    """`hetero_la.cho_factor`, lazily: a named tuple of a Dask array and `lower`; it also solves."""
    factor = _run(a, lower, check_finite, client, options).factors
    return LazyCholeskyFactors(factor if lower else factor.T, lower)


def _run(a: Any, lower: bool, check_finite: bool, client: Any, options: dict[str, Any]) -> LazyRun:
    a = as_matrix(a, square=True)
    return LazyRun(
        "cholesky", a if lower else transpose_of(a, "a"), check_finite=check_finite,
        singular=Singular.NOT_POSITIVE, client=client, **options,
    )  # fmt: skip


def cho_solve(
    c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True
) -> da.Array:
    """`hetero_la.cho_solve`, lazily: on the workers, which each load their share of the factor."""
    c = as_matrix(c_and_lower[0], "c", square=True)
    b = as_columns(c, b, "a factor")
    dtype = np.result_type(c.dtype, b.dtype)
    factor = (c if c_and_lower[1] else transpose_of(c, "c").conj()).astype(dtype)
    rhs = as_two_dimensional(b.astype(dtype))
    x = LazyRun(
        "cho_solve", factor, rhs, check_finite=check_finite, names=("c", "b"), nb=tiles_of(factor)
    ).beside
    return x[:, 0] if b.ndim == 1 else x


def cho_solve_checking_b(c_and_lower: tuple[Any, bool], b: da.Array) -> da.Array:
    """As `cho_solve`, of a factor that was checked: what is in its other triangle means nothing."""
    return cho_solve(c_and_lower, checked(b, "b", True), check_finite=False)


def solve_positive(
    a: da.Array, b: da.Array | None, *, lower: bool, client: Any, **options: Any
) -> da.Array:
    """X of A X = B, or without a matrix `b` the inverse, from the triangle that `lower` names."""
    turn = da.conj if not lower and a.dtype.kind == "c" else da.asarray
    # A^T is the conjugate of A: it has the conjugate solution for conjugate right-hand sides.
    run = LazyRun(
        "inverse_positive" if b is None else "solve_positive",
        a if lower else transpose_of(a, "a"),
        None if b is None else turn(b), columns=len(a), singular=Singular.NOT_POSITIVE,
        solves=True, client=client, **options,
    )  # fmt: skip
    return turn(run.beside)
