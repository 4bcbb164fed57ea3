"""NumPy's functions of linear algebra, computed by ours where a GPU is predicted to be faster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from hetero_la.api.cholesky import cholesky
from hetero_la.api.determinant import det, slogdet
from hetero_la.api.factors import with_each_array
from hetero_la.api.host_arrays import LEAST_ELEMENTS, Movable, on_a_gpu
from hetero_la.api.lstsq import lstsq
from hetero_la.api.qr import qr
from hetero_la.api.solve import inv, solve
from hetero_la.checks.warnings import without_warnings
from hetero_la.execution.gpu_choice import gpus_possible
from hetero_la.stand_ins.tall_svd import pinv, singular_values, svd
from hetero_la.tiles.arrays.transfer import array_module

_QR_MODES = {"reduced": "economic", "complete": "full"}


class NumpyCall(NamedTuple):
    """A call of our function that computes what one of NumPy's does.

    Attributes
    ----------
    function : callable
        The function.
    arguments : dict
        Its arguments.
    convert : callable
        Makes NumPy's result of ours.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    convert: Callable[[Any], Any] = lambda found: found


def _solve(a: Any, b: Any) -> NumpyCall:
    return NumpyCall(solve, {"a": a, "b": b, "assume_a": "gen"})


def _inv(a: Any) -> NumpyCall:
    return NumpyCall(inv, {"a": a})


def _det(a: Any) -> NumpyCall:
    return NumpyCall(det, {"a": a})


def _slogdet(a: Any) -> NumpyCall:
    return NumpyCall(slogdet, {"a": a}, lambda found: _result_type("slogdet")(*found))


def _cholesky(a: Any, /, *, upper: bool = False) -> NumpyCall:
    return NumpyCall(cholesky, {"a": a, "lower": not upper})


def _qr(a: Any, mode: str = "reduced") -> NumpyCall | None:
    if mode not in _QR_MODES:  # of "r", ours would be a part of a matrix of the size of A
        return None
    arguments = {"a": a, "mode": _QR_MODES[mode]}
    return NumpyCall(qr, arguments, lambda found: _result_type("qr")(*found))


def _lstsq(a: Any, b: Any, rcond: float | None = None) -> NumpyCall | None:
    if rcond is None:
        rcond = _least_cond(a)
    if not rcond >= 0:
        return None

    def convert(found: tuple[Any, ...]) -> tuple[Any, ...]:
        x, residuals, rank, values = found
        return x, np.atleast_1d(np.real(residuals)), np.int32(rank), values

    return NumpyCall(lstsq, {"a": a, "b": b, "cond": rcond}, convert)


def _svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> NumpyCall | None:
    if not compute_uv:
        return NumpyCall(singular_values, {"a": a})
    if full_matrices:
        return None
    return NumpyCall(svd, {"a": a}, lambda found: _result_type("svd")(*found))


def _pinv(a: Any, rcond: float | None = None) -> NumpyCall | None:
    cond = 1e-15 if rcond is None else rcond
    return NumpyCall(pinv, {"a": a, "cond": cond}) if isinstance(cond, Real) and cond >= 0 else None


def _matrix_rank(A: Any, tol: float | None = None) -> NumpyCall | None:
    if not (tol is None or isinstance(tol, Real)):
        return None

    def convert(values: np.ndarray) -> Any:
        least = _least_cond(A) * values[0] if tol is None else tol
        return np.count_nonzero(values > least, axis=-1)

    return NumpyCall(singular_values, {"a": A}, convert)


#: By the names of NumPy's functions: from their arguments to a call of ours, if there is one.
CALLS: dict[str, Callable[..., NumpyCall | None]] = {
    "solve": _solve, "inv": _inv, "det": _det, "slogdet": _slogdet, "cholesky": _cholesky,
    "qr": _qr, "lstsq": _lstsq, "svd": _svd, "pinv": _pinv, "matrix_rank": _matrix_rank,
}  # fmt: skip


@functools.cache
def _result_type(name: str) -> Any:
    return type(getattr(np.linalg, name)(np.eye(1)))


def _least_cond(a: np.ndarray) -> float:
    """Return NumPy's default of the fraction up to which singular values count as zeros."""
    return max(a.shape) * float(np.finfo(float).eps)


def on_a_gpu_as_numpy(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Compute what a function of `numpy.linalg` does on a GPU, if that is predicted to be faster.

    Parameters
    ----------
    name : str
        Name of the function.
    args, kwargs
        Its arguments.

    Returns
    -------
    tuple or None
        The result, as NumPy's function returns it; None if NumPy's is to be called, also for what
        that refuses.
    """
    if not args or not _is_plain(args[0]) or args[0].size < LEAST_ELEMENTS or not gpus_possible():
        return None
    try:
        call = CALLS[name](*args, **kwargs)
    except TypeError:  # of wrong arguments
        return None
    if call is None or not _is_plain(call.arguments.get("b", args[0])):
        return None
    movable: Movable = vars(call.function)["movable"]
    try:
        found = on_a_gpu(movable._replace(function=_as_numpy(movable.function)), (), call.arguments)
    except ValueError:  # of a singular matrix, for one
        return None
    return None if found is None else (call.convert(found[0]),)


def _is_plain(a: Any) -> bool:
    """Return whether an array is of the types in which NumPy computes, even if others are given."""
    return type(a) is np.ndarray and a.dtype.char in "dD"


def _as_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without warnings, of row-major matrices, which are turned on the GPU."""

    def row_major(part: Any) -> Any:
        return array_module(part).ascontiguousarray(part) if np.ndim(part) == 2 else part

    @functools.wraps(function)
    def quiet(**arguments: Any) -> Any:
        with without_warnings():
            return with_each_array(function(**arguments), row_major)

    return quiet
