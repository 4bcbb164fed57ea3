"""Least squares by QR."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.alerts import warn
from hetero_la.conditioning import reciprocal_condition_upper
from hetero_la.execution import execute
from hetero_la.inputs import as_system
from hetero_la.lazy import takes_dask_arrays
from hetero_la.ranges import scaling_exponent, times_power_of_two
from hetero_la.report import Report
from hetero_la.stacks import over_stacks
from hetero_la.tiles.transfer import array_module, on_device_of_arrays, to_host


@takes_dask_arrays
@on_device_of_arrays
@over_stacks(a=2, b="1|2")
def lstsq(
    a: Any, b: Any, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: str | None = None, *,
    client: Any = None, **options: Any,
) -> tuple[Any, Any, int, None]:  # fmt: skip
    """Least-squares solution of A X = B for a matrix of full rank, by QR.

    With at least as many rows as columns, X minimizes the 2-norms of the columns of
    B - A X; with fewer, X is the shortest solution.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        NumPy or CuPy array or stack, as for `lu_factor`.
    b : array_like, shape (m,) or (..., m, nrhs)
        Right-hand sides; where `a` is.
    cond : float, optional
        The matrix counts as rank-deficient where its reciprocal condition number, or a
        diagonal entry of R relative to the largest, is not above this; the dtype's eps by
        default.
    overwrite_a, overwrite_b : bool, optional
        Accepted as SciPy does; the run works on its own copy.
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    lapack_driver : {None, "gels"}, optional
        The method is that of LAPACK's ``xGELS``; SciPy's other drivers are refused.
    client, **options
        As for `lu_factor`.

    Returns
    -------
    x : array, shape (n,) or (n, nrhs)
        The solution.
    residues : array, shape (nrhs,), () or (0,)
        Squared 2-norms of the columns of B - A X, for m > n and full rank; else empty.
    rank : int
        Of `a`, as the diagonal of R tells it.
    s : None
        Singular values are not computed, as by SciPy's driver "gelsy".

    Raises
    ------
    numpy.linalg.LinAlgError
        If a diagonal entry of R is exactly zero.
    ValueError
        If shapes, dtypes or values do not do.
    TypeError
        If `a` and `b` are not both on the host, or both on one GPU.
    Others
        As for `lu_factor`.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        If the matrix is rank-deficient to working precision: then the solution is
        inaccurate, and not the shortest one.

    Examples
    --------
    A straight line through three points:

    >>> import numpy as np
    >>> from hetero_la import lstsq
    >>> a = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> x, residues, rank, _ = lstsq(a, np.array([1.0, 3.0, 5.0]))
    >>> np.round(x, 12), rank
    (array([1., 2.]), 2)
    """
    require_lstsq_options(cond, lapack_driver)
    x, residues, rank, _ = lstsq_with_report(
        a, b, cond, check_finite=check_finite, client=client, **options
    )
    return x, residues, rank, None


def require_lstsq_options(cond: float | None, lapack_driver: str | None = None) -> None:
    """Raise ValueError for what `lstsq` does not do."""
    if cond is not None and not (isinstance(cond, numbers.Real) and 0 <= cond < 1):
        raise ValueError(f"cond must be None, or a number from 0 to below 1, not {cond!r}")
    if lapack_driver not in (None, "gels"):
        raise ValueError(f"lapack_driver must be None or 'gels', not {lapack_driver!r}")


@takes_dask_arrays
@on_device_of_arrays
def lstsq_with_report(
    a: Any, b: Any, cond: float | None = None, *, check_finite: bool = True, client: Any = None,
    **options: Any,
) -> tuple[Any, Any, int, Report]:  # fmt: skip
    """Find what `lstsq` does, and say how the run was planned and how it went.

    Returns
    -------
    x, residues, rank
        As of `lstsq`.
    report : Report
        Its `plan` and `timing`.
    """
    require_lstsq_options(cond)
    a, b = as_system(a, b, check_finite=check_finite)
    xp, dtype = array_module(a), a.dtype
    rhs = b[:, None] if b.ndim == 1 else b
    m, n = a.shape
    up, rhs_up = scaling_exponent(a), scaling_exponent(rhs)
    a, rhs = times_power_of_two(a, up), times_power_of_two(rhs, rhs_up)
    result = execute("lstsq", a, rhs, client=client, **options) if m >= n else execute(
        "minimum_norm", a.T, _padded(rhs.conj(), n), client=client, **options
    )  # fmt: skip
    k = min(m, n)
    c = result.array[:, k:]
    rank = _rank(result.array[:k, :k], np.finfo(dtype).eps if cond is None else cond)
    x = times_power_of_two((c[:n] if m >= n else c.conj()).copy(order="F"), up - rhs_up)
    residues = xp.empty(0, c.real.dtype)
    if m > n == rank:
        with np.errstate(over="ignore"):  # infinity is an answer
            residues = (xp.abs(c[n:]) ** 2).sum(axis=0)
        residues = times_power_of_two(residues, -2 * rhs_up)
    if b.ndim == 1:
        x = x[:, 0]
        residues = residues[0] if residues.size else residues
    return x, residues, rank, result.report


def _padded(b: Any, rows: int) -> Any:
    """`b` with rows of zeros below, which the product with Q then fills."""
    padded = array_module(b).zeros((rows, b.shape[1]), b.dtype)
    padded[: len(b)] = b
    return padded


def _rank(r: Any, cond: float) -> int:
    """Rank of R by its diagonal; warns where it is not full, raises where R is singular."""
    diagonal = np.abs(to_host(r.diagonal()))
    order = len(diagonal)
    require_nonzero(diagonal)
    rcond = reciprocal_condition_upper(r)
    if rcond > cond or not order:
        return order
    rank = min(int((diagonal > cond * diagonal.max()).sum()), order - 1)
    warn(deficient_message(rank, order, f"rcond = {rcond:.3g}"))
    return rank


def require_nonzero(diagonal: np.ndarray) -> None:
    """Raise LinAlgError if the diagonal of R has a zero."""
    if not diagonal.all():
        zero = int(np.argmin(diagonal)) + 1
        raise LinAlgError(
            f"the matrix is rank-deficient: diagonal number {zero} of R is exactly zero "
            "(scipy.linalg.lstsq finds a solution by singular values)"
        )


def deficient_message(rank: int, order: int, because: str) -> str:
    """What is wrong with a matrix that is not of full rank."""
    return (
        f"rank-deficient matrix: its rank is about {rank} and not {order} ({because}), "
        "the solution is inaccurate, and not the shortest one"
    )
