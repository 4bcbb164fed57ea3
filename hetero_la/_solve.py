"""Linear systems by LU: solve and inv."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

from hetero_la._factor import singular_message
from hetero_la.conditioning import norm1, reciprocal_condition
from hetero_la.execution import Result, execute
from hetero_la.factors import Report
from hetero_la.inputs import as_array, as_matrix, require_finite, same_place
from hetero_la.refinement import refine
from hetero_la.tiles.transfer import array_module, on_device_of_arrays


def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: str | None = None, transposed: bool = False, *,
    client: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Solve A X = B for a general square matrix, by LU with partial pivoting.

    Parameters
    ----------
    a : array_like, shape (n, n)
        As for `lu_factor`.
    b : array_like, shape (n,) or (n, nrhs)
        Right-hand sides; where `a` is.
    lower : bool, optional
        Accepted as SciPy does; a general matrix has no use for it.
    overwrite_a, overwrite_b : bool, optional
        Accepted as SciPy does; the run works on its own copy.
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    assume_a : {None, "gen", "general"}, optional
        Structure of the matrix; others are not known here.
    transposed : bool, optional
        Solve A^T X = B; for real matrices only, as in SciPy.
    client, **options
        As for `lu_factor`.

    Returns
    -------
    array, shape of `b`
        X.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is singular.
    ValueError
        If shapes, dtypes or values do not do.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        If the matrix is singular to working precision.

    Notes
    -----
    Few right-hand sides (up to n / 8) are refined: a residual and a solve with the factors,
    as LAPACK's ``xGERFS`` does, which keeps the backward error small for any n.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import solve
    >>> solve(np.array([[3.0, 2.0], [1.0, 2.0]]), [7.0, 5.0])
    array([1., 2.])
    """
    if assume_a not in (None, "gen", "general"):
        raise ValueError(f"assume_a must be 'gen' (or None), not {assume_a!r}")
    x, _ = solve_with_report(
        a, b, check_finite=check_finite, transposed=transposed, client=client, **options
    )
    return x


@on_device_of_arrays
def solve_with_report(
    a: Any, b: Any, *, check_finite: bool = True, transposed: bool = False, client: Any = None,
    **options: Any,
) -> tuple[Any, Report]:  # fmt: skip
    """Solve A X = B as `solve` does, and say how the run was planned and how it went.

    Returns
    -------
    x : array, shape of `b`
        The solution.
    report : Report
        Its `plan` and `timing`.
    """
    a = as_matrix(a, square=True)
    b = as_array(b, "b", (1, 2))
    same_place(a, b)
    if b.shape[0] != a.shape[0]:
        raise ValueError(f"b has shape {b.shape}, which does not fit a of shape {a.shape}")
    if transposed and a.dtype.kind == "c":
        raise ValueError("transposed=True is for real matrices")
    if check_finite:
        require_finite(a, "a")
        require_finite(b, "b")
    dtype = array_module(a).result_type(a, b)
    a, rhs = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    rhs = rhs[:, None] if b.ndim == 1 else rhs
    matrix = a.T if transposed else a
    result = execute("solve", matrix, rhs, client=client, **options)
    x = _accurate_solution(matrix, rhs, result)
    return x.reshape(b.shape), result.report


def _accurate_solution(a: Any, b: Any, result: Result) -> Any:
    """X from a run, refined where that is cheap; warns where it may mean little."""
    if result.info:
        raise LinAlgError(singular_message(result.info))
    n = a.shape[0]
    lu, x = result.array[:, :n], result.array[:, n:].copy(order="F")
    if x.size == 0:
        return x
    anorm = norm1(a)
    rcond = reciprocal_condition(anorm, lu, result.piv)
    if rcond < np.finfo(a.dtype).eps:
        message = f"ill-conditioned matrix: the result may be inaccurate (rcond = {rcond:.3g})"
        warnings.warn(message, LinAlgWarning, stacklevel=4)
    if b.shape[1] * 8 <= n:  # beyond that, refinement costs as much as the factorization
        x = refine(a, anorm, lu, result.piv, b, x)
    return x


@on_device_of_arrays
def inv(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *,
    assume_a: str | None = None, lower: bool = False, client: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Invert a matrix, by solving A X = I.

    Parameters
    ----------
    a : array_like, shape (n, n)
        As for `lu_factor`.
    overwrite_a, check_finite, assume_a, lower, client, **options
        As for `solve`.

    Returns
    -------
    array, shape (n, n)
        The inverse.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is singular.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import inv
    >>> inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    a = as_matrix(a, square=True)
    identity = array_module(a).eye(a.shape[0], dtype=a.dtype)
    return solve(
        a, identity, check_finite=check_finite, assume_a=assume_a, client=client, **options
    )
