"""Determinants from LU factors."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import numpy as np

from hetero_la.api.host_arrays import Work
from hetero_la.api.lu import factor_without_warning
from hetero_la.api.stacks import array_function
from hetero_la.checks.array_types import AnyArray, GpuArray, LazyOrAny, Numbers
from hetero_la.checks.inputs import as_matrix, is_writable
from hetero_la.execution.destination import can_hold_result
from hetero_la.numerics.range_scaling import column_exponents, times_power_of_two
from hetero_la.planning.options import RunOptions
from hetero_la.scheduler.cluster.clients import ClientLike
from hetero_la.tiles.arrays.transfer import array_module, on_device_of_arrays, to_host

#: How often mantissas can be multiplied in pairs before they may leave the range, and a bound
#: beyond the exponent of any number.
_HALVINGS, _EXPONENT_BOUND = 4, 10_000


class SlogdetResult(NamedTuple):
    """Sign (or phase) and logarithm of the absolute value of a determinant."""

    sign: Any
    logabsdet: Any


def _factorization(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    return Work("lu") if m == n else None


@array_function(None, _factorization, a=2)
def det(
    a: LazyOrAny | GpuArray | Numbers, overwrite_a: bool = False, check_finite: bool = True, *,
    client: ClientLike = None, **options: Unpack[RunOptions],
) -> LazyOrAny:  # fmt: skip
    """Compute the determinant, from the diagonal of U.

    The product is accumulated as a mantissa and an exponent: it is right whenever the
    determinant itself can be represented, even if partial products overflow or underflow.

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
    return det_of(*_diagonal(a, overwrite_a, check_finite, client=client, **options))


def det_of(diagonal: np.ndarray, sign: int, exponent: int = 0) -> Any:
    """Compute the determinant of a matrix that was scaled by 2**exponent in all.

    `diagonal` is that of U, on the host, and `sign` that of the permutation.
    """
    wide = _double(diagonal.dtype)
    if not diagonal.all():  # even if another entry is infinite
        return wide(0)
    mantissa, power = _product(diagonal)
    power = min(max(power - exponent, -_EXPONENT_BOUND), _EXPONENT_BOUND)
    with np.errstate(over="ignore", under="ignore"):  # infinity and zero are valid results
        return np.ldexp(sign * mantissa.view(np.float64), power).view(wide)[0]


@array_function(None, _factorization, a=2)
def slogdet(
    a: AnyArray, check_finite: bool = True, *,
    client: ClientLike = None, **options: Unpack[RunOptions],
) -> SlogdetResult:  # fmt: skip
    """Compute sign and logarithm of the determinant, which itself may overflow.

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
    return slogdet_of(*_diagonal(a, False, check_finite, client=client, **options))


def slogdet_of(diagonal: np.ndarray, sign: int, exponent: int = 0) -> SlogdetResult:
    """Compute sign and logarithm of the determinant from the arguments of `det_of`."""
    dtype, real = diagonal.dtype.type, diagonal.real.dtype.type
    if not diagonal.all():
        return SlogdetResult(dtype(0), real(-np.inf))
    mantissa, power = _product(diagonal)
    size = np.abs(mantissa[0])
    with np.errstate(invalid="ignore"):  # infinities, if the input was not checked
        phase = sign * mantissa[0] / size
    return SlogdetResult(dtype(phase), real(np.log(size) + (power - exponent) * np.log(2)))


def _product(factors: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the product of all entries as an array of one number near 1 and a power of two."""
    numbers, power = _normalized(np.append(factors, _double(factors.dtype)(1)))
    with np.errstate(invalid="ignore"):  # infinities, if the input was not checked
        while len(numbers) > 1:
            for _ in range(_HALVINGS):
                half = len(numbers) // 2
                pairs = numbers[:half] * numbers[half : 2 * half]
                numbers = np.append(pairs, numbers[2 * half :])
            numbers, more = _normalized(numbers)
            power += more
    return numbers, power


def _normalized(numbers: np.ndarray) -> tuple[np.ndarray, int]:
    """Scale numbers to mantissas from 1/2 to 1; return them and the sum of their exponents."""
    parts = numbers.view(np.float64).reshape(len(numbers), -1)
    powers = np.frexp(np.abs(parts).max(axis=1))[1]
    return np.ldexp(parts, -powers[:, None]).view(numbers.dtype)[:, 0], int(powers.sum())


def _double(dtype: np.dtype) -> type:
    return np.complex128 if dtype.kind == "c" else np.float64


def _diagonal(
    a: Any, overwrite_a: bool, check_finite: bool, **how: Any
) -> tuple[np.ndarray, int, int]:
    """Factor, and return the arguments of `det_of`."""
    a = as_matrix(a, square=True)
    if overwrite_a and not can_hold_result(a):  # a row-major array can, of the transpose
        a = a.T
    exponent = 0
    if overwrite_a and is_writable(a):  # then its old values are not needed
        exponents = column_exponents(a, least=float(np.finfo(a.dtype).max) ** 0.5)
        a, exponent = times_power_of_two(a, exponents, overwrite=True), int(exponents.sum())
    lu, piv = factor_without_warning(a, overwrite_a, check_finite, **how)
    diagonal = to_host(lu.diagonal())
    if overwrite_a or np.isfinite(diagonal).all():
        return diagonal, sign_of(piv), exponent
    # U has overflowed.  Scaling columns leaves the pivots as they are.
    exponents = column_exponents(a)
    lu, piv = factor_without_warning(times_power_of_two(a, exponents), False, check_finite, **how)
    return to_host(lu.diagonal()), sign_of(piv), int(exponents.sum())


@on_device_of_arrays
def sign_of(piv: Any) -> int:
    """Return the sign of the permutation that row interchanges make."""
    swaps = int((piv != array_module(piv).arange(len(piv))).sum())
    return -1 if swaps % 2 else 1
