"""SciPy-shaped linear algebra on the tile runtime."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

from hetero_la.conditioning import norm1, reciprocal_condition
from hetero_la.execution import Result, execute
from hetero_la.factors import LUFactors, Report
from hetero_la.inputs import as_array, as_matrix, require_finite, same_place
from hetero_la.refinement import refine
from hetero_la.tiles.transfer import array_module, linalg_module


class SlogdetResult(NamedTuple):
    """Sign (or phase) and logarithm of the absolute value of a determinant."""

    sign: Any
    logabsdet: Any


def lu_factor(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *, client: Any = None,
    **options: Any,
) -> LUFactors:  # fmt: skip
    """Factor P A = L U with partial pivoting.

    Parameters
    ----------
    a : array_like, shape (m, n)
        NumPy or CuPy array of float32, float64, complex64 or complex128, in any memory
        order; integers become float64.
    overwrite_a : bool, optional
        Whether the factors may take the place of `a` (where it is column-major).
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    client : dask.distributed.Client or hetero_la.Cluster, optional
        Whose workers to use.  By default small problems run in the calling thread, and
        larger ones on the running client's workers, or on a cluster in this process.
    **options
        nb, ib, lookahead, panel, inverse_bound: see `Options`.

    Returns
    -------
    LUFactors
        Unpacks as SciPy's ``(lu, piv)``: lu of shape (m, n), piv of shape (min(m, n),),
        0-based.  It also carries LAPACK's ``info``, the plan and the timing.

    Raises
    ------
    ValueError
        If `a` is not two-dimensional, is of another dtype, or is not finite.
    hetero_la.tiles.errors.InsufficientMemoryError
        If the workers' memory does not suffice.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        If a pivot is exactly zero; the factorization is complete, U is singular.

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
    a = as_matrix(a)
    if check_finite:
        require_finite(a, "a")
    return _factor(a, overwrite_a, client, options)


def _factor(a: Any, overwrite_a: bool, client: Any, options: dict[str, Any]) -> LUFactors:
    result = execute("lu", a, overwrite_a=overwrite_a, client=client, **options)
    if result.info:
        warnings.warn(_singular(result.info), LinAlgWarning, stacklevel=3)
    piv = array_module(a).asarray(result.piv)
    return LUFactors(result.array, piv, result.info, result.report)


def _singular(info: int) -> str:
    return f"the matrix is singular: diagonal number {info} of U is exactly zero"


def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Any,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    """Solve A X = B from the factors of A, where they are: on the host or on their GPU.

    Parameters
    ----------
    lu_and_piv : tuple of array
        From `lu_factor`: shapes (n, n) and (n,).
    b : array_like, shape (n,) or (n, nrhs)
        Right-hand sides.
    trans : {0, 1, 2}, optional
        Solve A X = B, A^T X = B, or A^H X = B.
    overwrite_b : bool, optional
        Whether X may take the place of `b`.
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.

    Returns
    -------
    array, shape of `b`
        X.

    Raises
    ------
    ValueError
        If the shapes do not fit, or `trans` is something else.

    Notes
    -----
    LAPACK's ``xGETRS`` on the host, cuSOLVER's on a GPU.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import lu_factor, lu_solve
    >>> lu_solve(lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]])), [3.0, 8.0])
    array([1., 1.])
    """
    lu, piv = lu_and_piv
    lu = as_matrix(lu, "lu", square=True)
    if trans not in (0, 1, 2):
        raise ValueError(f"trans must be 0, 1 or 2, not {trans!r}")
    b = as_array(b, "b", (1, 2))
    same_place(lu, b)
    if b.shape[0] != lu.shape[0]:
        raise ValueError(f"b has {b.shape[0]} rows, the factors have {lu.shape[0]}")
    if check_finite:
        require_finite(lu, "lu")
        require_finite(b, "b")
    if b.size == 0:
        return array_module(b).empty(b.shape, array_module(b).result_type(lu, b))
    return linalg_module(lu).lu_solve(
        (lu, piv), b, trans=trans, overwrite_b=overwrite_b, check_finite=False
    )


def lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True,
    p_indices: bool = False, *, client: Any = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Factor A = P L U with partial pivoting.

    Parameters
    ----------
    a : array_like, shape (m, n)
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
        p of shape (m, m), or (m,) for `p_indices`; l of shape (m, k) and u of shape (k, n),
        k = min(m, n).

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import lu
    >>> p, l, u = lu(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> p @ l @ u
    array([[1., 2.],
           [4., 4.]])
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)  # SciPy's lu does not warn
        packed, piv = lu_factor(a, overwrite_a, check_finite, client=client, **options)
    xp = array_module(packed)
    m, n = packed.shape
    k = min(m, n)
    lower = xp.tril(packed[:, :k], -1)
    lower[xp.arange(k), xp.arange(k)] = 1
    upper = xp.triu(packed[:k])
    rows = xp.asarray(np.argsort(permutation(piv, m)))
    if permute_l:
        return lower[rows], upper
    if p_indices:
        return rows, lower, upper
    return xp.eye(m, dtype=packed.real.dtype)[rows], lower, upper


def permutation(piv: Any, m: int) -> np.ndarray:
    """Row order p with ``A[p] = L @ U``, from LAPACK's interchanges.

    Examples
    --------
    >>> permutation([1, 1], 2)
    array([1, 0])
    """
    order = list(range(m))
    for i, p in enumerate(np.asarray(piv.get() if hasattr(piv, "get") else piv).tolist()):
        order[i], order[p] = order[p], order[i]
    return np.array(order, dtype=np.intp)


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
        raise ValueError(f"b has {b.shape[0]} rows, but a has shape {a.shape}")
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
        raise LinAlgError(_singular(result.info))
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


def inv(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *, client: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Invert a matrix, by solving A X = I.

    Parameters
    ----------
    a : array_like, shape (n, n)
        As for `lu_factor`.
    overwrite_a, check_finite, client, **options
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
    return solve(a, identity, check_finite=check_finite, client=client, **options)


def det(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *, client: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Determinant, from the diagonal of U.

    Parameters
    ----------
    a : array_like, shape (n, n)
        As for `lu_factor`.
    overwrite_a, check_finite, client, **options
        As for `lu_factor`.

    Returns
    -------
    float64 or complex128
        The determinant, in double precision as SciPy returns it.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import det
    >>> float(det(np.array([[0.0, 2.0], [3.0, 5.0]])))
    -6.0
    """
    diagonal, sign = _diagonal(a, overwrite_a, check_finite, client, options)
    wide = np.complex128 if diagonal.dtype.kind == "c" else np.float64
    with np.errstate(over="ignore", under="ignore"):
        return wide(sign * np.prod(diagonal.astype(wide)))


def slogdet(a: Any, check_finite: bool = True, *, client: Any = None, **options: Any) -> Any:
    """Sign and logarithm of the determinant, which itself may overflow.

    Parameters
    ----------
    a : array_like, shape (n, n)
        As for `lu_factor`.
    check_finite, client, **options
        As for `lu_factor`.

    Returns
    -------
    SlogdetResult
        ``sign`` (of modulus 1, or 0) and ``logabsdet`` (-inf where the determinant is 0),
        as `numpy.linalg.slogdet` returns them.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import slogdet
    >>> sign, logabsdet = slogdet(np.diag([1e200, -1e200]))
    >>> float(sign), round(float(logabsdet), 3)
    (-1.0, 921.034)
    """
    diagonal, sign = _diagonal(a, False, check_finite, client, options)
    size = np.abs(diagonal)
    if not size.all():
        return SlogdetResult(diagonal.dtype.type(0), size.dtype.type(-np.inf))
    phase = sign * np.prod(diagonal / size)
    return SlogdetResult(diagonal.dtype.type(phase), np.log(size).sum(dtype=size.dtype))


def _diagonal(
    a: Any, overwrite_a: bool, check_finite: bool, client: Any, options: dict[str, Any]
) -> tuple[np.ndarray, int]:
    """Diagonal of U on the host, and the sign of the permutation."""
    a = as_matrix(a, square=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)  # a determinant of 0 is an answer
        packed, piv = lu_factor(a, overwrite_a, check_finite, client=client, **options)
    diagonal = packed.diagonal()
    diagonal = diagonal.get() if hasattr(diagonal, "get") else diagonal
    swaps = int((piv != array_module(piv).arange(len(piv))).sum())
    return diagonal, -1 if swaps % 2 else 1
