"""LU factorization, and solves with its factors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Unpack, overload

import numpy as np
import scipy.linalg

from hetero_la.accuracy.factored import LUFactored
from hetero_la.accuracy.judging import judge_factors
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.factors import Factors
from hetero_la.api.host_arrays import Work
from hetero_la.api.stacks import (
    array_function,
    as_stack_of_one,
    failures,
    over_stacks,
    unless,
)
from hetero_la.checks.array_types import Eager, Lazy, LazyLU, Numbers, Same, Stored
from hetero_la.checks.inputs import (
    as_array,
    as_columns_for,
    as_matrix,
    as_stack,
    is_writable,
    require_pivoting,
    require_row_numbers,
)
from hetero_la.checks.warnings import warn, zero_pivot_message
from hetero_la.execution.execute import execute
from hetero_la.execution.executor_choice import require_options
from hetero_la.execution.one_call import report_of_one
from hetero_la.execution.report import MixedOutcome
from hetero_la.execution.resident_factors import Residency
from hetero_la.execution.result import Result
from hetero_la.execution.stack_runs import Stack, run_for_each, solve_each, solve_stack_on_gpu
from hetero_la.mixed.fallback import first_mixed
from hetero_la.mixed.lower_factors import lower_lu
from hetero_la.mixed.matrix_beside import MatrixBeside, judge_beside
from hetero_la.mixed.precision import (
    is_mixed,
    refuse_stack,
    require_lower,
    require_solvable,
)
from hetero_la.mixed.prediction import LOWER_FACTORS, full_products, with_lower_products
from hetero_la.numerics.growth import require_little_growth
from hetero_la.numerics.range_scaling import largest_entry
from hetero_la.numerics.triangles import unit_lower_triangle, upper_triangle
from hetero_la.planning.options import Pivoting, Precision, RunOptions
from hetero_la.scheduler.cluster.clients import ClientLike
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, linalg_module, to_host
from hetero_la.tiles.kernels.cpu.lapack import lapack_function
from hetero_la.tiles.kernels.gpu.batched.factors import permutations
from hetero_la.tiles.kernels.gpu_libraries.finite import require_finite
from hetero_la.tiles.storage.pivots import inverse_permutations, permutation


class LUFactors(Factors[Stored, Stored]):
    """LU factors, P A = L U; unpacks as SciPy's ``(lu, piv)``.

    Attributes
    ----------
    lu : array, shape (m, n)
        U in the upper triangle, L below the diagonal; column-major.
    piv : array of int32, shape (min(m, n),)
        Row i of the matrix was interchanged with row ``piv[i]``, 0-based.
    info : int
        LAPACK's: 0, or the 1-based index of the first exactly zero pivot.
    growth : float or None
        Of factors without pivoting, ``max |L| max |U| / max |A|``: their backward error is
        about n eps times that.  None with partial pivoting, which keeps it small.
    plan : Plan
        How the run was planned.
    timing : Timing
        How it went.
    mixed : MixedOutcome or None
        What came of `precision="mixed"`, if that was asked for, as of the last solve.  Factors in
        the lower precision, of a matrix that may have been scaled, keep the matrix, with which
        `solve` and `lu_solve` refine.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> factors = hetero_la.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> lu, piv = factors
    >>> lu
    array([[4.  , 4.  ],
           [0.25, 1.  ]])
    >>> factors.solve(np.array([3.0, 8.0]))
    array([1., 1.])
    """

    growth: float | None = None
    _beside: MatrixBeside | None = None
    _how: Mapping[str, Any] = MappingProxyType({})

    @property
    def lu(self) -> Stored:
        """Packed L and U."""
        return self[0]

    @property
    def piv(self) -> Stored:
        """Row interchanges."""
        return self[1]

    @overload
    def solve(self, b: Lazy, trans: int = 0) -> Lazy: ...
    @overload
    def solve(self, b: Stored | Numbers, trans: int = 0) -> Stored: ...
    def solve(self, b: Any, trans: int = 0) -> Any:
        """Solve A X = B, A^T X = B (`trans` = 1) or A^H X = B (`trans` = 2).

        Parameters
        ----------
        b : array, shape (n,) or (n, nrhs)
            Right-hand sides.
        trans : {0, 1, 2}, optional
            0 for A, 1 for A^T, 2 for A^H.

        Returns
        -------
        array
            X, in the shape of `b`.

        Raises
        ------
        ValueError
            If `b` does not fit, or holds a NaN or an infinity.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> hetero_la.lu_factor(np.array([[2.0, 1.0], [0.0, 4.0]])).solve([3.0, 4.0])
        array([1., 1.])
        """
        return lu_solve(self, b, trans=trans)

    @array_function(stacks=False)
    def report(
        self, a: Stored | Numbers | None = None, b: Stored | Numbers | None = None,
        x: Stored | Numbers | None = None,
    ) -> AccuracyReport:  # fmt: skip
        """Estimate what the factors, or a solution, are worth.

        Parameters
        ----------
        a : array, shape of the matrix, optional
            The matrix: without it, its norm is estimated as that of the product of the factors, and
            neither the error of the factorization nor the growth factor is known.
        b : array, shape (m,) or (m, nrhs), optional
            Right-hand sides: with them, the errors of the solution are estimated, too.
        x : array, shape (n,) or (n, nrhs), optional
            The solution; by default what the factors solve.

        Returns
        -------
        AccuracyReport
            Errors, condition number, growth factor and others; see its attributes.

        Raises
        ------
        ValueError
            If an array does not fit the factors or is not finite, or there is `b` without `a`, or
            `x` without `b`.
        TypeError
            If an array is not where the factors are.

        Notes
        -----
        All are estimates in at most O(n^2) operations for each of a few columns; a norm of the
        order of a factorization would take as long as that.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> a = np.array([[1.0, 2.0], [4.0, 4.0]])
        >>> report = hetero_la.lu_factor(a).report(a)
        >>> report.growth, report.factorization_error, round(report.rcond, 3)
        (1.0, 0.0, 0.083)
        """
        if self._beside is not None:
            return judge_beside(self._beside, partial(_solve_lower, self), self.solve, b, x, self)
        factored = LUFactored(self.lu, self._report, self.piv, self.growth)
        return judge_factors(factored, a, b, x, partial(lu_solve, self, check_finite=False))


def _factorization(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    # Factors in the lower precision need the matrix where they are.
    if (arguments.get("pivot", "partial"), arguments.get("precision", "full")) != (
        "partial", "full"
    ):  # fmt: skip
        return None
    # What is on the GPU is a copy that nobody else has.
    return Work("lu", 0, m * n, known=(("overwrite_a", True),), unread=True)


def _factor_stack(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *, pivot: Pivoting = "partial",
    precision: Precision = "full", **how: Any,
) -> Any:  # fmt: skip
    """Compute `lu_factor` of a stack."""
    refuse_stack(precision)
    done = factor_each(a, check_finite, pivot=pivot, **how)
    if done is None:
        return None
    failed = failures(done.vectors["info"], check_finite)
    return unless(failed, (done.factors, done.vectors["ipiv"]))


def _factor_alone(a: Any, check_finite: bool = True) -> LUFactors | None:
    """Compute `lu_factor` of one small matrix on a GPU."""
    began = time.perf_counter()
    found = as_stack_of_one(_factor_stack)(a, check_finite=check_finite)
    if found is None:
        return None
    lu, piv = found
    return LUFactors(lu, piv, 0, report_of_one("lu", a, lu.dtype, began))


def factor_each(
    a: Any, check_finite: bool, *, pivot: Pivoting = "partial", square: bool = False, **how: Any
) -> Stack | None:
    """Run "lu" on a stack as `run_for_each` does; on the host return None if one is not finite."""
    a = as_stack(a, square=square, finite=check_finite and not is_device_array(a))
    return None if a is None or pivot != "partial" else run_for_each("lu", a, **how)


@overload
def lu_factor(
    a: Eager | Numbers, overwrite_a: bool = False, check_finite: bool = True, *,
    pivot: Pivoting = "partial", precision: Precision = "full", client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> LUFactors[Eager]: ...  # fmt: skip
@overload
def lu_factor(
    a: Lazy, overwrite_a: bool = False, check_finite: bool = True, *,
    pivot: Pivoting = "partial", precision: Precision = "full", client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> LazyLU[Lazy]: ...  # fmt: skip
@array_function(_factor_stack, _factorization, alone=_factor_alone, a=2)
def lu_factor(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *,
    pivot: Pivoting = "partial", precision: Precision = "full", client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> LUFactors | LazyLU[Any]:  # fmt: skip
    """Factor P A = L U with partial pivoting, or A = L U without.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        NumPy or CuPy array of float32, float64, complex64 or complex128, in any memory
        order; other numbers are cast as SciPy does.  With more than two dimensions it is a stack of
        matrices; small ones are factored in threads, or on a GPU all together.  Of a Dask array of
        two dimensions the factors are Dask arrays, too, in a plain tuple; nothing runs yet.
    overwrite_a : bool, optional
        Whether the factors may take the place of `a` (where it is column-major).
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    pivot : {"partial", "none"}, optional
        Whether rows are interchanged.  Without it LU is faster on a GPU from about n = 2048 on, but
        slower on a CPU; for matrices that need no pivoting, such as diagonally dominant ones, it is
        as accurate.
    precision : {"full", "mixed"}, optional
        With "mixed", a square matrix of float64 or complex128 is factored in float32 or complex64,
        and solutions are refined to the accuracy of full precision, as by `solve`.  The factors
        keep a copy of the matrix; with `overwrite_a` the matrix itself, which is not overwritten.
        Where that is not predicted to be faster, or the matrix is too ill-conditioned, it is
        factored in its own precision: `factors.mixed` tells.
    client : dask.distributed.Client or hetero_la.Cluster, optional
        The cluster whose workers to use.  By default small problems run in the calling thread, and
        larger ones on the running client's workers, or on a cluster in this process.
    **options
        nb, coarse, ib, lookahead, panel, inverse_bound, qr_panel, products, checkpoint,
        checkpoint_folder: see `Options`.

    Returns
    -------
    LUFactors
        Unpacks as SciPy's ``(lu, piv)``: lu of shape (m, n), piv of shape (min(m, n),),
        0-based.  It also carries LAPACK's ``info``, the plan and the timing.  For a stack,
        a plain tuple of the stacked lu and piv.

    Raises
    ------
    ValueError
        If `a` has fewer than two dimensions, is of another dtype, or is not finite, or for
        a value that an option cannot have.
    TypeError
        For an unknown option, or a `client` that is neither a Client nor a Cluster.
    hetero_la.tiles.arrays.errors.DeviceUnavailableError
        If there are no workers, or none of the kind that `panel` asks for.
    hetero_la.tiles.arrays.errors.InsufficientMemoryError
        If the workers do not have enough memory.
    hetero_la.tiles.arrays.errors.RunAbortedError
        If all workers left, or the run was cancelled.

    numpy.linalg.LinAlgError
        Without pivoting, if a pivot is zero, or if ``max |L| max |U| / max |A|`` exceeds
        1 / sqrt(eps); the message names the step and this growth.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        With pivoting, if a pivot is exactly zero; the factorization is complete, U is singular.

    Notes
    -----
    Right-looking blocked LU [1]_ on tile columns, with look-ahead, and with the triangular
    solve by multiplication with an inverse [2]_.

    References
    ----------
    .. [1] LAPACK, ``xGETRF``.
    .. [2] V. Volkov and J. Demmel, Benchmarking GPUs to tune dense linear algebra, SC 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import lu_factor
    >>> lu, piv = lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> lu
    array([[4.  , 4.  ],
           [0.25, 1.  ]])
    >>> piv
    array([1, 1], dtype=int32)
    """
    how: dict[str, Any] = {"pivot": pivot, "client": client, **options}
    factor = _factor_mixed if is_mixed(precision) else factor_without_warning
    factors = factor(a, overwrite_a, check_finite, **how)
    if factors.info:
        warn(zero_pivot_message(factors.info))
    return factors


def execute_lu(routine: str, a: Any, b: Any = None, *, pivoted: bool, **how: Any) -> Result:
    """Run "lu" or "solve"; without pivoting, raise LinAlgError if the factors grow too much."""
    if pivoted:
        return execute(routine, a, b, **how)
    largest = largest_entry(a)
    result = execute(f"{routine}_nopivot", a, b, **how)
    result.growth = require_little_growth(result, largest)
    return result


def factor_without_warning(
    a: Any, overwrite_a: bool, check_finite: bool, pivot: Pivoting = "partial", **how: Any
) -> LUFactors:
    """Compute `lu_factor` of one matrix, but do not warn of a zero pivot."""
    a = as_matrix(a, finite=check_finite)
    result = execute_lu(
        "lu", a, pivoted=require_pivoting(pivot), overwrite_a=overwrite_a,
        residency=Residency.BOTH, **how,
    )  # fmt: skip
    piv = array_module(a).asarray(result.piv)
    factors = LUFactors(result.array, piv, result.info, result.report, result.kept)
    factors.growth = result.growth
    return factors


def _factor_mixed(
    a: Any, overwrite_a: bool, check_finite: bool, pivot: Pivoting, **how: Any
) -> LUFactors:
    """Factor a square matrix in the lower precision, and keep it beside the factors."""
    pivoted, a = require_pivoting(pivot), as_matrix(a, finite=check_finite)
    require_lower(a.dtype)
    require_solvable(a)
    full = {"pivot": pivot, **how, **full_products(how)}

    def in_both() -> tuple[LUFactors, MixedOutcome]:
        options = {**with_lower_products("lu", a, how), **LOWER_FACTORS}
        found = lower_lu(a, partial(execute_lu, "lu", pivoted=pivoted, **options))
        result, matrix = found.result, a if overwrite_a else a.copy(order="K")
        piv = array_module(a).asarray(result.piv)
        factors = LUFactors(result.array, piv, result.info, result.report, result.kept)
        factors._beside = MatrixBeside(
            matrix, found.scaling, found.condition_of(a), found.norms, found.tiny
        )
        factors._how = {name: value for name, value in full.items() if name != "client"}
        factors.growth = result.growth
        return factors, MixedOutcome(factors.dtype.name)

    in_full = partial(factor_without_warning, a, overwrite_a, False, **full)
    return first_mixed("lu", a, 1, in_both, in_full, lambda factors: factors._report)


def _solve_lower(factors: LUFactors, b: Any, trans: int) -> Any:
    """Solve with the factors alone, in the precision of the right-hand sides."""
    x = _solve_where_kept(factors, b, trans, False)
    if x is not None:
        return x
    beside, (lu, piv) = factors._beside, factors
    if beside is not None and b.dtype != lu.dtype:
        lu = beside.widened(lu)
    return _lu_solve(lu, piv, b, trans, False, False)


@array_function()
def lu_solve(
    lu_and_piv: tuple[Same | Numbers, Same | Numbers] | LazyLU[Same], b: Same | Numbers,
    trans: int = 0, overwrite_b: bool = False, check_finite: bool = True,
) -> Same:  # fmt: skip
    """Solve A X = B from the factors of A, where they are: on the host or on their GPU.

    Parameters
    ----------
    lu_and_piv : tuple of array
        From `lu_factor`: shapes (..., n, n) and (..., n).
    b : array_like, shape (n,) or (..., n, nrhs)
        Right-hand sides.  Leading dimensions are broadcast.
    trans : {0, 1, 2}, optional
        Solve A X = B, A^T X = B, or A^H X = B.
    overwrite_b : bool, optional
        Whether X may take the place of `b` (where it is column-major and writable).
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.

    Returns
    -------
    array, shape (..., n) or (..., n, nrhs)
        X.

    Raises
    ------
    ValueError
        If the shapes do not fit, `piv` holds numbers that are not rows, `trans` is not 0, 1 or 2,
        or the factors or `b` are not finite.
    TypeError
        If the factors and `b` are not both on the host, or both on one GPU.

    Notes
    -----
    LAPACK's ``xGETRS`` on the host, cuSOLVER's on a GPU.  With `LUFactors` of a host matrix that
    GPUs of this process have kept, on these.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import lu_factor, lu_solve
    >>> lu_solve(lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]])), [3.0, 8.0])
    array([1., 1.])
    """
    lu, piv = lu_and_piv
    if isinstance(lu_and_piv, LUFactors) and trans in (0, 1, 2):
        if (beside := lu_and_piv._beside) is not None:
            return beside.solve(
                partial(_solve_lower, lu_and_piv), b, trans,
                lambda matrix: factor_without_warning(matrix, False, False, **lu_and_piv._how),
                lu_and_piv._report, check_finite=check_finite,
            )  # fmt: skip
        x = _solve_where_kept(lu_and_piv, b, trans, check_finite)
        if x is not None:
            return x
    return _lu_solve(lu, piv, b, trans, overwrite_b, check_finite)


def _solve_where_kept(factors: LUFactors, b: Any, trans: int, check_finite: bool) -> Any:
    """Solve with the factors that are kept on GPUs; return None if there are none."""
    (m, n), kept = factors.shape, factors._kept_for(b)
    if kept is None or m != n:
        return None
    if check_finite:
        factors._require_finite("lu")
        require_finite(np.asarray(b), "b")
    # A^T X = B is the conjugate of A^H conj(X) = conj(B).
    solve = partial(kept.solve_lu, permutation(factors.piv, len(b)), adjoint=trans != 0)
    return kept.answer(b, solve, conjugate=trans == 1)


def _lu_solve_stack(
    lu: Any, piv: Any, b: Any, trans: int, overwrite_b: bool, check_finite: bool
) -> Any:
    """Compute `lu_solve` with factors of a stack, if all arguments are valid."""
    lu, b = as_stack(lu, square=True, finite=check_finite), as_stack(b, finite=check_finite)
    if lu is None or b is None or lu.shape[1] != b.shape[1] or trans not in (0, 1, 2):
        return None
    if piv.shape != lu.shape[:2] or piv.dtype.kind not in "iu":
        return None
    if bool(((piv < 0) | (piv >= lu.shape[1])).any()):
        return None
    dtype, rhs = np.result_type(lu.dtype, b.dtype), b.reshape(*b.shape[:2], -1)
    if is_device_array(lu):
        lu, rhs = lu.astype(dtype, copy=False), rhs.astype(dtype, copy=False)
        x = solve_stack_on_gpu("lu_solve", lu, piv, rhs, trans)
        return None if x is None else x.reshape(b.shape)
    getrs = lapack_function("getrs", dtype.char)

    def solve(i: int, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = getrs(lu[i], piv[i].copy(), x, trans, overwrite_b=True)[0]
        return found

    return solve_each(solve, "lu_solve", rhs, dtype).reshape(b.shape)


@over_stacks(_lu_solve_stack, lu=2, piv=1, b="1|2")
def _lu_solve(lu: Any, piv: Any, b: Any, trans: int, overwrite_b: bool, check_finite: bool) -> Any:
    lu = as_matrix(lu, "lu", square=True, finite=check_finite)
    piv = piv if is_device_array(piv) else np.asarray(piv)
    require_row_numbers(piv, len(lu))
    if trans not in (0, 1, 2):
        raise ValueError(f"trans must be 0, 1 or 2, not {trans!r}")
    b = as_columns_for(lu, b, "factors", finite=check_finite)
    if b.size == 0:
        return array_module(b).empty(b.shape, array_module(b).result_type(lu, b))
    if is_device_array(lu):
        return linalg_module(lu).lu_solve(
            (lu, piv.copy()), b, trans=trans, overwrite_b=overwrite_b, check_finite=False
        )
    # SciPy's getrs makes piv 1-based in place while other threads run, so each call gets a copy.
    # It also overwrites read-only arrays.
    getrs = lapack_function("getrs", np.result_type(lu, b).char)
    return getrs(lu, piv.copy(), b, trans=trans, overwrite_b=overwrite_b and is_writable(b))[0]


@overload
def lu(
    a: Same | Numbers, permute_l: Literal[False] = False, overwrite_a: bool = False,
    check_finite: bool = True, p_indices: bool = False, *, client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> tuple[Same, Same, Same]: ...  # fmt: skip
@overload
def lu(
    a: Same | Numbers, permute_l: Literal[True], overwrite_a: bool = False,
    check_finite: bool = True, p_indices: bool = False, *, client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> tuple[Same, Same]: ...  # fmt: skip
@overload
def lu(
    a: Same | Numbers, permute_l: bool = False, overwrite_a: bool = False,
    check_finite: bool = True, p_indices: bool = False, *, client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> tuple[Same, ...]: ...  # fmt: skip
@array_function()
def lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True,
    p_indices: bool = False, *, client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Any, ...]:  # fmt: skip
    """Factor A = P L U with partial pivoting.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        As for `lu_factor`.
    permute_l : bool, optional
        Return P L instead of P and L.
    overwrite_a, check_finite, client, **options
        As for `lu_factor`.
    p_indices : bool, optional
        Return the permutation as indices p, so that ``A = L[p] @ U``.

    Returns
    -------
    (p, l, u) or (pl, u)
        p of shape (..., m, m), or (..., m) for `p_indices`; l of shape (..., m, k) and u of
        shape (..., k, n), k = min(m, n).  As in SciPy, p is empty if `a` is empty, and of the
        dtype of `a` (or int64) if `a` is 1 x 1.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import lu
    >>> p, l, u = lu(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> p @ l @ u
    array([[1., 2.],
           [4., 4.]])
    """
    if 0 in np.shape(a):  # then SciPy has its own shapes and dtypes
        require_options(options, client)
        a = as_array(a, "a", (max(np.ndim(a), 2),))
        found = scipy.linalg.lu(to_host(a), permute_l=permute_l, p_indices=p_indices)
        return tuple(map(array_module(a).asarray, found))
    return _lu(a, permute_l, overwrite_a, check_finite, p_indices, client=client, **options)


def _lu_stack(
    a: Any, permute_l: bool, overwrite_a: bool, check_finite: bool, p_indices: bool, **how: Any
) -> Any:
    """Compute `lu` of a stack."""

    def unpack(part: Stack, place: slice) -> tuple[Any, ...]:
        return _unpacked(part.factors, part.vectors["ipiv"], permute_l, p_indices)

    done = factor_each(a, check_finite, then=unpack, keep=False, **how)
    if done is None:
        return None
    return unless((to_host(done.vectors["info"]) < 0) & check_finite, done.found)


def _unpacked_factorization(arguments: dict[str, Any], m: int, n: int) -> Work:
    order = 0 if arguments["p_indices"] or arguments["permute_l"] else m
    return Work("lu", 0, min(m, n) * (m + n) + order * m, unread=True)


@array_function(_lu_stack, _unpacked_factorization, a=2)
def _lu(
    a: Any, permute_l: bool, overwrite_a: bool, check_finite: bool, p_indices: bool, *,
    client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Any, ...]:  # fmt: skip
    packed, piv = factor_without_warning(a, overwrite_a, check_finite, client=client, **options)
    found = _unpacked(packed[None], piv[None], permute_l, p_indices)
    return tuple(part[0] for part in found)


def _unpacked(packed: Any, piv: Any, permute_l: bool, p_indices: bool) -> tuple[Any, ...]:
    """Return what `lu` does of each matrix of a stack, from the packed factors."""
    xp = array_module(packed)
    count, m, n = packed.shape
    k = min(m, n)
    lower, upper = unit_lower_triangle(packed[:, :, :k]), upper_triangle(packed[:, :k])
    several = is_device_array(piv) and count > 1  # else the host is faster
    rows = permutations(piv, m)[1] if several else inverse_permutations(piv, m)
    if permute_l:
        return xp.take_along_axis(lower, rows[:, :, None], 1), upper
    number = m == n == 1  # for which SciPy returns other dtypes
    if p_indices:
        return rows.astype(np.int64 if number else np.int32), lower, upper
    p = xp.zeros((count, m, m), packed.dtype if number else packed.real.dtype)
    p[xp.arange(count)[:, None], xp.arange(m), rows] = 1
    return p, lower, upper
