"""Parts that the error ratios share: norms, scales, and blocks of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Rows and columns of a block.
BLOCK = 1024


def blocks(stop: int) -> Iterator[slice]:
    """Yield ranges of at most `BLOCK` that cover ``range(stop)``."""
    for start in range(0, stop, BLOCK):
        yield slice(start, min(start + BLOCK, stop))


def eps(dtype: np.dtype) -> float:
    """Return the unit roundoff, 2^-53 or 2^-24."""
    return float(np.finfo(dtype).eps) / 2


def column_sums(block: NDArray, axis: int = 0) -> NDArray:
    """Sum the moduli along an axis, in double precision."""
    return np.abs(block).sum(axis=axis, dtype=np.float64)


def one_norm(a: NDArray) -> float:
    """Compute the largest column sum of moduli, without a second array of `a`'s size."""
    sums = np.zeros(a.shape[1])
    for rows in blocks(a.shape[0]):
        sums += column_sums(a[rows])
    return float(sums.max(initial=0.0))


def ratio(residuals: ArrayLike, *scales: float) -> float:
    """Divide the largest residual by each scale; return infinity for a scale of 0 or infinity.

    Scales are divided one at a time, because their product may underflow.
    """
    residual = float(np.max(residuals, initial=0.0))
    if residual == 0:
        return 0.0
    for scale in scales:
        if not 0 < scale < np.inf:
            return float("inf")
        residual /= scale
    return residual if np.isfinite(residual) else float("inf")


def largest_ratio(residuals: NDArray, anorm: float, sizes: NDArray, unit: float) -> float:
    """Compute the largest `ratio` of a column's residual to its own scales.

    Examples
    --------
    >>> largest_ratio(np.array([1e-9, 1e-16]), 1.0, np.array([1e9, 1.0]), 1e-16)
    1.0
    """
    pairs = zip(residuals.tolist(), sizes.tolist(), strict=True)
    return max((ratio(residual, anorm, size, unit) for residual, size in pairs), default=0.0)


def as_floating(x: ArrayLike) -> NDArray[Any]:
    """Convert `x` to an array of floating-point numbers."""
    x = np.asarray(x)
    return x if x.dtype.kind in "fc" else x.astype(np.float64)


def completed_rows(a: NDArray, rows: slice, *, hermitian: bool) -> NDArray:
    """Return rows of the Hermitian or symmetric matrix whose lower triangle `a` holds.

    Examples
    --------
    >>> completed_rows(np.array([[1.0, 9.0], [2.0, 3.0]]), slice(0, 1), hermitian=True)
    array([[1., 2.]])
    """
    block = np.tril(a[rows], rows.start)
    above = np.triu(a[:, rows].T, rows.start + 1)
    if hermitian and a.dtype.kind == "c":
        d = np.arange(rows.start, rows.stop)
        block[d - rows.start, d] = block[
            d - rows.start, d
        ].real  # as LAPACK, ignore the imaginary part
        np.conjugate(above, out=above)
    block += above
    return block
