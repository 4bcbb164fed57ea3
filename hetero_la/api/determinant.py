"""Determinants from LU factors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import numpy as np

from hetero_la.algorithms.lu import DIAGONAL
from hetero_la.api.host_arrays import Work
from hetero_la.api.lu import factor_each
from hetero_la.api.stacks import array_function, as_stack_of_one, unless
from hetero_la.checks.array_types import AnyArray, ExchangedArray, GpuArray, LazyOrAny, Numbers
from hetero_la.checks.inputs import as_matrix, as_stack, is_writable
from hetero_la.execution.execute import execute
from hetero_la.execution.resident_factors import Residency
from hetero_la.execution.stack_runs import Stack, solve_stack_on_gpu
from hetero_la.numerics.range_scaling import column_exponents, times_power_of_two
from hetero_la.planning.options import RunOptions
from hetero_la.scheduler.cluster.clients import ClientLike
from hetero_la.tiles.arrays.transfer import (
    array_module,
    is_device_array,
    on_device_of_arrays,
    to_host,
)
from hetero_la.tiles.kernels.gpu_libraries.finite import is_finite

#: How many mantissas can be multiplied, and how far from 0 the exponents of numbers may be in all,
#: so that no product on the way leaves the range; and a bound beyond the exponent of any number.
_TOGETHER, _WITHIN_RANGE, _EXPONENT_BOUND = 512, 1000, 10_000


class SlogdetResult(NamedTuple):
    """Sign (or phase) and logarithm of the absolute value of a determinant.

    Attributes
    ----------
    sign : number
        Of the determinant: 1, -1 or 0; for complex matrices a number of modulus 1, or 0.
    logabsdet : float
        Logarithm of its absolute value; -inf for 0.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> sign, logabsdet = hetero_la.slogdet(np.diag([2.0, -3.0]))
    >>> float(sign * np.exp(logabsdet).round(12))
    -6.0
    """

    sign: Any
    logabsdet: Any


def _factorization(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    return Work("lu", unread=True) if m == n else None


def _diagonals(a: Any, check_finite: bool, **how: Any) -> tuple[Any, Any] | None:
    """Factor a stack; return diagonals of U and signs, if no matrix is singular, nor U infinite."""

    def pick(part: Stack, place: slice) -> tuple[Any, Any]:
        piv = part.vectors["ipiv"]
        return part.factors.diagonal(axis1=1, axis2=2), _signs(piv)

    done = factor_each(_turned(a), check_finite, square=True, then=pick, keep=False, **how)
    return done.found if done and is_finite(done.found[0]) else None


def _turned(a: Any) -> Any:
    """Return the transposes of row-major matrices: they are read faster, and can hold factors."""
    return a.swapaxes(-1, -2) if a.flags.c_contiguous else a


def _on_gpu(a: Any, **how: Any) -> Any:
    """Return what `determinants` does of a stack on a GPU."""
    a = as_stack(a, square=True)
    return None if a is None else solve_stack_on_gpu("lu_and_determinant", _turned(a), **how)


def _det_stack(a: Any, overwrite_a: bool = False, check_finite: bool = True, **how: Any) -> Any:
    """Compute `det` of a stack."""
    if is_device_array(a):
        determined = _on_gpu(a, **how)
        return determined and unless(determined[3], determined[2])
    found = _diagonals(a, check_finite, **how)
    return None if found is None else _dets(*found)


def _det_alone(a: Any, check_finite: bool = True) -> Any:
    """Compute `det` of one small matrix on a GPU."""
    found = as_stack_of_one(_det_stack)(a, check_finite=check_finite)
    return None if found is None else _number(found)


def _number(a: Any) -> Any:
    """Return the number that an array of no dimensions holds."""
    return to_host(a)[()]


@array_function(_det_stack, _factorization, alone=_det_alone, a=2)
def det(
    a: LazyOrAny | GpuArray | ExchangedArray | Numbers, overwrite_a: bool = False,
    check_finite: bool = True, *, client: ClientLike = None, **options: Unpack[RunOptions],
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
    if diagonal.dtype.kind == "f" and not exponent:
        numbers = diagonal.astype(np.float64)
        if np.abs(np.frexp(numbers)[1]).sum() < _WITHIN_RANGE:  # as of most small matrices
            found = sign * numbers.prod() + 0.0  # not -0.0
            if math.isfinite(found):
                return found
    return _dets(diagonal[None], np.array([sign]), exponent)[0]


def _dets(diagonals: Any, signs: Any, exponent: int = 0) -> Any:
    """Compute `det_of` for each matrix of a stack, where the arrays are."""
    xp = array_module(diagonals)
    mantissas, powers = _products(diagonals)
    powers = xp.clip(powers - exponent, -_EXPONENT_BOUND, _EXPONENT_BOUND)
    parts = (signs * mantissas).view(np.float64).reshape(len(signs), -1)
    with np.errstate(over="ignore", under="ignore"):  # infinity and zero are valid results
        dets = xp.ldexp(parts, powers[:, None]).view(mantissas.dtype)[:, 0]
    return xp.where(diagonals.all(axis=1), dets, 0)  # 0 even if another entry is infinite


def _slogdet_stack(a: Any, check_finite: bool = True, **how: Any) -> Any:
    """Compute `slogdet` of a stack."""
    if is_device_array(a):
        determined = _on_gpu(a, **how)
        return determined and unless(determined[3], SlogdetResult(*determined[:2]))
    found = _diagonals(a, check_finite, **how)
    return None if found is None else _slogdets(*found)


def _slogdet_alone(a: Any, check_finite: bool = True) -> Any:
    """Compute `slogdet` of one small matrix on a GPU."""
    found = as_stack_of_one(_slogdet_stack)(a, check_finite=check_finite)
    return None if found is None else SlogdetResult(*map(_number, found))


@array_function(_slogdet_stack, _factorization, alone=_slogdet_alone, a=2)
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
    return SlogdetResult(*(part[0] for part in _slogdets(diagonal[None], sign, exponent)))


def _slogdets(diagonals: Any, signs: Any, exponent: int = 0) -> SlogdetResult:
    """Compute `slogdet_of` for each matrix of a stack, where the arrays are."""
    xp, dtype = array_module(diagonals), diagonals.dtype
    mantissas, powers = _products(diagonals)
    sizes, regular = xp.abs(mantissas), diagonals.all(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinities and zeros
        phases = xp.where(regular, signs * mantissas / sizes, 0)
        logarithms = xp.log(sizes) + (powers - exponent) * np.log(2)
    logarithms = xp.where(regular, logarithms, -np.inf)
    return SlogdetResult(phases.astype(dtype), logarithms.astype(diagonals.real.dtype))


def _products(factors: Any) -> tuple[Any, Any]:
    """Return the products of rows as numbers near 1 and powers of two."""
    xp = array_module(factors)
    numbers, powers = _normalized(xp.ascontiguousarray(factors, _double(factors.dtype)))
    while True:
        starts = range(0, max(numbers.shape[1], 1), _TOGETHER)
        with np.errstate(invalid="ignore"):  # infinities, if the input was not checked
            parts = [numbers[:, i : i + _TOGETHER].prod(axis=1, keepdims=True) for i in starts]
        numbers, more = _normalized(xp.concatenate(parts, axis=1))
        powers = powers + more
        if len(parts) == 1:
            return numbers[:, 0], powers


def _normalized(numbers: Any) -> tuple[Any, Any]:
    """Scale numbers to mantissas from 1/2 to 1; return them and the sums of rows' exponents."""
    xp, shape = array_module(numbers), numbers.shape
    parts = numbers.view(np.float64).reshape(*shape, numbers.itemsize // 8)
    powers = xp.frexp(xp.abs(parts).max(axis=2))[1]
    scaled = xp.ldexp(parts, -powers[:, :, None]).view(numbers.dtype)
    return scaled.reshape(shape), powers.sum(axis=1)


def _double(dtype: np.dtype) -> type:
    return np.complex128 if dtype.kind == "c" else np.float64


def _diagonal(
    a: Any, overwrite_a: bool, check_finite: bool, **how: Any
) -> tuple[np.ndarray, int, int]:
    """Factor, and return the arguments of `det_of`."""
    a = _turned(as_matrix(a, square=True, finite=check_finite))
    exponent = 0
    if overwrite_a and is_writable(a):  # then its old values are not needed
        exponents = column_exponents(a, least=float(np.finfo(a.dtype).max) ** 0.5)
        a, exponent = times_power_of_two(a, exponents, overwrite=True), int(exponents.sum())
    diagonal, piv = _factor(a, overwrite_a, **how)
    if overwrite_a or np.isfinite(diagonal).all():
        return diagonal, sign_of(piv), exponent
    # U has overflowed.  Scaling columns leaves the pivots as they are.
    exponents = column_exponents(a)
    diagonal, piv = _factor(times_power_of_two(a, exponents), False, **how)
    return diagonal, sign_of(piv), int(exponents.sum())


def _factor(a: Any, overwrite_a: bool, **how: Any) -> tuple[np.ndarray, Any]:
    """Return the diagonal of U, on the host, and the row interchanges."""
    result = execute("lu", a, overwrite_a=overwrite_a, residency=Residency.NOBODY, **how)
    if result.checked:
        return result.vector(DIAGONAL), result.piv
    return to_host(result.factors.diagonal()), result.piv


@on_device_of_arrays
def sign_of(piv: Any) -> int:
    """Return the sign of the permutation that row interchanges make."""
    return int(_signs(piv))


def _signs(piv: Any) -> Any:
    """Return `sign_of` the row interchanges along the last axis, where they are."""
    swaps = (piv != array_module(piv).arange(piv.shape[-1])).sum(axis=-1)
    return 1 - 2 * (swaps % 2)
