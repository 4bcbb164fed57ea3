"""Least squares by QR and by the singular values of R."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Literal, Unpack, overload

import numpy as np
import scipy.linalg
from numpy.linalg import LinAlgError

from hetero_la.accuracy.judging import Facts, RunMeter, Solution, facts_of_least_squares
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.host_arrays import Work
from hetero_la.api.qr import pad_with_zero_rows, qr_factor
from hetero_la.api.stacks import array_function, unless
from hetero_la.checks.array_types import Eager, Lazy, Numbers
from hetero_la.checks.inputs import as_stack_of_systems, as_system, is_writable
from hetero_la.checks.warnings import warn
from hetero_la.execution.destination import source_of
from hetero_la.execution.execute import execute
from hetero_la.execution.one_call import takes_one_call
from hetero_la.execution.report import MixedOutcome, Report, UnplannedReport
from hetero_la.execution.stack_runs import (
    Stack,
    for_parts,
    run_for_each,
    solve_stack_on_gpu,
    threads_for,
)
from hetero_la.mixed.fallback import first_mixed
from hetero_la.mixed.least_squares import lstsq_mixed
from hetero_la.mixed.precision import is_mixed, require_lower
from hetero_la.mixed.prediction import full_products, with_lower_products
from hetero_la.numerics.conditioning import reciprocal_condition_upper
from hetero_la.numerics.range_scaling import needs_scaling, scaling_exponent, times_power_of_two
from hetero_la.numerics.triangle_lstsq import require_convergence, square_lstsq, threshold
from hetero_la.planning.decisions import Problem
from hetero_la.planning.options import Precision, RunOptions
from hetero_la.scheduler.cluster.clients import ClientLike
from hetero_la.tiles.arrays.counted import a_matrix
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_host
from hetero_la.tiles.kernels.cpu.lapack import gelsd, threads_for_reflectors
from hetero_la.tiles.kernels.gpu_libraries.finite import is_finite

#: LAPACK's drivers: those that compute the singular values, and all.
SingularValues = Literal["gelsd", "gelss"] | None
Driver = SingularValues | Literal["gelsy", "gels"]
#: Ratio of rows to columns, or of columns to rows, from which LAPACK's drivers begin with a QR.
_TALL = 1.6
#: X, squared norms of the residual's columns (for m > n), rank, singular values, report of the run,
#: reciprocal condition number of R where "gels" has looked at that.
_LeastSquares = tuple[Any, Any, np.int64, Any, Report, float | None]


def _least_squares(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    driver = arguments.get("lapack_driver")
    if driver is None and arguments.get("precision") == "mixed":
        driver = "gels"
    results = n * arguments["b"].size // m + min(m, n)
    if driver == "gels":
        return Work("minimum_norm" if m < n else "lstsq", 0, results, turned=m < n)
    if driver not in (None, "gelsd", "gelss"):  # which the host solves for any array
        return None
    return Work("qr", 0, results, turned=m < n, values=True)


def _lstsq_stack(
    a: Any, b: Any, cond: Any = None, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, lapack_driver: Driver = None, precision: Precision = "full",
    **how: Any,
) -> Any:  # fmt: skip
    """Compute `lstsq` of a stack, on the host by LAPACK's default driver, or by QR alone."""
    if is_mixed(precision):
        return None
    driver = require_driver(lapack_driver)
    systems = as_stack_of_systems(a, b, finite=check_finite)
    if systems is None:
        return None
    a, b = systems
    if is_device_array(a):
        return _lstsq_on_gpu(a, b, as_cond(cond, a.dtype), driver, **how)
    if driver not in ("gelsd", "gels") or not is_finite(a):
        return None
    if driver == "gels":
        return _lstsq_by_qr_each(a, b, as_cond(cond, a.dtype), **how)
    return _lstsq_each(a, b, cond) if _needs_no_run(a[0], **how) else None


def _lstsq_on_gpu(a: Any, b: Any, cond: float, driver: str, **how: Any) -> Any:
    """Solve with each matrix of a stack; those that may not have full rank are uncertain."""
    rhs = b.reshape(*b.shape[:2], -1)
    found = None if driver == "gelsy" else solve_stack_on_gpu("qr_and_lstsq", a, rhs, **how)
    if found is None:
        return None
    (count, m, n), k, xp = a.shape, min(a.shape[1:]), array_module(a)
    x, squares, s, info = found
    largest, least = s[:, 0], s[:, -1]
    # The condition of R, which "gels" looks at, is in the 1-norm: up to k times as large.
    bound = k * cond * largest if driver == "gels" else threshold(largest, cond, driver, a.dtype)
    doubts = ~(least > bound) | (info != 0) | needs_scaling(a) | needs_scaling(rhs)
    residues = squares.astype(a.dtype) if m > n else xp.empty((count, 0), a.dtype)
    values = None if driver == "gels" else s.astype(a.real.dtype)
    return _unless(doubts, b, x, residues, xp.full(count, k), values)


def _unless(doubts: Any, b: Any, x: Any, residues: Any, rank: Any, s: Any) -> Any:
    """Return the results of a stack, in the shapes for `b`, unless some matrices are uncertain."""
    residues = residues[:, 0] if b.ndim == 2 and residues.shape[1] else residues
    return unless(doubts, (x.reshape(*x.shape[:2], *b.shape[2:]), residues, rank, s))


def _lstsq_by_qr_each(a: np.ndarray, b: np.ndarray, cond: float, **how: Any) -> Any:
    """Solve with each tall matrix of a stack by QR; those that may lack full rank are uncertain."""
    (count, m, n), rhs = a.shape, b.reshape(*b.shape[:2], -1)
    if m < n or not rhs.size:
        return None

    def solved(part: Stack, place: slice) -> tuple[Any, ...]:
        squares = _squares(part.beside[:, n:].swapaxes(0, 1))
        rconds = [reciprocal_condition_upper(factor[:n]) for factor in part.factors]
        return part.beside[:, :n].copy(), squares, np.array(rconds)  # the part is used again

    done = run_for_each("lstsq", a, rhs, then=solved, keep=False, **how)
    if done is None:
        return None
    x, squares, rconds = done.found
    doubts = ~(rconds > cond) | needs_scaling(a) | needs_scaling(rhs)
    residues = squares.astype(residues_dtype(a))[:, : rhs.shape[2] if m > n else 0]
    return _unless(doubts, b, x, residues, np.full(count, n), None)


def _lstsq_each(a: np.ndarray, b: np.ndarray, cond: Any) -> Any:
    """Solve with each matrix of a stack, in threads."""
    (count, m, n), cond, rhs = a.shape, as_cond(cond, a.dtype), b.reshape(*b.shape[:2], -1)
    nrhs, k = rhs.shape[2], min(m, n)
    x, rank = np.empty((count, n, nrhs), a.dtype), np.empty(count, np.int64)
    squares = np.zeros((count, nrhs if m > n else 0), residues_dtype(a))
    s, doubts = np.empty((count, k), a.real.dtype), np.empty(count, bool)

    def run(part: slice) -> None:
        doubts[part] = needs_scaling(a[part]) | needs_scaling(rhs[part])
        for i in range(part.start, part.stop):
            c = np.zeros((max(m, n), nrhs), a.dtype, order="F")
            c[:m] = rhs[i]
            s[i], rank[i], info = gelsd(np.array(a[i], order="F"), c, cond)
            doubts[i] |= info != 0
            x[i] = c[:n]
            if m > n:
                squares[i] = _squares(c[n:]) if rank[i] == n else np.nan

    # Singular values and vectors take some times as long as a QR factorization.
    problem = Problem("qr", 2 * max(m, n), 2 * k, 0, a.dtype)
    for_parts(run, count, threads_for(count, problem), a[0].nbytes)
    return _unless(doubts, b, x, squares, rank, s)


@overload
def lstsq(
    a: Eager | Numbers, b: Eager | Numbers, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: SingularValues = None, *,
    precision: Precision = "full", client: ClientLike = None, report: Literal[False] = False,
    **options: Unpack[RunOptions],
) -> tuple[Eager, Eager, np.int64, Eager]: ...  # fmt: skip
@overload
def lstsq(
    a: Eager | Numbers, b: Eager | Numbers, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: Driver = None, *,
    precision: Precision = "full", client: ClientLike = None, report: Literal[False] = False,
    **options: Unpack[RunOptions],
) -> tuple[Eager, Eager, np.int64, Eager | None]: ...  # fmt: skip
@overload
def lstsq(
    a: Lazy, b: Lazy | Numbers, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: Driver = None, *,
    precision: Precision = "full", client: ClientLike = None, report: Literal[False] = False,
    **options: Unpack[RunOptions],
) -> tuple[Lazy, Lazy, Lazy, Lazy | None]: ...  # fmt: skip
@overload
def lstsq(
    a: Numbers, b: Lazy, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: Driver = None, *,
    precision: Precision = "full", client: ClientLike = None, report: Literal[False] = False,
    **options: Unpack[RunOptions],
) -> tuple[Lazy, Lazy, Lazy, Lazy | None]: ...  # fmt: skip
@overload
def lstsq(
    a: Eager | Numbers, b: Eager | Numbers, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: SingularValues = None, *,
    precision: Precision = "full", client: ClientLike = None, report: Literal[True],
    **options: Unpack[RunOptions],
) -> tuple[Eager, Eager, np.int64, Eager, AccuracyReport]: ...  # fmt: skip
@overload
def lstsq(
    a: Eager | Numbers, b: Eager | Numbers, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: Driver = None, *,
    precision: Precision = "full", client: ClientLike = None, report: Literal[True],
    **options: Unpack[RunOptions],
) -> tuple[Eager, Eager, np.int64, Eager | None, AccuracyReport]: ...  # fmt: skip
@array_function(_lstsq_stack, _least_squares, a=2, b="1|2")
def lstsq(
    a: Any, b: Any, cond: float | None = None, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, lapack_driver: Driver = None, *, precision: Precision = "full",
    client: ClientLike = None, report: bool = False, **options: Unpack[RunOptions],
) -> Any:  # fmt: skip
    """Find the minimum-norm least-squares solution of A X = B, for a matrix of any rank.

    X minimizes the 2-norms of the columns of B - A X; if the rank is below n, many such X exist,
    and the minimum-norm one is returned.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        NumPy or CuPy array or stack, as for `lu_factor`.
    b : array_like, shape (m,) or (..., m, nrhs)
        Right-hand sides, on the device of `a`.
    cond : float, optional
        Singular values up to this fraction of the largest count as zeros; by default the dtype's
        eps.  For "gelsd", 0 and numbers of at least 1 stand for eps / 2.
    overwrite_a : bool, optional
        Whether the factors may take the place of `a` (where it is column-major, and m >= n).
    overwrite_b : bool, optional
        Accepted for compatibility with SciPy; `b` is never overwritten.
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    lapack_driver : {None, "gelsd", "gelss", "gelsy", "gels"}, optional
        LAPACK's driver for R: by singular values ("gelsd", the default, and "gelss"), or by a
        complete orthogonal factorization ("gelsy").  SciPy has no "gels": that is QR alone, for
        matrices of full rank, and the fastest.
    precision : {"full", "mixed"}, optional
        With "mixed", a matrix of float64 or complex128 is factored in float32 or complex64, and X
        refined to the accuracy of full precision, as by `solve`.  It is for matrices of full rank
        and the driver "gels", for which None stands then.
    client, **options
        As for `lu_factor`.
    report : bool, optional
        Whether to return a report, too, of what X is worth; for one matrix that is not lazy.  Then
        `a` is not overwritten.

    Returns
    -------
    x : array, shape (..., n) or (..., n, nrhs)
        The solution.
    residues : array, shape (..., nrhs), (...,) or (..., 0)
        Squared 2-norms of the columns of B - A X where m > n, NaN if the rank is below n; empty
        where m <= n, and for "gelsy".  Of the dtype of `x`, as in SciPy.
    rank : numpy.int64
        Effective rank of `a`.
    s : array, shape (..., min(m, n)), or None
        Singular values of `a`, the largest first; None for "gels", and "gelsy" unless `a` is empty.
    report : AccuracyReport
        With `report=True`: backward error, condition number, bound of the forward error and others.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the singular value decomposition does not converge; for "gels", if a diagonal entry
        of R is exactly zero.
    ValueError
        If shapes, dtypes or values are invalid.
    TypeError
        If `cond` is not a number, or `a` and `b` are not both on the host or both on one GPU.
    Others
        As for `lu_factor`.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        For "gels", if the matrix is rank-deficient to working precision: then the solution is
        inaccurate, and not the minimum-norm one.

    Notes
    -----
    QR of A, or of A^T for m < n, is run as a task graph.  It reduces the problem to one with R
    in A's place, of order min(m, n), with A's singular values and rank.  LAPACK's driver solves
    that in the calling thread; on a GPU cuSOLVER computes the singular values, and the singular
    vectors only if the rank is not full, while "gelsy" runs on the host.  For large matrices
    this takes far longer than the QR does.

    Examples
    --------
    A straight line through three points:

    >>> import numpy as np
    >>> from hetero_la import lstsq
    >>> a = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> x, residues, rank, s = lstsq(a, np.array([1.0, 3.0, 5.0]))
    >>> np.round(x, 12), rank
    (array([1., 2.]), np.int64(2))

    The minimum-norm solution of many:

    >>> x, _, rank, s = lstsq(np.ones((2, 2)), np.array([2.0, 2.0]))
    >>> np.round(x, 12), rank
    (array([1., 1.]), np.int64(1))
    """
    if not report:
        return _lstsq(
            a, b, cond, overwrite_a, check_finite, lapack_driver, precision, client=client,
            **options,
        )[:4]  # fmt: skip
    watch = RunMeter()
    x, residues, rank, s, run, rcond = _lstsq(
        a, b, cond, False, check_finite, lapack_driver, precision, client=client, **options
    )
    (m, n), judge = np.shape(a), partial(_judge, a, b, x, rank, s, rcond)
    title = f"least squares of {a_matrix(m, n, x.dtype.name)}"
    return x, residues, rank, s, watch.report(title, Solution(x, run, judge))


def _judge(a: Any, b: Any, x: Any, rank: np.int64, s: Any, rcond: float | None) -> Facts:
    """Judge a least-squares solution, by the singular values where they are known."""
    a, b = as_system(a, b, check_finite=False)
    if s is not None and len(s):
        values = to_host(s)
        rcond = float(values[-1] / values[0]) if values[0] else 0.0
    x, b = (part[:, None] if part.ndim == 1 else part for part in (x, b))
    facts = facts_of_least_squares(a, x, b, rcond if rcond and rank == min(a.shape) else 0.0)
    return {**facts, "rank": int(rank), "rcond": rcond}


@overload
def lstsq_with_report(
    a: Eager | Numbers, b: Eager | Numbers, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: SingularValues = None, *,
    precision: Precision = "full", client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Eager, Eager, np.int64, Eager, Report]: ...  # fmt: skip
@overload
def lstsq_with_report(
    a: Eager | Numbers, b: Eager | Numbers, cond: float | None = None, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, lapack_driver: Driver = None, *,
    precision: Precision = "full", client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Eager, Eager, np.int64, Eager | None, Report]: ...  # fmt: skip
@array_function(None, _least_squares, stacks=False, a=2, b="1|2")
def lstsq_with_report(
    a: Any, b: Any, cond: float | None = None, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, lapack_driver: Driver = None, *, precision: Precision = "full",
    client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Any, Any, np.int64, Any, Report]:  # fmt: skip
    """Solve as `lstsq` does; also return the plan and the timing of the run.

    Returns
    -------
    x, residues, rank, s
        As for `lstsq`.
    report : Report
        `plan` and `timing` of the run: "qr", or for the driver "gels" "lstsq" or (m < n)
        "minimum_norm".

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> a, b = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0, 5.0])
    >>> x, residues, rank, s, report = hetero_la.lstsq_with_report(a, b)
    >>> x.round(12), int(rank), report.plan.routine
    (array([1., 2.]), 2, 'qr')
    """
    *found, run, _ = _lstsq(
        a, b, cond, overwrite_a, check_finite, lapack_driver, precision, client=client, **options
    )
    return (*found, run)


def _lstsq(
    a: Any, b: Any, cond: float | None, overwrite_a: bool, check_finite: bool,
    lapack_driver: str | None, precision: Precision = "full", **how: Any,
) -> _LeastSquares:  # fmt: skip
    mixed = is_mixed(precision)
    driver = require_driver("gels" if mixed and lapack_driver is None else lapack_driver)
    a, b = as_system(a, b, check_finite=check_finite)
    if mixed:
        require_lower(a.dtype)
        require_gels(driver)
    cond = as_cond(cond, a.dtype)
    rhs = b[:, None] if b.ndim == 1 else b
    m, n = a.shape
    up, rhs_up = scaling_exponent(a), scaling_exponent(rhs)
    a, rhs = times_power_of_two(a, up), times_power_of_two(rhs, rhs_up)
    if mixed:
        found = first_mixed(
            "qr", a, rhs.shape[1],
            partial(_solve_mixed, a, rhs, cond, **how),
            partial(_solve_by_qr, a, rhs, cond, **{**how, **full_products(how)}),
            lambda made: made[4],
        )  # fmt: skip
    elif driver == "gels":
        found = _solve_by_qr(a, rhs, cond, **how)
    elif rhs.size and _needs_no_run(a, **how):
        found = _solve_by_driver_alone(a, rhs, cond, driver, overwrite_a)
    else:
        found = _solve_by_driver(a, rhs, cond, driver, overwrite_a, **how)
    x, squares, rank, s, report, rcond = found
    x = times_power_of_two(x, up - rhs_up)
    dtype = residues_dtype(a)
    if (m > n and driver != "gelsy") or not n:
        residues = times_power_of_two(squares.astype(dtype), -2 * rhs_up)
        if rank < n:
            residues[:] = np.nan
    else:
        residues = array_module(a).empty((0,), dtype)
    if b.ndim == 1:
        x, residues = x[:, 0], residues[..., 0] if residues.size else residues
    s = s if s is None else times_power_of_two(s, -up)
    return x, residues, rank, s, report, rcond


def require_driver(lapack_driver: str | None) -> str:
    """Return the driver's name; raise ValueError for an unknown one."""
    driver = "gelsd" if lapack_driver is None else lapack_driver
    if driver not in ("gelsd", "gelss", "gelsy", "gels"):
        raise ValueError(f'LAPACK driver "{driver}" is not found')
    return driver


def require_gels(driver: str) -> None:
    """Raise ValueError for a driver that needs what the lower precision cannot give."""
    if driver != "gels":
        raise ValueError(
            f"precision='mixed' is for lapack_driver='gels', QR alone, not {driver!r}, "
            "which needs a factorization in full precision"
        )


def as_cond(cond: Any, dtype: Any) -> float:
    """Return `cond` as a float, by default the eps of `dtype`.

    Examples
    --------
    >>> as_cond(None, "float64"), as_cond(np.float32(0.5), "float64")
    (2.220446049250313e-16, 0.5)
    """
    if cond is None:
        return float(np.finfo(dtype).eps)
    try:
        number = float(cond)
    except (TypeError, ValueError) as error:
        raise type(error)(f"cond must be None or a non-negative number, not {cond!r}") from None
    if not number >= 0:
        raise ValueError(f"cond must be None or a non-negative number, not {cond!r}")
    return number


def residues_dtype(a: Any) -> np.dtype[Any]:
    """Return SciPy's dtype of residues: that of X, or a real one if the matrix is empty."""
    if a.size:
        return a.dtype
    return np.finfo(np.float64 if a.shape[1] else a.dtype).dtype


def _solve_by_driver(
    a: Any, b: Any, cond: float, driver: str, overwrite_a: bool, **how: Any
) -> _LeastSquares:
    """Solve R Y = Q^H B, or R^T Y = B with A^T = Q R for m < n, by LAPACK's driver."""
    m, n = a.shape
    tall = m >= n
    factors = qr_factor(a if tall else a.T, overwrite_a and tall, False, **how)
    report = Report(factors.plan, factors.timing)
    if tall:
        c = factors.multiply(b, adjoint=True, check_finite=False)
        x, rank, s = square_lstsq(factors.r, c[:n], cond, driver)
        return x, _squares(c[n:]), rank, s, report, None
    y, rank, s = square_lstsq(factors.r.T, b, cond, driver, lower=True)
    x = factors.multiply(pad_with_zero_rows(y.conj(), n), check_finite=False).conj()
    return x, _squares(b[:0]), rank, s, report, None


def _needs_no_run(a: Any, client: Any = None, **options: Any) -> bool:
    """Return whether a QR factorization by tasks would not make LAPACK's driver faster."""
    m, n = a.shape
    if client is not None or options or is_device_array(a):
        return False
    return takes_one_call("qr", a, 0, gains=max(m, n) >= _TALL * min(m, n))


def _solve_by_driver_alone(
    a: Any, b: Any, cond: float, driver: str, overwrite_a: bool
) -> _LeastSquares:
    """Solve by LAPACK's driver, on the host."""
    began = time.perf_counter()
    require_convergence(a, driver)
    with threads_for_reflectors(a, b):
        x, squares, rank, s = scipy.linalg.lstsq(
            a, b, cond, overwrite_a=overwrite_a and is_writable(a), lapack_driver=driver,
            check_finite=False,
        )  # fmt: skip
    squares = squares if len(squares) else np.zeros(b.shape[1], a.dtype)
    tall = a if len(a) >= a.shape[1] else a.T
    problem = Problem("qr", len(tall), tall.shape[1], 0, a.dtype)
    seconds = time.perf_counter() - began
    report = UnplannedReport(problem, source_of(tall, False), seconds)
    return x, squares, np.int64(rank), s, report, None


def _squares(rest: Any) -> Any:
    """Return the squared 2-norms of columns."""
    with np.errstate(over="ignore"):  # infinity is a valid result
        return (abs(rest) ** 2).sum(axis=0)


def _solve_by_qr(a: Any, b: Any, cond: float, **how: Any) -> _LeastSquares:
    """Solve by QR alone, with the right-hand sides in the run; A must have full rank."""
    m, n = a.shape
    if m >= n:
        result = execute("lstsq", a, b, **how)
    else:
        result = execute("minimum_norm", a.T, pad_with_zero_rows(b.conj(), n), **how)
    k, c = min(m, n), result.beside
    rank, rcond = _rank(result.factors[:k], cond)
    x = (c[:n] if m >= n else c.conj()).copy(order="F")
    return x, _squares(c[n:]), np.int64(rank), None, result.report, rcond


def _solve_mixed(a: Any, b: Any, cond: float, **how: Any) -> tuple[_LeastSquares, MixedOutcome]:
    """Solve by QR in the lower precision, and refine."""
    tall = a if a.shape[0] >= a.shape[1] else a.T
    lower = {**with_lower_products("qr", tall, how), "overwrite_a": True}
    found = lstsq_mixed(a, b, cond, partial(execute, "qr", **lower))
    rank = np.int64(min(a.shape))
    return (found.x, _squares(found.left), rank, None, found.report, found.rcond), found.outcome


def _rank(r: Any, cond: float) -> tuple[int, float]:
    """Return the rank of R by its diagonal, and 1 / condition; warn or raise if it is not full."""
    # A GPU is given all that there is to do before the host waits for it.
    rcond = reciprocal_condition_upper(r)
    diagonal = np.abs(to_host(r.diagonal()))
    order = len(diagonal)
    require_nonzero(diagonal)
    if rcond > cond or not order:
        return order, rcond
    rank = min(int((diagonal > cond * diagonal.max()).sum()), order - 1)
    warn(deficient_message(rank, order, f"rcond = {rcond:.3g}"))
    return rank, rcond


def require_nonzero(diagonal: np.ndarray) -> None:
    """Raise LinAlgError if the diagonal of R has a zero."""
    if not diagonal.all():
        zero = int(np.argmin(diagonal)) + 1
        raise LinAlgError(
            f"the matrix is rank-deficient: diagonal number {zero} of R is exactly zero "
            "(the other drivers find the minimum-norm solution)"
        )


def deficient_message(rank: int, order: int, because: str) -> str:
    """Return the warning for a matrix that does not have full rank."""
    return (
        f"rank-deficient matrix: its rank is about {rank} and not {order} ({because}), "
        "the solution is inaccurate, and not the minimum-norm one"
    )
