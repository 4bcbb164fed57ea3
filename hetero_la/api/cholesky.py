"""Cholesky factorization, and solves with its factor."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Unpack, overload

import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.accuracy.factored import CholeskyFactored
from hetero_la.accuracy.judging import (
    Facts,
    Solution,
    facts_of_run,
    facts_of_solution,
    judge_factors,
)
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.api.factors import Factors
from hetero_la.api.host_arrays import Work
from hetero_la.api.stacks import (
    Uncertain,
    array_function,
    as_stack_of_one,
    failures,
    foreign_too,
    over_stacks,
    unless,
)
from hetero_la.checks.array_types import Eager, Lazy, LazyCholesky, Numbers, Same, Stored
from hetero_la.checks.inputs import (
    as_array,
    as_columns_for,
    as_finite_array,
    as_matrix,
    as_stack,
    as_system,
    is_writable,
    require_square,
)
from hetero_la.checks.lazy import is_dask_array, lazy_function
from hetero_la.checks.warnings import not_positive_message, warn_ill_conditioned
from hetero_la.execution.destination import can_hold_result
from hetero_la.execution.execute import execute
from hetero_la.execution.one_call import report_of_one
from hetero_la.execution.report import MixedOutcome, Report
from hetero_la.execution.resident_factors import Residency
from hetero_la.execution.result import Result
from hetero_la.execution.stack_runs import Stack, run_for_each, solve_each, solve_stack_on_gpu
from hetero_la.mixed.fallback import first_mixed
from hetero_la.mixed.lower_factors import lower_cholesky
from hetero_la.mixed.matrix_beside import MatrixBeside, judge_beside
from hetero_la.mixed.precision import is_mixed, refuse_stack, require_lower
from hetero_la.mixed.prediction import (
    LOWER_FACTORS,
    LOWER_RUN,
    full_products,
    with_lower_products,
)
from hetero_la.mixed.systems import solve_mixed
from hetero_la.numerics.conditioning import (
    enqueued_norm1,
    hermitian_norm1,
    reciprocal_condition,
)
from hetero_la.numerics.refinement import is_small, solution_error
from hetero_la.numerics.triangles import (
    complete_from_triangle,
    solve_with_cholesky,
    zero_upper_triangle,
)
from hetero_la.planning.options import Precision, RunOptions
from hetero_la.scheduler.cluster.clients import ClientLike
from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_host
from hetero_la.tiles.kernels.cpu.lapack import lapack_function
from hetero_la.tiles.kernels.gpu_libraries.finite import require_finite


class CholeskyFactors(Factors[Stored, bool]):
    """Cholesky factor, A = L L^H or U^H U; unpacks as SciPy's ``(c, lower)``.

    Attributes
    ----------
    c : array, shape (n, n)
        L or U in its triangle; the other triangle is undefined.
    lower : bool
        Whether it is L.
    info : int
        Always 0: a matrix that is not positive definite raises an error.
    plan : Plan
        How the run was planned.
    timing : Timing
        How it went.
    mixed : MixedOutcome or None
        As of `LUFactors`.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> factors = hetero_la.cho_factor(np.array([[4.0, 2.0], [2.0, 5.0]]))
    >>> np.triu(factors.c)
    array([[2., 1.],
           [0., 2.]])
    >>> factors.solve(np.array([6.0, 7.0]))
    array([1., 1.])
    """

    _beside: MatrixBeside | None = None
    _how: Mapping[str, Any] = MappingProxyType({})

    @property
    def c(self) -> Stored:
        """The factor, in one triangle of a square array."""
        return self[0]

    @property
    def lower(self) -> bool:
        """Whether the factor is L."""
        return bool(self[1])

    @overload
    def solve(self, b: Lazy) -> Lazy: ...
    @overload
    def solve(self, b: Stored | Numbers) -> Stored: ...
    @foreign_too
    def solve(self, b: Any) -> Any:
        """Solve A X = B.

        Parameters
        ----------
        b : array, shape (n,) or (n, nrhs)
            Right-hand sides.

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
        >>> hetero_la.cho_factor(np.array([[4.0, 2.0], [2.0, 5.0]])).solve([6.0, 7.0])
        array([1., 1.])
        """
        if is_dask_array(b):
            return lazy_function("cho_solve_checking_b")(self, b)
        b = as_finite_array(b, "b")
        return cho_solve(self, b, check_finite=False)  # c was; its other triangle may not be finite

    @foreign_too
    def logdet(self) -> float:
        """Compute the logarithm of the determinant of A.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> round(hetero_la.cho_factor(np.diag([np.e, np.e**2])).logdet(), 12)
        3.0
        """
        factors = self if self._beside is None else _factored_in_full(self)
        diagonal = to_host(factors[0].diagonal()).real
        return float(2 * np.log(diagonal).sum(dtype=np.float64))

    @array_function(stacks=False)
    def report(
        self, a: Stored | Numbers | None = None, b: Stored | Numbers | None = None,
        x: Stored | Numbers | None = None,
    ) -> AccuracyReport:  # fmt: skip
        """Estimate what the factor, or a solution, is worth, as `LUFactors.report` does.

        Parameters
        ----------
        a : array, shape (n, n), optional
            The matrix; only the triangle that the factor is in is used.
        b, x : array, optional
            Right-hand sides and solution, as for `LUFactors.report`.

        Returns
        -------
        AccuracyReport
            Errors, condition number and others; see its attributes.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> a = np.array([[4.0, 2.0], [2.0, 5.0]])
        >>> round(hetero_la.cho_factor(a).report().rcond, 6)
        0.326531
        """
        if self._beside is not None:
            return judge_beside(
                self._beside, partial(_solve_lower, self), self.solve, b, x, self,
                conjugate=not self.lower,
            )  # fmt: skip

        def solve(b: Any, trans: int) -> Any:
            b = b if self.lower else b.conj()
            x = cho_solve(self, b, check_finite=False)
            return x if self.lower else x.conj()

        factored = CholeskyFactored(self.c if self.lower else self.c.T, self._report)
        return judge_factors(factored, a, b, x, solve, conjugate=not self.lower)


def _factorization(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    if arguments.get("precision", "full") != "full":
        return None  # factors in the lower precision need the matrix where they are
    # What is on the GPU is a copy that nobody else has.
    return Work("cholesky", 0, m * n, known=(("overwrite_a", True),), unread=True)


def _factor_each(a: Any, lower: bool, check_finite: bool, clear: bool, **how: Any) -> Any:
    """Return the factors of a stack, on request with zeros in their other triangles."""
    a = as_stack(a, square=True, finite=check_finite and not is_device_array(a))
    if a is None:
        return None

    def cleared(part: Stack, place: slice) -> tuple[Any, ...]:
        zero_upper_triangle(part.factors)
        return ()

    then = None if is_device_array(a) or not clear else cleared  # a GPU's have them
    done = run_for_each("cholesky", a if lower else _turned(a), then=then, **how)
    if done is None:
        return None
    factors = done.factors if lower else _turned(done.factors)
    return unless(failures(done.vectors["info"], check_finite), factors)


def _factor_stack(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *,
    precision: Precision = "full", **how: Any,
) -> Any:  # fmt: skip
    """Compute `cho_factor` of a stack."""
    refuse_stack(precision)
    found = _factor_each(a, lower, check_finite, False, **how)
    if found is None:
        return None
    lowers = array_module(a).full(len(a), lower)
    if isinstance(found, Uncertain):
        return found._replace(found=(found.found, lowers))
    return found, lowers


def _cholesky_stack(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, **how: Any
) -> Any:
    """Compute `cholesky` of a stack."""
    return _factor_each(a, lower, check_finite, True, **how)


def _factor_alone(a: Any, lower: bool = False, check_finite: bool = True) -> Any:
    """Compute `cho_factor` of one small matrix on a GPU."""
    began = time.perf_counter()
    c = as_stack_of_one(_cholesky_stack)(a, lower=lower, check_finite=check_finite)
    if c is None:
        return None
    return CholeskyFactors(c, lower, 0, report_of_one("cholesky", a, c.dtype, began))


def _turned(a: Any) -> Any:
    return a.swapaxes(1, 2)


@array_function(_cholesky_stack, _factorization, alone=as_stack_of_one(_cholesky_stack), a=2)
def cholesky(
    a: Same | Numbers, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *,
    client: ClientLike = None, **options: Unpack[RunOptions],
) -> Same:  # fmt: skip
    """Factor a Hermitian positive definite matrix: A = L L^H, or A = U^H U.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        NumPy or CuPy array or stack, as for `lu_factor`; only the triangle that `lower` names is
        used.  A number counts as a 1 x 1 matrix.
    lower : bool, optional
        Whether to compute L; U by default.
    overwrite_a : bool, optional
        Whether the factor may take the place of `a`, if that is column-major or row-major.
    check_finite : bool, optional
        Whether to refuse NaNs and infinities, in either triangle.
    client, **options
        As for `lu_factor`.

    Returns
    -------
    array, shape (..., n, n)
        L or U, with zeros in the other triangle.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite; the message names the leading minor.
    ValueError
        If `a` is not square, of another dtype, or not finite.
    Others
        As for `lu_factor`.

    Notes
    -----
    Right-looking blocked Cholesky (LAPACK, ``xPOTRF``) of the lower triangle; U is found
    as the transpose of the factor of the transpose.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import cholesky
    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]), lower=True)
    array([[2., 0.],
           [1., 2.]])
    """
    factor, _ = _factor(a, lower, overwrite_a, check_finite, client=client, **options)
    zero_upper_triangle(factor)
    return factor if lower else factor.T


@overload
def cho_factor(
    a: Eager | Numbers, lower: bool = False, overwrite_a: bool = False,
    check_finite: bool = True, *, precision: Precision = "full", client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> CholeskyFactors[Eager]: ...  # fmt: skip
@overload
def cho_factor(
    a: Lazy, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *,
    precision: Precision = "full", client: ClientLike = None, **options: Unpack[RunOptions],
) -> LazyCholesky[Lazy]: ...  # fmt: skip
@array_function(_factor_stack, _factorization, alone=_factor_alone, a=2)
def cho_factor(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *,
    precision: Precision = "full", client: ClientLike = None, **options: Unpack[RunOptions],
) -> CholeskyFactors | LazyCholesky[Any]:  # fmt: skip
    """Factor a Hermitian positive definite matrix, for `cho_solve`.

    Parameters
    ----------
    a, lower, overwrite_a, check_finite, client, **options
        As for `cholesky`.
    precision : {"full", "mixed"}, optional
        As for `lu_factor`.

    Returns
    -------
    CholeskyFactors
        Unpacks as SciPy's ``(c, lower)``; the triangle of c that does not hold the factor is
        undefined.  For a stack, a plain tuple of stacked arrays.

    Raises
    ------
    numpy.linalg.LinAlgError, ValueError and others
        As for `cholesky`.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import cho_factor, cho_solve
    >>> cho_solve(cho_factor(np.array([[4.0, 2.0], [2.0, 5.0]])), [6.0, 7.0])
    array([1., 1.])
    """
    factor = _factor_mixed if is_mixed(precision) else _factor_in_full
    return factor(a, lower, overwrite_a, check_finite, client=client, **options)


def _factor_in_full(a: Any, lower: bool, overwrite_a: bool, check_finite: bool, **how: Any) -> Any:
    """Compute `cho_factor` of one matrix."""
    factor, result = _factor(a, lower, overwrite_a, check_finite, residency=Residency.BOTH, **how)
    return CholeskyFactors(factor if lower else factor.T, lower, 0, result.report, result.kept)


def _factor_mixed(a: Any, lower: bool, overwrite_a: bool, check_finite: bool, **how: Any) -> Any:
    """Factor a matrix in the lower precision, and keep it beside the factor."""
    a = _as_square(a, check_finite)
    require_lower(a.dtype)
    full = {**how, **full_products(how)}

    def in_both() -> tuple[CholeskyFactors, MixedOutcome]:
        options = {**with_lower_products("cholesky", a, how), **LOWER_FACTORS}
        # The upper triangle of A is the lower one of A^T.
        found = lower_cholesky(a if lower else a.T, partial(execute, "cholesky", **options))
        result, matrix = found.result, a if overwrite_a else a.copy(order="K")
        matrix = matrix if lower else matrix.T
        factor = result.array if lower else result.array.T
        factors = CholeskyFactors(factor, lower, 0, result.report, result.kept)
        rcond = found.condition_of(matrix, hermitian=True)
        factors._beside = MatrixBeside(matrix, found.scaling, rcond, found.norms, hermitian=True)
        factors._how = {name: value for name, value in full.items() if name != "client"}
        return factors, MixedOutcome(factors.dtype.name)

    in_full = partial(_factor_in_full, a, lower, overwrite_a, False, **full)
    return first_mixed("cholesky", a, 1, in_both, in_full, lambda factors: factors._report)


def _factored_in_full(factors: CholeskyFactors) -> CholeskyFactors:
    """Factor the matrix beside factors in its own precision, unless that was done."""
    beside = factors._beside
    assert beside is not None
    if beside.full is None:
        beside.full = _factor_in_full(beside.matrix, True, False, False, **factors._how)
    full: CholeskyFactors = beside.full
    return full


def _solve_lower(factors: CholeskyFactors, b: Any, trans: int) -> Any:
    """Solve with the factor alone, of the matrix whose lower triangle is beside it.

    That is done in the precision of the right-hand sides.
    """
    kept, beside = factors._kept_for(b), factors._beside
    x = None if kept is None else kept.answer(b, partial(kept.solve, "cho_solve"))
    if x is not None:
        return x
    c = factors.c if factors.lower else factors.c.T
    if beside is not None and b.dtype != c.dtype:
        c = beside.widened(c)
    return solve_with_cholesky(c, b, lower=True)


def _factor(
    a: Any, lower: bool, overwrite_a: bool, check_finite: bool, **how: Any
) -> tuple[Any, Result]:
    """Compute a factor in the lower triangle of an array; return it and the result of the run."""
    a = _as_square(a, check_finite)
    # The upper triangle of A is the lower one of A^T, and U^T its factor.
    matrix = a if lower else a.T
    # If the array may be overwritten but has the other order, complete it and use its transpose.
    turned = overwrite_a and not can_hold_result(matrix) and can_hold_result(matrix.T)
    if turned:
        matrix = matrix.T
        complete_from_triangle(matrix, lower=False, conjugate=False)
    result = execute("cholesky", matrix, overwrite_a=overwrite_a, **how)
    if result.info:
        raise LinAlgError(not_positive_message(result.info))
    if turned:
        complete_from_triangle(result.array, lower=True, conjugate=False)
    return result.array.T if turned else result.array, result


def _as_square(a: Any, check_finite: bool) -> Any:
    """Return an array as a square matrix; as SciPy, accept a number."""
    a = as_array(a, "a", (0, 1, 2))
    a = a if a.ndim == 2 else array_module(a).atleast_2d(a)
    require_square(a, "a")
    if check_finite:
        require_finite(a, "a")
    return a


@array_function()
def cho_solve(
    c_and_lower: tuple[Same | Numbers, bool] | LazyCholesky[Same], b: Same | Numbers,
    overwrite_b: bool = False, check_finite: bool = True,
) -> Same:  # fmt: skip
    """Solve A X = B from the Cholesky factor of A, where it is: on the host or on its GPU.

    Parameters
    ----------
    c_and_lower : tuple of array and bool
        From `cho_factor`: an (..., n, n) array, and whether the factor is its lower triangle.
    b : array_like, shape (n,) or (..., n, nrhs)
        Right-hand sides.
    overwrite_b : bool, optional
        Whether X may take the place of `b` (where it is column-major and writable).
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.

    Returns
    -------
    array, shape of `b`
        X.

    Raises
    ------
    ValueError
        If the shapes do not fit, or the factor or `b` is not finite.
    TypeError
        If the factor and `b` are not both on the host, or both on one GPU.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import cho_solve
    >>> cho_solve((np.array([[2.0, 0.0], [1.0, 2.0]]), True), [6.0, 7.0])
    array([1., 1.])
    """
    c, lower = c_and_lower
    if isinstance(c_and_lower, CholeskyFactors) and c_and_lower._beside is not None:
        return _solve_beside(c_and_lower, b, check_finite)
    if isinstance(c_and_lower, CholeskyFactors) and (kept := c_and_lower._kept_for(b)) is not None:
        if check_finite:
            c_and_lower._require_finite("c")
            require_finite(np.asarray(b), "b")
        # Of U, the lower triangle of A^T was factored, which is the conjugate of A.
        x = kept.answer(b, partial(kept.solve, "cho_solve"), conjugate=not lower)
        if x is not None:
            return x
    return _cho_solve(c, lower, b, overwrite_b=overwrite_b, check_finite=check_finite)


def _solve_beside(factors: CholeskyFactors, b: Any, check_finite: bool) -> Any:
    """Solve with a factor in the lower precision and refine, by the triangle that is beside it."""
    beside = factors._beside
    assert beside is not None
    b = as_columns_for(beside.matrix, b, "a factor", finite=check_finite)
    # Of U, the lower triangle of A^T is there, which is the conjugate of A.
    x = beside.solve(
        partial(_solve_lower, factors), b if factors.lower else b.conj(), 0,
        lambda matrix: _factor_in_full(matrix, True, False, False, **factors._how),
        factors._report, check_finite=False,
    )  # fmt: skip
    return x if factors.lower else x.conj()


def _cho_solve_stack(c: Any, lower: Any, b: Any, *, overwrite_b: bool, check_finite: bool) -> Any:
    """Compute `cho_solve` with factors of a stack, if all arguments are valid."""
    c, b = as_stack(c, square=True, finite=check_finite), as_stack(b, finite=check_finite)
    if c is None or b is None or c.shape[1] != b.shape[1]:
        return None
    dtype, triangles, rhs = (
        np.result_type(c.dtype, b.dtype),
        lower.tolist(),
        b.reshape(*b.shape[:2], -1),
    )
    if is_device_array(c):
        if len(set(triangles)) > 1:
            return None
        c, rhs = c.astype(dtype, copy=False), rhs.astype(dtype, copy=False)
        return _cho_solve_on_gpu(c, triangles[0], rhs, b.shape)
    potrs = lapack_function("potrs", dtype.char)

    def solve(i: int, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = potrs(c[i], x, lower=triangles[i], overwrite_b=True)[0]
        return found

    return solve_each(solve, "cho_solve", rhs, dtype).reshape(b.shape)


def _cho_solve_on_gpu(c: Any, lower: bool, rhs: Any, shape: tuple[int, ...]) -> Any:
    # Of U, the transpose is the lower factor of A^T, which is the conjugate of A.
    c, rhs = (c, rhs) if lower else (_turned(c), rhs.conj())
    x = solve_stack_on_gpu("cho_solve", c, rhs)
    return None if x is None else (x if lower else x.conj()).reshape(shape)


@over_stacks(_cho_solve_stack, c=2, lower=0, b="1|2")
def _cho_solve(c: Any, lower: Any, b: Any, *, overwrite_b: bool, check_finite: bool) -> Any:
    """Solve with the factors of one matrix."""
    c = as_matrix(c, "c", square=True, finite=check_finite)
    b = as_columns_for(c, b, "a factor", finite=check_finite)
    if b.size == 0:
        return array_module(b).empty(b.shape, array_module(b).result_type(c, b))
    overwrite_b = overwrite_b and is_writable(b)  # SciPy also overwrites read-only arrays
    return solve_with_cholesky(c, b, lower=bool(lower), overwrite_b=overwrite_b)


def solve_positive(
    a: Any, b: Any, *, lower: bool = False, check_finite: bool = True,
    precision: Precision = "full", **how: Any,
) -> tuple[Any, Report]:  # fmt: skip
    """Solve A X = B for a Hermitian positive definite matrix.

    Parameters
    ----------
    a : array, shape (n, n)
        Only the triangle that `lower` names is used.
    b : array, shape (n,) or (n, nrhs)
        Right-hand sides, on the device of `a`.
    lower, check_finite, **how
        As for `cholesky`.
    precision : {"full", "mixed"}, optional
        As for `solve`.

    Returns
    -------
    x : array, shape of `b`
        The solution.
    report : Report
        Its `plan` and `timing`.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    mixed = is_mixed(precision)
    a, b = as_system(a, b, check_finite=check_finite, square=True)
    if mixed:
        require_lower(a.dtype)
    x, run, _ = solve_positive_system(a, b, lower=lower, mixed=mixed, **how)
    assert run is not None
    return x, run


def solve_positive_system(
    a: Any, b: Any, *, lower: bool, overwrite_a: bool = False, mixed: bool = False,
    keep: bool = False, **how: Any,
) -> Solution:  # fmt: skip
    """Solve as `solve_positive` does, for arrays that have been checked.

    With `keep`, the factors are there to judge X, and A is not overwritten.
    """
    rhs = b[:, None] if b.ndim == 1 else b
    full = partial(_solve_in_full, a, rhs, lower, overwrite_a=overwrite_a, keep=keep)
    if mixed:
        solve_in_both = partial(_solve_mixed, a, rhs, lower, **how)
        solve_in_full = partial(full, **{**how, **full_products(how)})
        x, run, judge = first_mixed(
            "cholesky", a, rhs.shape[1], solve_in_both, solve_in_full, lambda made: made.run
        )
    else:
        x, run, judge = full(**how)
    return Solution(x.reshape(b.shape), run, judge)


def _solve_in_full(
    a: Any, b: Any, lower: bool, *, overwrite_a: bool, keep: bool, **how: Any
) -> Solution:
    """Solve in the precision of the matrix; it is overwritten if that may be, and helps."""
    here = not is_device_array(a) and how.get("client") is None
    if overwrite_a and not keep and here and can_hold_result(a if lower else a.T):
        return _solve_in_place(a, b, lower, **how)
    return _solve("solve_positive", a, b, lower, keep=keep, **how)


def _solve_mixed(a: Any, b: Any, lower: bool, **how: Any) -> tuple[Solution, MixedOutcome]:
    """Solve in mixed precision, by the lower triangle of A or that of A^T, its conjugate."""
    turn = array_module(a).asarray if lower or a.dtype.kind == "f" else array_module(a).conj
    matrix = a if lower else a.T
    run = partial(execute, "cholesky", **LOWER_RUN, **with_lower_products("cholesky", matrix, how))
    solved, outcome = solve_mixed(matrix, turn(b), run, hermitian=True)
    return solved._replace(x=turn(solved.x)), outcome


def solve_positive_stack(a: Any, b: Any, lower: bool, **how: Any) -> Any:
    """Solve with each matrix of a stack; `b` may be a stack of one, for all matrices."""
    xp, matrices = array_module(a), a if lower else _turned(a)

    def turn(x: Any) -> Any:
        return x if lower or a.dtype.kind == "f" else xp.conj(x)

    rhs = turn(b) if len(b) == len(a) else xp.broadcast_to(turn(b), (len(a), *b.shape[1:]))

    if is_device_array(a):
        found = solve_stack_on_gpu("cholesky_and_solve", matrices, rhs, **how)
        return found and unless(found[1], turn(found[0]))

    def estimated(part: Stack, place: slice) -> tuple[Any, Any]:
        given = zip(matrices[place], part.factors, part.beside, part.vectors["info"], strict=True)
        rconds = [
            0.0 if info else
            reciprocal_condition(
                hermitian_norm1(matrix), factor, x, None, hermitian=True, roughly=True
            )
            for matrix, factor, x, info in given
        ]  # fmt: skip
        return turn(part.beside), np.array(rconds)

    done = run_for_each("solve_positive", matrices, rhs, then=estimated, keep=False, **how)
    return solutions_of(done)


def solutions_of(done: Stack | None) -> Any:
    """Return X, unless a matrix is nearly singular, of which X and 1 / condition were found."""
    if done is None:
        return None
    x, rconds = done.found
    singular = done.vectors["info"][:, 0] != 0
    return unless(singular | ~(rconds >= np.finfo(x.dtype).eps), x)


def inverse_positive(a: Any, *, lower: bool = False, **how: Any) -> Any:
    """Invert a Hermitian positive definite matrix, of which one triangle is given.

    See `solve_positive` for the parameters.
    """
    return _solve("inverse_positive", a, None, lower, columns=len(a), **how).x


def _solve(
    routine: str, a: Any, rhs: Any, lower: bool, *, keep: bool = False, **how: Any
) -> Solution:
    # A^T is the conjugate of A: it has the conjugate solution for conjugate right-hand sides.
    xp = array_module(a)
    turn = xp.asarray if lower or a.dtype.kind == "f" else xp.conj
    matrix = a if lower else a.T
    rhs = None if rhs is None else turn(rhs)
    if rhs is not None and is_device_array(a) and how.get("client") is None:
        solved = _solve_on_device(matrix, rhs, **how)
        return solved._replace(x=turn(solved.x))
    residency = Residency.CALLER if keep else Residency.NOBODY
    result = execute(routine, matrix, rhs, residency=residency, **how)
    if result.info:
        raise LinAlgError(not_positive_message(result.info))
    x = result.solution
    if result.checked:
        warn_ill_conditioned(result.rcond, a.dtype)
        return Solution(turn(x), result.report, dict)
    if not x.size:
        return Solution(turn(x), result.report, lambda: {"judged": 0})
    anorm = hermitian_norm1(matrix)
    rcond = result.cholesky_rcond(anorm, x, roughly=not keep)
    warn_ill_conditioned(rcond, a.dtype)
    judge = partial(_judge, result, matrix, anorm, rcond, x, rhs)
    return Solution(turn(x), result.report, judge)


def _solve_in_place(a: Any, b: Any, lower: bool, **how: Any) -> Solution:
    """Factor in the memory of the matrix, whose pages have been touched, and then solve."""
    matrix, turned = a if lower else a.T, not lower and a.dtype.kind == "c"
    anorm = hermitian_norm1(matrix)
    result = execute("cholesky", matrix, overwrite_a=True, **how)
    if result.info:
        raise LinAlgError(not_positive_message(result.info))
    if not b.size:
        return Solution(b.copy(), result.report, dict)
    factor = result.array
    x = solve_with_cholesky(factor, b.conj() if turned else b, lower=True)
    rcond = reciprocal_condition(anorm, factor, x, None, hermitian=True, roughly=True)
    warn_ill_conditioned(rcond, a.dtype)
    return Solution(x.conj() if turned else x, result.report, dict)


def _judge(
    result: Result, a: Any, anorm: float, rcond: float | None, x: Any, b: Any, fast: bool = False
) -> Facts:
    """Judge a solution by the factors of a run; if `fast`, with a GPU's fast substitution."""
    solver = result.substitution("cholesky") if is_device_array(result.factors) else None
    factored = CholeskyFactored(result.factors, result.report, solver=solver)

    def solve(b: Any, trans: int) -> Any:
        if fast and solver:
            return solver.solve(b)
        return solve_with_cholesky(result.factors, b, lower=True)

    solution = facts_of_solution(a, anorm, x, b, solve, hermitian=True)
    return {**facts_of_run(factored, None), "rcond": rcond, **solution}


def _solve_on_device(a: Any, b: Any, **how: Any) -> Solution:
    """Factor and solve on the caller's GPU; if that is inaccurate, solve in the stable way.

    What is not read is enqueued before the first wait, which is for `info`.
    """
    result = execute("cholesky", a, **how)
    if b.size:
        anorm = enqueued_norm1(a, hermitian=True)
        factor = result.substitution("cholesky")
        x = factor.solve(b)
        _ = factor.inverse_norm
        error = solution_error(a, anorm, b, x, hermitian=True)
    if result.info:
        raise LinAlgError(not_positive_message(result.info))
    if not b.size:
        return Solution(b, result.report, lambda: {"judged": 0})
    rcond = reciprocal_condition(anorm, factor, x, None, hermitian=True)
    warn_ill_conditioned(rcond, a.dtype)
    fast = is_small(error, a.dtype)
    if not fast:
        x = solve_with_cholesky(result.factors, b, lower=True)
    judge = partial(_judge, result, a, float(anorm), rcond, x, b, fast)
    return Solution(x, result.report, judge)
