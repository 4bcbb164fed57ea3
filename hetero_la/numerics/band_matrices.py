"""Band matrices: bandwidths, LAPACK's band storage, factors and solves.

Of a matrix on a GPU, only the band comes to the host, where LAPACK factors it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from hetero_la.numerics.conditioning import estimate_reciprocal_condition
from hetero_la.tiles.arrays.transfer import (
    array_module,
    column_major_copy,
    column_major_empty,
    copy_and_wait,
    is_device_array,
    on_device_of,
    pinned_empty,
    to_host,
)
from hetero_la.tiles.kernels.cpu.lapack import lapack_function
from hetero_la.tiles.kernels.gpu.common import source
from hetero_la.tiles.kernels.gpu.queue import element_strides
from hetero_la.tiles.kernels.gpu.sources import kernel
from hetero_la.tiles.kernels.gpu_libraries.cusparse import solve_tridiagonal

_THREADS, _MOST_BLOCKS = 256, 4096
#: Largest order for which LAPACK's estimate of the condition of a band is taken, which may need
#: O(n^2) operations.
FEW = 1024
#: Entries of which tests stay in cache.
_IN_CACHE = 1 << 16
#: Largest backward error of a solve by cuSPARSE, in units of n eps, and for small n.
_BACKWARD_ERROR, _AT_LEAST = 1.0, 32
#: Bytes of the right-hand sides for which cuSPARSE solves at once: it and the refinement take some
#: times as much.
_PART_BYTES = 2**28


def bandwidths(a: Any) -> tuple[int, int]:
    """Return how many diagonals below and above the main one a square matrix has.

    On a GPU, one kernel finds them, and the host waits once.

    Examples
    --------
    >>> bandwidths(np.array([[1, 2, 3], [4, 5, 6], [0, 7, 8]]))
    (1, 2)
    """
    if not is_device_array(a):
        lower, upper = scipy.linalg.bandwidth(np.require(a, requirements="A"))
        return int(lower), int(upper)
    if abs(a.strides[0]) > abs(a.strides[1]):  # the kernel reads columns
        return bandwidths(a.T)[::-1]
    with on_device_of(a):
        widths = array_module(a).zeros(2, np.int32)
        if a.size:
            _launch("bandwidths", len(a), a, widths)
        lower, upper = to_host(widths)
    return int(lower), int(upper)


def bandwidths_of_all(a: np.ndarray) -> tuple[int, int]:
    """Return how many diagonals the widest bands of a stack on the host have.

    Examples
    --------
    >>> bandwidths_of_all(np.array([[[1, 2], [0, 4]], [[1, 0], [3, 4]]]))
    (1, 1)
    """
    there = np.zeros(a.shape[1:], bool)
    step = max(_IN_CACHE // max(a[0].size, 1), 1)
    for start in range(0, len(a), step):
        there |= (a[start : start + step] != 0).any(axis=0)
    return bandwidths(there)


def _launch(name: str, blocks: int, a: Any, *arguments: Any) -> None:
    """Launch a kernel of band.cu on the current stream; scalars come before arrays."""
    *scalars, array = arguments
    numbers = map(np.int64, (*element_strides(a), len(a), *scalars))
    function = kernel(name, source("band", a.dtype))
    function((blocks,), (_THREADS,), (a, *numbers, array))


def gather_band(a: Any, lower: int, upper: int) -> np.ndarray:
    """Return the band of a square matrix on the host, in LAPACK's storage.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix; of a CuPy array, only the band is copied to the host.
    lower, upper : int
        Diagonals below and above the main one.

    Returns
    -------
    array, shape (lower + upper + 1, n)
        Column-major; entry (i, j) of the matrix is in row upper + i - j of column j.

    Examples
    --------
    >>> gather_band(np.array([[1.0, 2.0], [3.0, 4.0]]), 1, 0)
    array([[1., 4.],
           [3., 0.]])
    """
    n, rows = len(a), lower + upper + 1
    if is_device_array(a):
        with on_device_of(a):
            band = column_major_empty(a, (rows, n))
            blocks = min(-(-band.size // _THREADS), _MOST_BLOCKS)
            _launch("gather_band", blocks, a, lower, upper, band)
            return _on_host(band)
    return gather_bands(a[None], lower, upper)[0]


def gather_bands(a: np.ndarray, lower: int, upper: int, room: int = 0) -> np.ndarray:
    """Return `gather_band` of each matrix of a stack on the host, below `room` rows of zeros.

    Examples
    --------
    >>> gather_bands(np.array([[[1.0, 2.0], [3.0, 4.0]]]), 0, 1)
    array([[[0., 2.],
            [1., 4.]]])
    """
    count, n, _ = a.shape
    bands = np.zeros((count, n, room + lower + upper + 1), a.dtype).swapaxes(1, 2)
    for row, offset in enumerate(range(upper, -lower - 1, -1), room):
        place = slice(max(offset, 0), n + min(offset, 0))
        bands[:, row, place] = a.diagonal(offset, axis1=1, axis2=2)
    return bands


def _on_host(a: Any) -> np.ndarray:
    """Return a column-major copy on the host, from a GPU in memory that it copies at full speed."""
    if not is_device_array(a):
        return np.array(a, order="F")
    copy = pinned_empty(a.shape, a.dtype)
    copy_and_wait(copy, a if a.flags.f_contiguous else column_major_copy(a))
    return copy


class BandFactors:
    """LU factors, with partial pivoting, of a band matrix on the host.

    Parameters
    ----------
    band : array, shape (lower + upper + 1, n)
        As `gather_band` returns it; n is at least 1.
    lower, upper : int
        Diagonals below and above the main one.

    Attributes
    ----------
    info : int
        0, or LAPACK's number of the first zero on the diagonal of U, which cannot be solved with.
    tridiagonal : bool
        Whether they are LAPACK's factors of a tridiagonal matrix, of order 3 or more.

    Examples
    --------
    >>> factors = BandFactors(np.array([[4.0, 4.0, 4.0], [1.0, 1.0, 0.0]]), 1, 0)
    >>> factors.solve(np.array([4.0, 5.0, 9.0]))
    array([1., 1., 2.])
    """

    def __init__(self, band: np.ndarray, lower: int, upper: int) -> None:
        self._lower, self._upper, self._dtype = lower, upper, band.dtype
        self._n = band.shape[1]
        self._norm = float(abs(band).sum(axis=0, dtype=np.float64).max())
        self.tridiagonal = lower == upper == 1 and self._n > 2
        if self.tridiagonal:
            diagonals = band[2, :-1], band[1], band[0, 1:]
            *self._factors, self.info = self._lapack("gttrf")(*diagonals)
        else:
            room = np.empty((2 * lower + upper + 1, self._n), band.dtype, order="F")
            room[lower:] = band
            trf = self._lapack("gbtrf")
            *self._factors, self.info = trf(room, lower, upper, overwrite_ab=True)

    def _lapack(self, name: str) -> Any:
        return lapack_function(name, self._dtype.char)

    def solve(self, b: np.ndarray, trans: int = 0, *, overwrite_b: bool = False) -> np.ndarray:
        """Solve with the matrix, its transpose (`trans` = 1), or its adjoint (2)."""
        if self.tridiagonal:
            gttrs, letter = self._lapack("gttrs"), "NTC"[trans]
            x, _ = gttrs(*self._factors, b, trans=letter, overwrite_b=overwrite_b)
        else:
            (lu, piv), widths = self._factors, (self._lower, self._upper)
            x, _ = self._lapack("gbtrs")(lu, *widths, b, piv, trans=trans, overwrite_b=overwrite_b)
        return x

    def reciprocal_condition(self) -> float:
        """Estimate 1 / (||A||_1 ||A^-1||_1), in O(n) operations for a narrow band."""
        norm = min(self._norm, float(np.finfo(self._dtype).max))  # may overflow in single precision
        if not norm:
            return 0.0
        if self.tridiagonal:
            found = self._lapack("gtcon")(*self._factors, norm)[0] * (norm / self._norm)
        elif self._n <= FEW:
            lu, piv = self._factors
            found = self._lapack("gbcon")(self._lower, self._upper, lu, piv, norm)[0]
            found *= norm / self._norm
        else:
            like = np.empty((self._n, 0), self._dtype)
            found = estimate_reciprocal_condition(self._norm, like, self.solve)
        return float(found)


def solve_on_host(factors: BandFactors, b: Any) -> Any:
    """Solve with factors on the host for right-hand sides of any device, where X goes as well."""
    x = factors.solve(_on_host(b), overwrite_b=True)
    if not is_device_array(b):
        return x
    target = column_major_empty(b, b.shape)
    copy_and_wait(target, x)
    return target


def solve_on_gpu(band: np.ndarray, b: Any) -> Any | None:
    """Solve with a tridiagonal matrix by cuSPARSE, and refine the solution once.

    Parameters
    ----------
    band : array, shape (3, n)
        As `gather_band` returns it; n is at least 3.
    b : cupy.ndarray, shape (n, ...)
        Right-hand sides.

    Returns
    -------
    cupy.ndarray or None
        X; None if its backward error is not that of a stable method.
    """
    with on_device_of(b):
        diagonals = array_module(b).asarray(band)
        norm, rhs = float(abs(band).sum(axis=0).max()), b.reshape(len(b), -1)
        found = column_major_empty(b, rhs.shape)
        step = max(_PART_BYTES // (len(b) * b.itemsize), 1)
        for start in range(0, rhs.shape[1], step):
            columns = slice(start, start + step)
            x, accurate = _solve_part(diagonals, norm, rhs[:, columns])
            if not accurate:
                return None
            found[:, columns] = x
        return found.reshape(b.shape, order="F")


def _solve_part(diagonals: Any, norm: float, b: Any) -> tuple[Any, bool]:
    """Solve for some right-hand sides; return X, and whether its backward error is small."""
    upper, diagonal, lower = diagonals
    x = solve_tridiagonal(lower, diagonal, upper, b)
    x += solve_tridiagonal(lower, diagonal, upper, b - _product(lower, diagonal, upper, x))
    error = abs(b - _product(lower, diagonal, upper, x)).max(axis=0)
    size = norm * abs(x).max(axis=0) + abs(b).max(axis=0)
    limit = _BACKWARD_ERROR * max(len(b), _AT_LEAST) * float(np.finfo(b.dtype).eps)
    return x, bool((error <= limit * size).all())


def _product(lower: Any, diagonal: Any, upper: Any, x: Any) -> Any:
    """Return A X for a tridiagonal matrix, of whose diagonals none is shorter than n."""
    product = diagonal[:, None] * x
    product[1:] += lower[:-1, None] * x[:-1]
    product[:-1] += upper[1:, None] * x[1:]
    return product
