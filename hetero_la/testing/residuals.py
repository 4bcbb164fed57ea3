"""LAPACK's test ratios: backward errors in units of rounding."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetero_la.api.qr_factors import apply_q
from hetero_la.numerics.conditioning import hermitian_norm1
from hetero_la.testing.residual_blocks import (
    as_floating,
    blocks,
    column_sums,
    completed_rows,
    eps,
    largest_ratio,
    one_norm,
    ratio,
)
from hetero_la.tiles.storage.pivots import permutation

#: A result passes if its ratio is below this, as in LAPACK's own tests.
RATIO_LIMIT = 30.0

#: For each `assume_a` of `solve_ratio`, whether the other triangle is the conjugate.
_HERMITIAN = {"sym": False, "her": True, "pos": True}


def _lower(lu: NDArray, rows: slice, depth: int) -> NDArray:
    """Return rows of the unit lower trapezoid, up to column `depth`."""
    block = np.tril(lu[rows, :depth], rows.start - 1)
    d = np.arange(rows.start, min(rows.stop, depth))
    block[d - rows.start, d] = 1
    return block


def lu_ratio(a: ArrayLike, lu: ArrayLike, piv: ArrayLike) -> float:
    """Compute ``||P A - L U||_1 / (n ||A||_1 eps)``.

    Parameters
    ----------
    a : (m, n) array_like
        The matrix that was factored.
    lu : (m, n) array_like
        Packed factors, as `scipy.linalg.lu_factor` returns them.
    piv : (min(m, n),) array_like of int
        Row ``i`` was interchanged with row ``piv[i]``, 0-based.

    Returns
    -------
    float
        The ratio; 0 for an empty matrix, infinite if the factors are not finite.  The
        factors pass if it is below `RATIO_LIMIT`.

    Examples
    --------
    >>> import scipy.linalg
    >>> from hetero_la.testing.matrices import generate
    >>> from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio
    >>> a = generate("orthog", 50)
    >>> lu, piv = scipy.linalg.lu_factor(a)
    >>> lu_ratio(a, lu, piv) < RATIO_LIMIT
    True
    >>> lu_ratio(a, lu, piv[::-1]) < RATIO_LIMIT
    False
    """
    a, lu, piv = np.asarray(a), as_floating(lu), np.asarray(piv)
    m, n = a.shape
    if lu.shape != a.shape or piv.shape != (min(m, n),):
        raise ValueError(
            f"factors of shape {lu.shape} and pivots of shape {piv.shape} "
            f"do not belong to a matrix of shape {a.shape}"
        )
    order = permutation(piv, m)
    sums = np.zeros(n)
    with np.errstate(all="ignore"):
        for columns in blocks(n):
            upper = np.triu(lu[: min(m, columns.stop), columns], -columns.start)
            for rows in blocks(m):
                depth = min(rows.stop, len(upper))
                block = a[order[rows], columns].astype(lu.dtype)
                block -= _lower(lu, rows, depth) @ upper[:depth]
                sums[columns] += column_sums(block)
        return ratio(sums, one_norm(a), max(n, 1), eps(lu.dtype))


def cholesky_ratio(a: ArrayLike, factor: ArrayLike, lower: bool = False) -> float:
    """Compute ``||L L^H - A||_1 / (n ||A||_1 eps)``, or the ratio of ``U^H U - A``.

    Parameters
    ----------
    a : (n, n) array_like
        The matrix that was factored; only the triangle that `lower` names is read.
    factor : (n, n) array_like
        L or U, in the same triangle; the other one is not read.
    lower : bool, optional
        Whether the factor is L.

    Returns
    -------
    float
        The ratio, as in `lu_ratio`.

    Examples
    --------
    >>> import scipy.linalg
    >>> from hetero_la.testing.matrices import generate
    >>> from hetero_la.testing.residuals import RATIO_LIMIT, cholesky_ratio
    >>> a = generate("spd", 50)
    >>> u = scipy.linalg.cholesky(a)
    >>> cholesky_ratio(a, u) < RATIO_LIMIT
    True
    >>> cholesky_ratio(a, 2 * u) < RATIO_LIMIT
    False
    """
    a, factor = np.asarray(a), as_floating(factor)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or factor.shape != a.shape:
        raise ValueError(
            f"a factor of shape {factor.shape} does not belong to a matrix of shape {a.shape}"
        )
    # The upper triangle of A is the lower one of A^T, and U^T its factor.
    a, factor = (a, factor) if lower else (a.T, factor.T)
    n = len(a)
    sums = np.zeros(n)
    with np.errstate(all="ignore"):
        for columns in blocks(n):
            depth = columns.stop
            left = np.tril(factor[columns, :depth], columns.start)
            diagonal = completed_rows(a[:depth, :depth], columns, hermitian=True)[:, columns]
            sums[columns] += column_sums(diagonal - left @ left.conj().T)
            for rows in blocks(n - depth):
                below = slice(rows.start + depth, rows.stop + depth)
                block = a[below, columns] - factor[below, :depth] @ left.conj().T
                # The block also stands, conjugated, above the diagonal.
                sums[columns] += column_sums(block)
                sums[below] += column_sums(block, axis=1)
        return ratio(sums, hermitian_norm1(a), max(n, 1), eps(factor.dtype))


def qr_ratio(a: ArrayLike, q: ArrayLike, r: ArrayLike) -> float:
    """Compute ``||R - Q^H A||_1 / (m ||A||_1 eps)``.

    Parameters
    ----------
    a : (m, n) array_like
        The matrix that was factored.
    q : (m, k) array_like
        Q in full (k = m), or economic (k = min(m, n)).
    r : (k, n) array_like
        R.

    Returns
    -------
    float
        The ratio; 0 for an empty matrix, infinite if the factors are not finite.  The
        factors pass if it is below `RATIO_LIMIT`.

    Notes
    -----
    The ratio does not detect a Q that is not orthogonal (`orthogonality_ratio` does).  All of
    R is read: its lower triangle must be zero.

    Examples
    --------
    >>> import scipy.linalg
    >>> from hetero_la.testing.matrices import generate
    >>> from hetero_la.testing.residuals import RATIO_LIMIT, qr_ratio
    >>> a = generate("rands", 50, 20)
    >>> q, r = scipy.linalg.qr(a, mode="economic")
    >>> qr_ratio(a, q, r) < RATIO_LIMIT
    True
    >>> qr_ratio(a, -q, r) < RATIO_LIMIT
    False
    """
    a, q, r = np.asarray(a), as_floating(q), as_floating(r)
    if a.ndim != 2 or r.shape != (*q.shape[1:], a.shape[1]) or q.shape[:1] != a.shape[:1]:
        raise ValueError(
            f"Q of shape {q.shape} and R of shape {r.shape} "
            f"do not belong to a matrix of shape {a.shape}"
        )
    m, n = a.shape
    sums = np.zeros(n)
    with np.errstate(all="ignore"):
        for columns in blocks(n):
            for rows in blocks(len(r)):
                product = q[:, rows].conj().T @ a[:, columns]
                sums[columns] += column_sums(r[rows, columns] - product)
        return ratio(sums, one_norm(a), max(m, 1), eps(q.dtype))


def orthogonality_ratio(q: ArrayLike) -> float:
    """Compute ``||I - Q^H Q||_1 / (m eps)``.

    Parameters
    ----------
    q : (m, k) array_like
        A matrix that should have orthonormal columns.

    Returns
    -------
    float
        As in `qr_ratio`.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la.testing.residuals import RATIO_LIMIT, orthogonality_ratio
    >>> orthogonality_ratio(np.eye(4, 3))
    0.0
    >>> orthogonality_ratio(np.ones((4, 3))) < RATIO_LIMIT
    False
    """
    q = as_floating(q)
    m, k = q.shape
    sums = np.zeros(k)
    with np.errstate(all="ignore"):
        for columns in blocks(k):
            for rows in blocks(k):
                product = q[:, rows].conj().T @ q[:, columns]
                sums[columns] += column_sums(_identity(rows, columns, q.dtype) - product)
        return ratio(sums, max(m, 1), eps(q.dtype))


def _identity(rows: slice, columns: slice, dtype: np.dtype) -> NDArray:
    """Return some rows and columns of the identity matrix."""
    shape = rows.stop - rows.start, columns.stop - columns.start
    return np.eye(*shape, rows.start - columns.start, dtype=dtype)


def explicit_qr_ratio(a: ArrayLike, q: ArrayLike, r: ArrayLike) -> float:
    """Compute the larger of `qr_ratio` and `orthogonality_ratio`.

    Examples
    --------
    >>> import numpy as np
    >>> explicit_qr_ratio(np.eye(3), np.eye(3), np.eye(3))
    0.0
    """
    return max(qr_ratio(a, q, r), orthogonality_ratio(q))


def qr_factors_ratio(a: ArrayLike, qr: ArrayLike, tau: ArrayLike) -> float:
    """Compute the larger of `qr_ratio` and `orthogonality_ratio` from packed factors.

    Parameters
    ----------
    a : (m, n) array_like
        The matrix that was factored.
    qr : (m, n) array_like
        R and, below the diagonal, the Householder vectors, as LAPACK packs them.
    tau : (min(m, n),) array_like
        Scalars of the reflectors.

    Returns
    -------
    float
        As in `qr_ratio`.

    Notes
    -----
    Q is not formed: it is applied to blocks of columns of A and of the identity matrix.

    Examples
    --------
    >>> import scipy.linalg
    >>> from hetero_la.testing.matrices import generate
    >>> from hetero_la.testing.residuals import RATIO_LIMIT, qr_factors_ratio
    >>> a = generate("rands", 50, 20)
    >>> (qr, tau), _ = scipy.linalg.qr(a, mode="raw")
    >>> qr_factors_ratio(a, qr, tau) < RATIO_LIMIT
    True
    >>> qr_factors_ratio(a, qr, tau / 2) < RATIO_LIMIT
    False
    """
    a, qr, tau = np.asarray(a), as_floating(qr), as_floating(tau)
    if qr.shape != a.shape or tau.shape != (min(a.shape),):
        raise ValueError(
            f"factors of shape {qr.shape} and scalars of shape {tau.shape} "
            f"do not belong to a matrix of shape {a.shape}"
        )
    m, n = a.shape
    residual = departure = 0.0
    with np.errstate(all="ignore"):
        reflectors = np.asfortranarray(qr[:, : len(tau)])  # once for all blocks
        for columns in blocks(n):
            block = np.triu(qr[:, columns], -columns.start)
            block -= apply_q(reflectors, tau, a[:, columns].astype(qr.dtype), adjoint=True)
            residual = float(np.maximum(residual, one_norm(block)))  # np.maximum keeps a NaN
        for columns in blocks(len(tau)):
            block = _identity(slice(0, m), columns, qr.dtype)
            there = apply_q(reflectors, tau, block, adjoint=False)
            block -= apply_q(reflectors, tau, there, adjoint=True)
            departure = float(np.maximum(departure, one_norm(block)))
        scales = max(m, 1), eps(qr.dtype)
        return max(ratio(residual, one_norm(a), *scales), ratio(departure, *scales))


def _system(a: ArrayLike, x: ArrayLike, b: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
    """Return A, X and B as matrices; raise ValueError if their shapes do not match."""
    a, x, b = np.asarray(a), as_floating(x), np.asarray(b)
    if a.ndim != 2 or x.shape[:1] != a.shape[1:] or b.shape != a.shape[:1] + x.shape[1:]:
        raise ValueError(f"shapes {a.shape}, {x.shape} and {b.shape} of A, X and B do not match")
    return a, np.atleast_2d(x.T).T, np.atleast_2d(b.T).T  # a vector is one column


def solve_ratio(
    a: ArrayLike, x: ArrayLike, b: ArrayLike, *, assume_a: str = "gen", lower: bool = False
) -> float:
    """Compute ``||b - A x||_1 / (||A||_1 ||x||_1 eps)``, the largest over columns of B and X.

    Parameters
    ----------
    a : (m, n) array_like
        The matrix.
    x : (n,) or (n, nrhs) array_like
        The solution.
    b : (m,) or (m, nrhs) array_like
        The right-hand sides.
    assume_a : {"gen", "sym", "her", "pos"}, optional
        With all but ``"gen"`` only one triangle of `a` is read.
    lower : bool, optional
        Whether to read the lower triangle.

    Returns
    -------
    float
        The ratio; 0 for an empty solution, infinite if the solution is not finite.  The
        solution passes if it is below `RATIO_LIMIT`.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la.testing.residuals import solve_ratio
    >>> a, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 4.0])
    >>> solve_ratio(a, np.array([1.0, 1.0]), b)
    0.0
    """
    if assume_a not in ("gen", *_HERMITIAN):
        known = ", ".join(("gen", *_HERMITIAN))
        raise ValueError(f"assume_a must be one of {known}, not {assume_a!r}")
    a, x, b = _system(a, x, b)
    sums = np.zeros(x.shape[1])
    with np.errstate(all="ignore"):
        for rows in blocks(a.shape[0]):
            sums += column_sums(b[rows] - _rows(a, rows, assume_a, lower) @ x)
        anorm = one_norm(a) if assume_a == "gen" else hermitian_norm1(a if lower else a.T)
        return largest_ratio(sums, anorm, column_sums(x), eps(x.dtype))


def _rows(a: NDArray, rows: slice, assume_a: str, lower: bool) -> NDArray:
    """Return rows of the full matrix that `a` represents."""
    if assume_a == "gen":
        return a[rows]
    hermitian = _HERMITIAN[assume_a]
    if lower:
        return completed_rows(a, rows, hermitian=hermitian)
    transposed = completed_rows(a.T, rows, hermitian=hermitian)
    return transposed.conj() if hermitian else transposed


def lstsq_ratio(a: ArrayLike, x: ArrayLike, b: ArrayLike) -> float:
    """Compute ``||(A X - B)^H A||_1 / (max(m, n, nrhs) ||A||_1 ||B||_1 eps)``.

    For m < n, where the equations have a solution, compute the largest
    ``||b - A x||_1 / (||A||_1 ||x||_1 eps)`` over all columns instead.

    Parameters
    ----------
    a : (m, n) array_like
        The matrix.
    x : (n,) or (n, nrhs) array_like
        The least-squares solution.
    b : (m,) or (m, nrhs) array_like
        The right-hand sides.

    Returns
    -------
    float
        As in `qr_ratio`.

    Notes
    -----
    For m < n the ratio does not distinguish the shortest solution from others.  For m >= n it is
    of little use if ``||A|| ||X||`` is far above ``||B||``: then the rounding of A X alone, which
    no method avoids, makes it large.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la.testing.residuals import RATIO_LIMIT, lstsq_ratio
    >>> a, b = np.array([[1.0], [1.0]]), np.array([1.0, 3.0])
    >>> lstsq_ratio(a, [2.0], b)
    0.0
    >>> lstsq_ratio(a, [2.1], b) < RATIO_LIMIT
    False
    """
    a, x, b = _system(a, x, b)
    (m, n), nrhs = a.shape, x.shape[1]
    with np.errstate(all="ignore"):
        left = np.empty((m, nrhs), np.result_type(x, b))
        for rows in blocks(m):
            left[rows] = a[rows] @ x - b[rows]
        if m < n:
            return largest_ratio(column_sums(left), one_norm(a), column_sums(x), eps(x.dtype))
        size = one_norm(left)
        if size == 0:
            return 0.0
        left /= size  # so that the product with A does not overflow
        sums = [column_sums(left.conj().T @ a[:, columns]).max() for columns in blocks(n)]
        return ratio(sums, one_norm(a), one_norm(b) / size, max(m, n, nrhs), eps(x.dtype))
