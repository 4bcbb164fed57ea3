"""Linear systems (`solve`) and inverses (`inv`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Unpack, overload

import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.accuracy.factored import LUFactored
from hetero_la.accuracy.judging import (
    Facts,
    RunMeter,
    Solution,
    facts_of_run,
    facts_of_solution,
)
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.cholesky import (
    inverse_positive,
    solutions_of,
    solve_positive_stack,
    solve_positive_system,
)
from hetero_la.api.host_arrays import Work
from hetero_la.api.lu import execute_lu
from hetero_la.api.stacks import Uncertain, array_function, as_stack_of_one, unless
from hetero_la.api.structure import (
    INV_NAMES,
    Found,
    InvAssumption,
    SolveAssumption,
    Structure,
    as_general,
    as_general_stack,
    as_named,
    divide_by_number,
    invert_simple,
    is_number,
    refuse_complex,
    require_finite_band,
    solve_by_one_core,
    solve_simple,
    solve_stack_on_host,
    structure_for,
    structure_of,
)
from hetero_la.checks.array_types import Eager, Numbers, Same
from hetero_la.checks.inputs import (
    as_matrix,
    as_stack,
    as_stack_of_systems,
    as_system,
    require_pivoting,
)
from hetero_la.checks.warnings import singular_message, warn_ill_conditioned, without_warnings
from hetero_la.execution.destination import can_hold_result
from hetero_la.execution.execute import execute
from hetero_la.execution.executor_choice import require_options
from hetero_la.execution.one_call import takes_one_call
from hetero_la.execution.report import MixedOutcome, Report
from hetero_la.execution.resident_factors import Residency
from hetero_la.execution.result import Result
from hetero_la.execution.stack_runs import Stack, run_for_each, solve_stack_on_gpu
from hetero_la.execution.timeline import recording
from hetero_la.mixed.fallback import first_mixed
from hetero_la.mixed.precision import is_mixed, require_lower
from hetero_la.mixed.prediction import LOWER_RUN, full_products, with_lower_products
from hetero_la.mixed.systems import solve_mixed
from hetero_la.numerics.conditioning import (
    enqueued_norm1,
    estimate_reciprocal_condition,
    norm1,
    reciprocal,
    stack_norm1,
)
from hetero_la.numerics.range_scaling import column_exponents, times_power_of_two
from hetero_la.numerics.refinement import (
    inverse_error,
    inverse_is_accurate,
    is_accurate,
    is_settled,
    refine,
    step_ahead,
    tolerance,
)
from hetero_la.numerics.stack_solvers import factor_and_solve
from hetero_la.planning.options import Pivoting, Precision, RunOptions
from hetero_la.scheduler.cluster.clients import ClientLike
from hetero_la.tiles.arrays.counted import a_matrix
from hetero_la.tiles.arrays.transfer import array_module, is_device_array
from hetero_la.tiles.kernels.cpu.lapack import lu_solve
from hetero_la.tiles.kernels.gpu_libraries.finite import is_finite, require_finite
from hetero_la.tiles.kernels.gpu_libraries.substitution import Substitution

#: Largest order for which calls of Python count: beyond it a run takes as long.
_SMALL = 256
#: Values of `assume_a` for a run: other structures take no longer than the copies to a GPU.
_RUNS = {
    None: "solve", "gen": "solve", "general": "solve",
    "pos": "solve_positive", "positive definite": "solve_positive",
}  # fmt: skip


def _system_work(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    structure, partial = arguments.get("assume_a"), arguments.get("pivot", "partial") == "partial"
    known = structure is None or isinstance(structure, str)
    routine = _RUNS.get(structure) if known and partial and m == n else None
    if routine is None:
        return None
    unread = arguments.get("precision", "full") == "full"
    if structure is not None:
        return Work(routine, unread=unread)
    return Work(routine, holds=_is_general, known=(("assume_a", "gen"),), unread=unread)


def _general_work(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    return _system_work({**arguments, "assume_a": "gen"}, m, n)


def _is_general(arrays: dict[str, Any]) -> bool:
    return structure_for(arrays["a"], arrays["b"], None).structure is Structure.GENERAL


def _solve_stack(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: SolveAssumption = None, transposed: bool = False, *,
    pivot: Pivoting = "partial", precision: Precision = "full", **how: Any,
) -> Any:  # fmt: skip
    """Compute `solve` of a stack."""
    if is_mixed(precision):
        return None
    structure = structure_of(assume_a)
    # On a GPU, what is solved tells whether anything is not finite, where all of A is read.
    seen = is_device_array(a) and structure in (Structure.GENERAL, Structure.POSITIVE)
    systems = as_stack_of_systems(a, b, square=True, finite=check_finite and not seen)
    if systems is None:
        return None
    a, b = systems
    if transposed and a.dtype.kind == "c":
        return None
    rhs = b[:, :, None] if b.ndim == 2 else b
    if structure is Structure.POSITIVE:
        x = solve_positive_stack(a, rhs, lower, **how)
    elif pivot != "partial":
        return None
    elif not is_device_array(a):
        x = _solve_stack_on_host(a, rhs, structure, lower, transposed, **how)
    elif Found(structure).is_simple:
        return None
    else:
        a = as_general_stack(a, structure, lower)
        x = _solve_stack_on_gpu(a.swapaxes(1, 2) if transposed else a, rhs, **how)
    if isinstance(x, Uncertain):
        return x._replace(found=x.found.reshape(b.shape))
    return None if x is None else x.reshape(b.shape)


def _solve_stack_on_host(
    a: Any, b: Any, structure: Structure, lower: bool, transposed: bool, *,
    client: ClientLike = None, **options: Any,
) -> Any:  # fmt: skip
    if client is not None or options:
        return None
    found = solve_stack_on_host(a, b, structure, lower, transposed)
    return found and unless(~(found[1] >= np.finfo(a.dtype).eps), found[0])


def _solve_stack_on_gpu(a: Any, b: Any, **how: Any) -> Any:
    enough = tolerance(a.shape[1], b.shape[2], a.dtype)
    found = solve_stack_on_gpu("lu_and_solve", a, b, enough, **how)
    return found and unless(found[1], found[0])


@overload
def solve(
    a: Same | Numbers, b: Same | Numbers, lower: bool = False, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, assume_a: SolveAssumption = None,
    transposed: bool = False, *, pivot: Pivoting = "partial", precision: Precision = "full",
    client: ClientLike = None, report: Literal[False] = False, **options: Unpack[RunOptions],
) -> Same: ...  # fmt: skip
@overload
def solve(
    a: Same | Numbers, b: Same | Numbers, lower: bool = False, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, assume_a: SolveAssumption = None,
    transposed: bool = False, *, pivot: Pivoting = "partial", precision: Precision = "full",
    client: ClientLike = None, report: Literal[True], **options: Unpack[RunOptions],
) -> tuple[Same, AccuracyReport]: ...  # fmt: skip
@array_function(_solve_stack, _system_work, alone=as_stack_of_one(_solve_stack), a=2, b="1|2")
def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: SolveAssumption = None, transposed: bool = False, *,
    pivot: Pivoting = "partial", precision: Precision = "full", client: ClientLike = None,
    report: bool = False, **options: Unpack[RunOptions],
) -> Any:  # fmt: skip
    """Solve A X = B for a square matrix.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        As for `lu_factor`, but integers of any size become float64.  One number divides
        right-hand sides of any length, as in SciPy.
    b : array_like, shape (n,) or (..., n, nrhs)
        Right-hand sides, on the device of `a`.  Leading dimensions are broadcast.
    lower : bool, optional
        Which triangle of a symmetric, Hermitian or positive definite matrix to read: the
        lower one, or by default the upper one.
    overwrite_a : bool, optional
        Whether LU may work in the memory of `a` (if that is column-major), which saves a copy of
        it.  X is then not refined.  Cholesky may work there if `a` is on the host,
        and is column-major with `lower`, or row-major without.
    overwrite_b : bool, optional
        Whether X may take the place of `b` (where that is column-major).
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    assume_a : str, optional
        Structure of the matrix: "general" ("gen"), "diagonal", "tridiagonal", "banded",
        "upper triangular", "lower triangular", "symmetric" ("sym"), "hermitian" ("her") or
        "positive definite" ("pos").  None searches the matrix, from an order of 128 on, for a
        diagonal, a band and a triangle; with options, a client or a trace, it stands for
        "general".
    transposed : bool, optional
        Solve A^T X = B; for real matrices only, as in SciPy.
    pivot, client, **options
        As for `lu_factor`.
    precision : {"full", "mixed"}, optional
        With "mixed", a matrix of float64 or complex128 is factored in float32 or complex64, and X
        refined to the accuracy of full precision; where that is not predicted to be faster, or
        fails, the matrix is factored in its own precision.  `report` tells.  Structures that need
        no factorization are solved in full precision.
    report : bool, optional
        Whether to return a report, too, of what X is worth; for one matrix, and for a Dask array
        only in mixed precision.

    Returns
    -------
    array, shape (..., n) or (..., n, nrhs)
        X.
    AccuracyReport
        With `report`: errors, condition number, growth factor, seconds, joules and others.  The
        factors are kept until it is made, and `a` is not overwritten.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix, or one of a stack, is singular.
    NotImplementedError
        If `transposed` is asked for with complex numbers.
    ValueError
        If shapes, dtypes, values or `assume_a` are invalid.
    TypeError
        If `a` and `b` are not both on the host, or both on one GPU.
    Others
        As for `lu_factor`.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        If the matrix is singular to working precision.

    Notes
    -----
    General matrices are factored by LU with partial pivoting, positive definite ones by
    Cholesky, and without options symmetric and Hermitian ones on the host by Bunch and Kaufman's
    factorization, where one call of LAPACK is fastest (with more than two cores up to order 400),
    from a copy.  Others are completed from their triangle, for LU: that takes twice the
    operations, but uses all cores, or a GPU.  The other structures take at most O(n^2) operations
    per right-hand side, in the calling thread.

    LAPACK factors bands on the host: of a matrix on a GPU only the band travels, with the
    right-hand sides.  Where that is predicted to take longer, a wide band is factored as a general
    matrix, and many right-hand sides of a tridiagonal one are solved for by cuSPARSE.

    In mixed precision A is scaled by powers of two where its range asks for it, and X refined with
    all right-hand sides together, by the factors [1]_ or where that is slow by GMRES with them as
    its preconditioner [2]_, until the error ratio is about 1.

    After LU, few right-hand sides are all refined (one, and up to n / 64 on the host and with
    small matrices, n / 8 on a GPU): a residual and a solve with the factors, as in LAPACK's
    ``xGERFS``, which keeps the backward error small for any n.  Of more right-hand sides, only
    those with a larger backward error are refined.

    References
    ----------
    .. [1] LAPACK, ``DSGESV`` and ``DSPOSV``.
    .. [2] E. Carson and N. J. Higham, Accelerating the solution of linear systems by iterative
       refinement in three precisions, SIAM J. Sci. Comput. 40, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import solve
    >>> solve(np.array([[3.0, 2.0], [1.0, 2.0]]), [7.0, 5.0])
    array([1., 2.])
    >>> solve(np.array([[3.0, 2.0], [np.nan, 2.0]]), [7.0, 4.0],
    ...       assume_a="upper triangular", check_finite=False)
    array([1., 2.])
    """
    structure, pivoted = structure_of(assume_a), require_pivoting(pivot)
    mixed = is_mixed(precision)
    if is_number(a, b):
        require_options(options, client)
        if report:
            raise ValueError("report=True is for matrices, and `a` is one number")
        return divide_by_number(*_system(a, b, check_finite, transposed, True, mixed))
    checked = check_finite and structure is not Structure.BANDED
    a, b = _system(a, b, checked, transposed, mixed=mixed)
    watch = RunMeter() if report else None
    # Options, a client or a trace ask for a run of tasks, unless a structure is named.
    plain = pivoted and client is None and not options and not recording()
    searched = assume_a is None and plain
    found = structure_for(a, b, None if searched else structure)
    if check_finite and structure is Structure.BANDED:  # NaNs and infinities are in the band
        require_finite_band(a, found)
        require_finite(b, "b")
    unobserved = plain and not (mixed or report)
    at_once = None
    if unobserved and not is_device_array(a):
        at_once = _solve_at_once(a, b, found.structure, lower, transposed)
    if found.structure is Structure.POSITIVE:
        solved = solve_positive_system(
            a, b, lower=lower, overwrite_a=overwrite_a, mixed=mixed, keep=report, client=client,
            **options,
        )  # fmt: skip
    elif found.is_simple:
        require_options(options, client)
        solved = _solve_simple(a, b, found, transposed)
    elif at_once is not None:
        solved = Solution(at_once, None, dict)
    else:
        in_place = overwrite_a and can_hold_result(a) and not report
        a = as_general(a, found.structure, lower, in_place)
        solved = _solve_general(
            a, b, transposed, in_place, mixed=mixed, keep=report, pivoted=pivoted, client=client,
            **options,
        )  # fmt: skip
    made = watch and watch.report(_title(a, found), solved)  # `b` may be overwritten below
    x = _copy_into(solved.x, b) if overwrite_b else solved.x
    return (x, made) if report else x


def _title(a: Any, found: Found) -> str:
    named = "" if found.structure is Structure.GENERAL else f", {found.structure}"
    return f"solve of {a_matrix(len(a), len(a), a.dtype.name)}{named}"


def _solve_simple(a: Any, b: Any, found: Found, transposed: bool) -> Solution:
    """Solve for a structure that needs no run."""
    x = solve_simple(a, b, found, transposed)

    def again(b: Any, trans: int) -> Any:
        if trans == 0:
            return solve_simple(a, b, found, transposed)
        return solve_simple(a, b.conj(), found, not transposed).conj()

    def judge() -> Facts:
        if not x.size:
            return {"judged": 0}
        matrix = as_named(a, found)
        matrix, columns = matrix.T if transposed else matrix, (len(x), -1)
        anorm, right = norm1(matrix), b.reshape(columns)
        with without_warnings():  # X has had its own
            rcond = estimate_reciprocal_condition(anorm, right, again)
            return {"rcond": rcond} | facts_of_solution(
                matrix, anorm, x.reshape(columns), right, again
            )

    return Solution(x, None, judge)


def _copy_into(x: Any, memory: Any) -> Any:
    """Copy `x` to the memory of an array of its shape and dtype, if that can hold it."""
    if not can_hold_result(memory):
        return x
    memory[...] = x
    return memory


@array_function(None, _general_work, stacks=False, a=2, b="1|2")
def solve_with_report(
    a: Eager | Numbers, b: Eager | Numbers, *, check_finite: bool = True, transposed: bool = False,
    pivot: Pivoting = "partial", precision: Precision = "full", client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> tuple[Eager, Report]:  # fmt: skip
    """Solve A X = B as `solve` does; also return the plan and the timing of the run.

    Returns
    -------
    x : array, shape of `b`
        The solution.
    report : Report
        Its `plan` and `timing`; with `precision="mixed"`, `mixed` says what came of that.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> x, report = hetero_la.solve_with_report(np.array([[2.0, 1.0], [0.0, 4.0]]), [3.0, 4.0])
    >>> x
    array([1., 1.])
    >>> report.plan.routine
    'solve'
    """
    pivoted, mixed = require_pivoting(pivot), is_mixed(precision)
    matrix, rhs = _system(a, b, check_finite, transposed, mixed=mixed)
    x, run, _ = _solve_general(
        matrix, rhs, transposed, False, mixed=mixed, pivoted=pivoted, client=client, **options
    )
    assert run is not None
    return x, run


def _system(
    a: Any, b: Any, check_finite: bool, transposed: bool, number: bool = False, mixed: bool = False
) -> tuple[Any, Any]:
    a, b = as_system(a, b, check_finite=check_finite, square=not number, number=number)
    if transposed:
        refuse_complex(a.dtype)
    if mixed:
        require_lower(a.dtype)
    return a, b


def _solve_at_once(a: Any, b: Any, structure: Structure, lower: bool, transposed: bool) -> Any:
    """Solve on the host with fewer calls than a run takes, or with fewer operations.

    Returns None if another way is better, and where the matrix may be singular.
    """
    if structure is not Structure.GENERAL:
        return solve_by_one_core(a, b, structure, lower)
    rhs = b[:, None] if b.ndim == 1 else b
    if not b.size or len(a) > _SMALL or not takes_one_call("solve", a, rhs.shape[1]):
        return None
    a = a.T if transposed else a
    anorm, lu, x = norm1(a), np.empty(a.shape, a.dtype, order="F"), np.array(rhs, order="F")
    pivots, rcond = factor_and_solve(a, anorm, lu, x)
    if not rcond >= np.finfo(x.dtype).eps:
        return None
    return refine(a, anorm, partial(lu_solve, lu, pivots), rhs, x, rcond).reshape(b.shape)


def _solve_general(
    a: Any, b: Any, transposed: bool, in_place: bool, *, mixed: bool, keep: bool = False,
    pivoted: bool, **how: Any,
) -> Solution:  # fmt: skip
    """Solve by LU, in mixed precision on request and where that helps."""
    full = {**how, **full_products(how)} if mixed else how
    solve_in_full = partial(
        _solve_by_lu, a, b, transposed, in_place, keep=keep, pivoted=pivoted, **full
    )
    if not mixed:
        return solve_in_full()

    def solve_in_both() -> tuple[Solution, MixedOutcome]:
        matrix = a.T if transposed else a
        lower = with_lower_products("lu", matrix, how)
        run = partial(execute_lu, "lu", pivoted=pivoted, **LOWER_RUN, **lower)
        solved, outcome = solve_mixed(matrix, b[:, None] if b.ndim == 1 else b, run)
        return solved._replace(x=solved.x.reshape(b.shape)), outcome

    nrhs = 1 if b.ndim == 1 else b.shape[1]
    return first_mixed("lu", a, nrhs, solve_in_both, solve_in_full, lambda solved: solved.run)


def _solve_by_lu(
    a: Any, b: Any, transposed: bool, in_place: bool, *, keep: bool = False, **how: Any
) -> Solution:
    """Solve by LU and refinement; with `keep`, the factors are there to judge X."""
    rhs = b[:, None] if b.ndim == 1 else b
    if in_place or (is_device_array(a) and how["client"] is None):
        x, run, judge = _factor_and_solve(a, rhs, transposed, in_place, **how)
        return Solution(x.reshape(b.shape), run, judge)
    a = a.T if transposed else a
    residency = Residency.CALLER if keep else Residency.NOBODY
    result = execute_lu("solve", a, rhs, residency=residency, **how)
    rcond: float | None = None
    if result.checked:
        _require_nonsingular(result)
        warn_ill_conditioned(result.rcond, a.dtype)
        if result.refined:
            return Solution(result.solution.reshape(b.shape), result.report, dict)
        result = execute_lu("solve", a, rhs, **how)  # with its factors
        anorm = norm1(a)
    else:
        anorm, rcond = _checked_norm(a, result, roughly=not keep)
    again = _Counted(partial(result.solve_lu, trans=0, stable=True))
    x = refine(a, anorm, again, rhs, result.solution, rcond or 0.0)
    judge = partial(_judge, result, a, anorm, rcond, x, rhs, again)
    return Solution(x.reshape(b.shape), result.report, judge)


class _Counted:
    """A solve, and how often it was called: by `refine`, once in each step."""

    def __init__(self, solve: Callable[[Any], Any]) -> None:
        self._solve, self.calls = solve, 0

    def __call__(self, b: Any) -> Any:
        self.calls += 1
        return self._solve(b)


def _judge(
    result: Result, a: Any, anorm: float, rcond: float | None, x: Any, b: Any, steps: _Counted,
    transposed: bool = False, stable: bool = False,
) -> Facts:  # fmt: skip
    """Judge a solution by LU; with `transposed`, the factors are those of A^T.

    Only with `stable` are the factors ones for which a GPU's fast substitution is inaccurate.
    """
    solver = result.substitution("lu") if is_device_array(result.factors) else None
    factored = LUFactored(result.factors, result.report, result.piv, result.growth, solver=solver)
    facts = facts_of_run(factored, a) | {"rcond": rcond, "refinement_steps": steps.calls}

    def solve(b: Any, trans: int) -> Any:
        return result.solve_lu(b, 2 - trans if transposed else trans, stable=stable)

    return facts | facts_of_solution(a, anorm, x, b, solve)


def _factor_and_solve(a: Any, b: Any, transposed: bool, in_place: bool, **how: Any) -> Solution:
    """Factor, perhaps in the memory of the matrix or on the GPUs, and then solve."""
    before = enqueued_norm1(a) if in_place else None
    result = execute_lu("lu", a, overwrite_a=in_place, residency=Residency.WORKERS, **how)
    anorm = enqueued_norm1(a) if before is None else before
    if b.size == 0:
        return Solution(b, result.report, lambda: {"judged": 0})
    trans, changed = 2 if transposed else 0, in_place and not result.kept
    on_device, error = is_device_array(b), None
    matrix = a.T if transposed else a
    norm = enqueued_norm1(matrix) if transposed and not changed else anorm
    again = _Counted(partial(result.solve_lu, trans=trans))
    if on_device:  # its work is enqueued before the first wait, which is for `info`
        x = result.solve_lu(b, trans, stable=changed)
        _ = result.substitution("lu").inverse_norm
        if not changed:
            error = step_ahead(matrix, norm, again, b, x)
    rcond = _require_solvable(result, anorm, b, roughly=in_place)
    if not on_device:
        x = result.solve_lu(b, trans, stable=changed)
    if changed:
        return Solution(x, result.report, dict)
    norm, stable = float(norm), False
    if error is None or not is_settled(error, rcond, x.dtype):
        x = refine(matrix, norm, again, b, x, rcond)
        stable = on_device and not is_accurate(matrix, norm, b, x)
    if stable:
        again = _Counted(partial(result.solve_lu, trans=trans, stable=True))
        x = refine(matrix, norm, again, b, again(b))
    judge = partial(_judge, result, matrix, norm, rcond, x, b, again, transposed, stable)
    return Solution(x, result.report, judge)


def _checked_norm(a: Any, result: Result, roughly: bool) -> tuple[float, float | None]:
    """Return the norm and the condition of A; warn if ill-conditioned, raise if singular."""
    if result.beside.size == 0:
        return 0.0, None
    anorm = norm1(a)
    return anorm, _require_solvable(result, anorm, result.beside, roughly)


def _inverse(a: Any, in_place: bool, **how: Any) -> Any:
    """Invert a general matrix; warn if it is ill-conditioned, raise if it is singular."""
    if is_device_array(a) and how["client"] is None:
        if not a.size:
            return a.copy()
        anorm, ainvnorm, x = _inverse_on_device(a, **how)
    else:
        result = execute("inverse", a, columns=len(a), residency=Residency.WORKERS, **how)
        _require_nonsingular(result)
        anorm, x = norm1(a), result.beside if in_place else result.solution
        ainvnorm = norm1(x)
    if x.size:
        warn_ill_conditioned(reciprocal(anorm, ainvnorm), a.dtype)
    return x


def _inverse_on_device(a: Any, **how: Any) -> tuple[float, float, Any]:
    """Return the 1-norms of a matrix on the caller's GPU and of its inverse, and the inverse."""
    result = execute("lu", a, **how)
    there = enqueued_norm1(a)
    x = Substitution(result.factors, "lu", result.piv, order=256).inverse()
    error, ainvnorm = inverse_error(a, x), enqueued_norm1(x)
    _require_nonsingular(result)  # the first wait
    anorm = float(there)
    if not inverse_is_accurate(error, anorm, x):
        identity = array_module(a).eye(len(a), dtype=a.dtype)
        x = result.solve_lu(identity, 0, stable=True)
        ainvnorm = norm1(x)
    return anorm, float(ainvnorm), x


def _require_nonsingular(result: Result) -> None:
    if result.info:
        raise LinAlgError(singular_message(result.info))


def _require_solvable(result: Result, anorm: Any, like: Any, roughly: bool) -> float:
    """Return 1 / condition; raise LinAlgError for singular factors, warn if nearly singular."""
    _require_nonsingular(result)
    rcond = result.lu_rcond(anorm, like, roughly=roughly)
    warn_ill_conditioned(rcond, like.dtype)
    return rcond


def _inverse_work(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    structure = arguments.get("assume_a", "gen")
    general = structure is None or (isinstance(structure, str) and structure in ("gen", "general"))
    return Work("inverse", n, n * n, unread=True) if m == n and general else None


def _invert_stack(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *,
    assume_a: InvAssumption = None, lower: bool = False, **how: Any,
) -> Any:  # fmt: skip
    """Compute `inv` of a stack."""
    structure = structure_of(assume_a, INV_NAMES)
    seen = is_device_array(a) and structure in (Structure.GENERAL, Structure.POSITIVE)
    a = as_stack(a, square=True, finite=check_finite and not seen)
    if a is None:
        return None
    if structure is Structure.POSITIVE:
        xp = array_module(a)
        return solve_positive_stack(a, xp.eye(a.shape[1], dtype=a.dtype)[None], lower, **how)
    if Found(structure).is_simple:
        return None
    a = as_general_stack(a, structure, lower)
    if is_device_array(a):
        found = solve_stack_on_gpu("lu_and_invert", a, **how)
        return found and unless(found[1], found[0])

    def estimated(part: Stack, place: slice) -> tuple[Any, Any]:
        with np.errstate(all="ignore"):  # what overflows is too large
            return part.beside, 1 / (stack_norm1(a[place]) * stack_norm1(part.beside))

    done = run_for_each("inverse", a, columns=a.shape[1], then=estimated, keep=False, **how)
    return solutions_of(done)


@array_function(_invert_stack, _inverse_work, alone=as_stack_of_one(_invert_stack), a=2)
def inv(
    a: Same | Numbers, overwrite_a: bool = False, check_finite: bool = True, *,
    assume_a: InvAssumption = None, lower: bool = False, client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> Same:  # fmt: skip
    """Invert a matrix, by solving A X = I.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        As for `lu_factor`.
    overwrite_a : bool, optional
        Whether the inverse may take the place of `a` (where that is column-major).
    check_finite, lower, client, **options
        As for `solve`.
    assume_a : str, optional
        As for `solve`; without "tridiagonal" and "banded", and "sym", "her" and "pos" in
        their short form only, as in SciPy.

    Returns
    -------
    array, shape (..., n, n)
        The inverse.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix, or one of a stack, is singular.
    ValueError
        If shape, dtype, values or `assume_a` are invalid.
    Others
        As for `lu_factor`.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        If the matrix is singular to working precision.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import inv
    >>> inv(np.array([[2.0, 1.0], [1.0, 1.0]]))
    array([[ 1., -1.],
           [-1.,  2.]])
    """
    structure = structure_of(assume_a, INV_NAMES)
    a = as_matrix(a, square=True, finite=check_finite)
    if structure is Structure.POSITIVE:
        x = inverse_positive(a, lower=lower, client=client, **options)
    elif Found(structure).is_simple:
        require_options(options, client)
        x = invert_simple(a, structure)
    else:
        full = as_general(a, structure, lower)
        x = _inverse(full, overwrite_a and can_hold_result(a), client=client, **options)
        if not is_finite(x):  # rows of U times X overflowed, or the inverse itself does
            exponents = column_exponents(full.T)
            scaled = times_power_of_two(full.T, exponents).T
            x = _inverse(scaled, False, client=client, **options)
            x = times_power_of_two(x, exponents)
    return _copy_into(x, a) if overwrite_a else x
