"""Determinants from LU factors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetero_la._factor import factored
from hetero_la.execution import can_hold_result
from hetero_la.inputs import as_matrix
from hetero_la.lazy import takes_dask_arrays
from hetero_la.stacks import over_stacks
from hetero_la.tiles.transfer import array_module, on_device_of_arrays, to_host


class SlogdetResult(NamedTuple):
    """Sign (or phase) and logarithm of the absolute value of a determinant."""

    sign: Any
    logabsdet: Any


@takes_dask_arrays
@on_device_of_arrays
@over_stacks(a=2)
def det(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *, client: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Determinant, from the diagonal of U.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        As for `lu_factor`.
    overwrite_a, check_finite, client, **options
        As for `lu_factor`.

    Returns
    -------
    float64 or complex128
        The determinant, in double precision as SciPy returns it; for a stack of matrices,
        an array of shape (...).

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import det
    >>> float(det(np.array([[0.0, 2.0], [3.0, 5.0]])))
    -6.0
    """
    return det_of(*_diagonal(a, overwrite_a, check_finite, client, options))


def det_of(diagonal: np.ndarray, sign: int) -> Any:
    """Determinant from the diagonal of U, on the host, and the sign of the permutation."""
    wide = np.complex128 if diagonal.dtype.kind == "c" else np.float64
    if not diagonal.all():  # also where the other entries' product is infinite
        return wide(0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return wide(sign * np.prod(diagonal.astype(wide)))


@takes_dask_arrays
@on_device_of_arrays
@over_stacks(a=2)
def slogdet(a: Any, check_finite: bool = True, *, client: Any = None, **options: Any) -> Any:
    """Sign and logarithm of the determinant, which itself may overflow.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        As for `lu_factor`.
    check_finite, client, **options
        As for `lu_factor`.

    Returns
    -------
    SlogdetResult
        ``sign`` (of modulus 1, or 0) and ``logabsdet`` (-inf where the determinant is 0),
        as `numpy.linalg.slogdet` returns them: numbers, or arrays of shape (...).

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import slogdet
    >>> sign, logabsdet = slogdet(np.diag([1e200, -1e200]))
    >>> float(sign), round(float(logabsdet), 3)
    (-1.0, 921.034)
    """
    return slogdet_of(*_diagonal(a, False, check_finite, client, options))


def slogdet_of(diagonal: np.ndarray, sign: int) -> SlogdetResult:
    """Sign and logarithm from the diagonal of U, on the host, and the sign of the permutation."""
    largest = np.maximum(np.abs(diagonal.real), np.abs(diagonal.imag))
    if not largest.all():
        return SlogdetResult(diagonal.dtype.type(0), largest.dtype.type(-np.inf))
    # By parts: complex moduli overflow for large numbers, complex division for subnormal ones.
    with np.errstate(invalid="ignore"):  # infinities that nobody looked for
        phases = diagonal.real / largest
        if diagonal.dtype.kind == "c":
            phases = phases + 1j * (diagonal.imag / largest)
    size = np.abs(phases)
    phase = sign * np.prod(phases / size)
    logabsdet = (np.log(largest) + np.log(size)).sum(dtype=size.dtype)
    return SlogdetResult(diagonal.dtype.type(phase), logabsdet)


def _diagonal(
    a: Any, overwrite_a: bool, check_finite: bool, client: Any, options: dict[str, Any]
) -> tuple[np.ndarray, int]:
    """Diagonal of U on the host, and the sign of the permutation."""
    a = as_matrix(a, square=True)
    if overwrite_a and not can_hold_result(a):  # a row-major array can, of the transpose
        a = a.T
    packed, piv = factored(a, overwrite_a, check_finite, client, options)
    return to_host(packed.diagonal()), sign_of(piv)


def sign_of(piv: Any) -> int:
    """Sign of the permutation that row interchanges make."""
    swaps = int((piv != array_module(piv).arange(len(piv))).sum())
    return -1 if swaps % 2 else 1
