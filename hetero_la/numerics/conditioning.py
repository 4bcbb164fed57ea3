"""Matrix 1-norms, and reciprocal condition numbers from factors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg.blas import dasum, dzasum

from hetero_la.tiles.arrays.transfer import array_module, is_device_array, to_host
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.gpu_libraries import norms
from hetero_la.tiles.kernels.gpu_libraries.substitution import Substitution

#: Elements per block, so that their moduli stay in cache.
_BLOCK = 1 << 17
#: Order up to which LAPACK has the condition of a triangle before a GPU has been told to find it.
_SMALL = 256
#: Elements up to which LAPACK's function takes no longer than to start threads.
_FEW = 1 << 22
#: Order from which our steps with BLAS's solves take less time than LAPACK's function, whose solves
#: cannot overflow.
_LONG = 320
#: What one solve has to find for an estimate to need no more, in double precision.
_SURE = float(np.finfo(np.float64).eps) ** 0.5
#: Most steps of an estimate of a norm, as in LAPACK's.
_ITERATIONS = 4


def norm1(a: Any) -> float:
    """Compute the 1-norm in double precision, without a second array of the size of `a`.

    Examples
    --------
    >>> norm1(np.array([[1.0, -2.0], [3.0, 4.0]]))
    6.0
    """
    m, n = a.shape
    if not a.size:
        return 0.0
    if is_device_array(a):
        return float(norms.norm1(a))
    if a.size <= _FEW and a.flags.forc:
        lange = lapack.lapack_function("lange", a.dtype.char)
        norm = float(lange("1", a) if a.flags.f_contiguous else lange("I", a.T))
        if norm < np.inf:  # in single precision it may overflow
            return norm
    by_rows = a.strides[1] < a.strides[0]
    along, across = (m, n) if by_rows else (n, m)
    step = max(_BLOCK // across, 1)
    starts = range(0, along, step)

    def sums(some: range) -> np.ndarray:
        """Sum the moduli of each column over the blocks of rows, or of columns."""
        total = np.zeros(n)
        with np.errstate(over="ignore"):  # infinity is a valid result
            for start in some:
                here = slice(start, start + step)
                rows, columns = (here, slice(None)) if by_rows else (slice(None), here)
                total[columns] += np.abs(a[rows, columns]).sum(axis=0, dtype=np.float64)
        return total

    # One thread does not saturate the memory.
    threads = min(os.cpu_count() or 1, 8, -(-a.size // _BLOCK))
    if threads == 1:
        return float(sums(starts).max())
    share = -(-len(starts) // threads)
    with ThreadPoolExecutor(threads) as pool, np.errstate(over="ignore"):
        found = list(pool.map(sums, [starts[i : i + share] for i in range(0, len(starts), share)]))
        return float(np.sum(found, axis=0).max())


def stack_norm1(a: np.ndarray) -> np.ndarray:
    """Compute the 1-norm of each matrix of a stack on the host, in double precision.

    Examples
    --------
    >>> stack_norm1(np.array([[[1.0, -2.0], [3.0, 4.0]]]))
    array([6.])
    """
    found, step = np.empty(len(a)), max(_BLOCK // a[0].size, 1)
    with np.errstate(over="ignore"):  # infinity is a valid result
        for start in range(0, len(a), step):
            moduli = np.abs(a[start : start + step])
            found[start : start + step] = moduli.sum(axis=1, dtype=np.float64).max(axis=1)
    return found


def hermitian_norm1(a: Any) -> float:
    """Compute the 1-norm, in double precision, of a Hermitian matrix from its lower triangle."""
    n = a.shape[0]
    if is_device_array(a):
        return float(norms.hermitian_norm1(a)) if n else 0.0
    if n and a.flags.forc and a.flags.aligned:
        norm = lapack.hermitian_norm1(a)
        if norm < np.inf:  # in single precision it may overflow
            return norm
    sums = np.zeros(n)
    block = max((1 << 18) // max(n, 1), 1)  # its moduli stay in the cache
    with np.errstate(over="ignore"):  # infinity is a valid result
        for j in range(0, n, block):
            end = j + block
            square, below = np.tril(np.abs(a[j:end, j:end])), np.abs(a[end:, j:end])
            sums[j:end] += square.sum(axis=0, dtype=np.float64)
            sums[j:end] += np.tril(square, -1).sum(axis=1, dtype=np.float64)
            sums[j:end] += below.sum(axis=0, dtype=np.float64)
            sums[end:] += below.sum(axis=1, dtype=np.float64)
    return float(sums.max()) if n else 0.0


def enqueued_norm1(a: Any, *, hermitian: bool = False) -> Any:
    """Return `norm1`, or `hermitian_norm1`; on a GPU as an array there, without a wait.

    Examples
    --------
    >>> enqueued_norm1(np.eye(2)), enqueued_norm1(2 * np.eye(2), hermitian=True)
    (1.0, 2.0)
    """
    if is_device_array(a) and a.size:
        return norms.hermitian_norm1(a) if hermitian else norms.norm1(a)
    return hermitian_norm1(a) if hermitian else norm1(a)


def reciprocal_condition(
    anorm: Any,
    factor: Any,
    like: Any,
    solve: Callable[[Any, int], Any] | None,
    *,
    hermitian: bool = False,
    roughly: bool = False,
) -> float:
    """Estimate 1 / (||A||_1 ||A^-1||_1) from factors, in O(n^2) operations.

    LAPACK's estimator; where the factors are on the caller's GPU, one with a fixed number of
    solves.

    Parameters
    ----------
    anorm : float
        1-norm of the matrix; where the factors are on a GPU, it may be there, too.
    factor : array, shape (n, n), or Substitution, or None
        Packed LU factors, or if `hermitian` a lower Cholesky factor, if they are on the host or on
        the caller's GPU.
    like, solve
        As for `estimate_reciprocal_condition`.
    roughly : bool, optional
        Whether one solve is enough for factors on the host in double precision, if it finds at
        least sqrt(eps), which is too large then, by a factor of about n at most: for a singular
        matrix it finds as much only if the vector solved for is orthogonal to a null vector of A^T
        to 1e-8.

    Examples
    --------
    >>> reciprocal_condition(1.0, np.eye(3), np.ones((3, 1)), lambda b, trans: b)
    1.0
    >>> reciprocal_condition(4.0, 2 * np.eye(3), np.ones((3, 1)), None, hermitian=True)
    1.0
    """
    anorm = float(anorm)
    if isinstance(factor, Substitution):
        return reciprocal(anorm, float(factor.inverse_norm))
    if solve and factor is None:
        return estimate_reciprocal_condition(anorm, like, solve)
    if not len(factor):
        return np.inf
    if roughly and factor.dtype.char in "dD" and factor.flags.f_contiguous:
        rough = _rough_condition(anorm, factor, hermitian)
        if rough >= _SURE:
            return rough
    if len(factor) >= _LONG and factor.flags.f_contiguous:
        norm = _inverse_norm(factor, hermitian)
        if np.isfinite(norm):
            return reciprocal(anorm, norm)
    name, how = ("pocon", {"uplo": "L"}) if hermitian else ("gecon", {})
    estimate = lapack.lapack_function(name, factor.dtype.char)
    norm = min(anorm, float(np.finfo(factor.dtype).max))  # may overflow in single precision
    return float(estimate(factor, norm, **how)[0]) * (norm / anorm) if anorm else 0.0


def _rough_condition(anorm: float, factor: np.ndarray, hermitian: bool) -> float:
    """Return 1 / (||A||_1 ||A^-1 v||_1) for a random vector v of 1-norm 1.

    The interchanges of LU only make another such vector of v.
    """
    x = _random_vector(len(factor), factor.dtype.char).copy()
    lapack.solve_column(factor, x, hermitian=hermitian)
    return reciprocal(anorm, dasum(x) if x.dtype.kind == "f" else dzasum(x))


@functools.lru_cache(32)
def _random_vector(n: int, letter: str) -> np.ndarray:
    """Return a vector of 1-norm 1 whose entries have random signs and sizes."""
    x = random_weights(n)
    return (x / np.abs(x).sum()).astype(letter)


@functools.lru_cache(32)
def random_weights(count: int) -> np.ndarray:
    """Return random signs, and sizes about 1, whose sum is not small.

    Examples
    --------
    >>> bool(abs(random_weights(9).sum()) >= 1.5)
    True
    """
    rng = np.random.default_rng(count)
    while True:
        weights = rng.choice([-1, 1], count) * rng.uniform(0.75, 1.25, count)
        if abs(weights.sum()) >= max(1, count**0.5 / 2):
            return weights


def _inverse_norm(factor: np.ndarray, hermitian: bool) -> float:
    """Estimate ||A^-1||_1 from L U, or L L^H of a Hermitian matrix, by LAPACK's estimator.

    Its solves are BLAS's: the estimate is not finite where they overflow.
    """

    def solve(x: np.ndarray, *, adjoint: bool) -> np.ndarray:
        lapack.solve_column(factor, x[:, 0], hermitian=hermitian, adjoint=adjoint)
        return x

    return estimate_norm1(factor, partial(solve, adjoint=False), partial(solve, adjoint=True))


def reciprocal_condition_upper(r: Any) -> float:
    """Estimate 1 / (||R||_1 ||R^-1||_1) of an upper triangle (``xTRCON`` on the host).

    Examples
    --------
    >>> reciprocal_condition_upper(np.diag([1.0, 0.5]))
    0.5
    """
    if not len(r):
        return np.inf
    if len(r) <= _SMALL or not is_device_array(r):
        r = to_host(r)
        return float(lapack.lapack_function("trcon", r.dtype.char)(r)[0])
    r = array_module(r).asfortranarray(r)
    inverse_norm = Substitution(r, "r").inverse_norm  # while the GPU is busy with R
    return reciprocal(norm1(array_module(r).triu(r)), float(inverse_norm))


def estimate_reciprocal_condition(
    anorm: float, like: Any, solve: Callable[[Any, int], Any]
) -> float:
    """Estimate 1 / (anorm ||A^-1||_1) from solves with A and, for `trans` = 2, with A^H.

    Parameters
    ----------
    anorm : float
        1-norm of A.
    like : array, shape (n, ...)
        An array of A's order and dtype, on the device on which `solve` expects right-hand sides.
    solve : callable
        Takes right-hand sides, of shape (n, p), and `trans`.

    Examples
    --------
    >>> estimate_reciprocal_condition(2.0, np.eye(2), lambda b, trans: b / [[2.0], [1.0]])
    0.5
    """
    if not len(like):
        return np.inf
    return reciprocal(anorm, estimate_norm1(like, lambda b: solve(b, 0), lambda b: solve(b, 2)))


def estimate_norm1(
    like: Any, times: Callable[[Any], Any], times_adjoint: Callable[[Any], Any]
) -> float:
    """Estimate the 1-norm of a square matrix M from four to eleven products with one column.

    LAPACK's ``xLACN2`` [1]_, a lower bound, which is hardly ever below a third of the norm.

    Parameters
    ----------
    like : array, shape (n, ...)
        An array of M's order and dtype, on the device on which the products expect columns.
    times, times_adjoint : callable
        Return M y and M^H y for a column y, of shape (n, 1).

    References
    ----------
    .. [1] N. J. Higham, FORTRAN codes for estimating the one-norm of a real or complex matrix,
       with applications to condition estimation, ACM Trans. Math. Softw. 14, 1988.

    Examples
    --------
    >>> m = np.array([[1.0, -2.0], [3.0, 4.0]])
    >>> estimate_norm1(m, lambda y: m @ y, lambda y: m.T @ y)
    6.0
    """
    xp, n, dtype = array_module(like), len(like), like.dtype

    def apply(product: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
        return to_host(product(xp.asarray(x.astype(dtype)[:, None]))).ravel()

    with np.errstate(all="ignore"):  # overflow gives a norm that is not finite
        y = apply(times, np.full(n, 1 / n))
        estimate, signs, place = _sum(y), _signs(y), -1
        for _ in range(_ITERATIONS if n > 1 else 0):
            before, z = place, np.abs(apply(times_adjoint, signs))
            place = int(z.argmax())
            if z[place] == z[before] and before >= 0:
                break
            y = apply(times, np.eye(1, n, place)[0])
            larger, turned = _sum(y), _signs(y)
            if dtype.kind == "f" and np.array_equal(turned, signs):
                estimate = max(estimate, larger)
                break
            if not larger > estimate:
                break
            estimate, signs = larger, turned
        slopes = (1 + np.arange(n) / max(n - 1, 1)) * (1 - 2 * (np.arange(n) % 2))
        last = 2 * _sum(apply(times, slopes)) / (3 * n) if n > 1 else 0.0
        return float(np.fmax(estimate, last) if np.isfinite(estimate) else estimate)


def _sum(y: np.ndarray) -> float:
    return float(np.abs(y).sum(dtype=np.float64))


def _signs(y: np.ndarray) -> np.ndarray:
    """Return y / |y|, and 1 for zeros."""
    if y.dtype.kind == "f":
        return np.where(y < 0, -1.0, 1.0)
    size = np.abs(y)
    return np.where(size == 0, 1.0, y / np.where(size == 0, 1, size))


def reciprocal(anorm: float, ainvnorm: float) -> float:
    """Return the reciprocal condition number for the norms of A and of A^-1.

    Examples
    --------
    >>> reciprocal(2.0, 2.0), reciprocal(1.0, np.inf)
    (0.25, 0.0)
    """
    condition = anorm * ainvnorm
    return 1 / condition if np.isfinite(condition) and condition > 0 else 0.0
