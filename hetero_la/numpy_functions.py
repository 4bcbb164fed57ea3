"""NumPy's functions of linear algebra, computed by ours where a GPU is predicted to be faster."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

from hetero_la.api.cholesky import cholesky
from hetero_la.api.determinant import det, slogdet
from hetero_la.api.factors import with_each_array
from hetero_la.api.host_arrays import on_a_gpu
from hetero_la.api.lstsq import lstsq
from hetero_la.api.qr import qr
from hetero_la.api.solve import inv, solve
from hetero_la.tiles.arrays.transfer import array_module

_QR_MODES = {"reduced": "economic", "complete": "full", "r": "r"}


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
    # Ours is in double precision, as SciPy's.
    return NumpyCall(det, {"a": a}, lambda found: np.asarray(found).astype(a.dtype)[()])


def _slogdet(a: Any) -> NumpyCall:
    return NumpyCall(slogdet, {"a": a}, lambda found: _slogdet_type()(*found))


def _cholesky(a: Any, /, *, upper: bool = False) -> NumpyCall:
    return NumpyCall(cholesky, {"a": a, "lower": not upper})


def _qr(a: Any, mode: str = "reduced") -> NumpyCall | None:
    if mode not in _QR_MODES:
        return None

    def convert(found: tuple[Any, ...]) -> Any:
        return found[0][: min(found[0].shape)] if mode == "r" else _qr_type()(*found)

    return NumpyCall(qr, {"a": a, "mode": _QR_MODES[mode]}, convert)


def _lstsq(a: Any, b: Any, rcond: float | None = None) -> NumpyCall | None:
    if rcond is None:
        rcond = float(max(np.shape(a)) * np.finfo(np.result_type(a, b)).eps)
    if not rcond >= 0:
        return None

    def convert(found: tuple[Any, ...]) -> tuple[Any, ...]:
        x, residuals, rank, values = found
        return x, np.atleast_1d(np.real(residuals)), rank, values

    return NumpyCall(lstsq, {"a": a, "b": b, "cond": rcond}, convert)


#: By the names of NumPy's functions: from their arguments to a call of ours, if there is one.
CALLS: dict[str, Callable[..., NumpyCall | None]] = {
    "solve": _solve, "inv": _inv, "det": _det, "slogdet": _slogdet, "cholesky": _cholesky,
    "qr": _qr, "lstsq": _lstsq,
}  # fmt: skip


@functools.cache
def _qr_type() -> Any:
    return type(np.linalg.qr(np.eye(1)))


@functools.cache
def _slogdet_type() -> Any:
    return type(np.linalg.slogdet(np.eye(1)))


def on_a_gpu_as_numpy(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Compute what a function of `numpy.linalg` does on a GPU, if that is predicted to be faster.

    Returns
    -------
    tuple or None
        The result, as NumPy's function returns it; None if NumPy's is to be called, also for what
        that refuses.
    """
    with contextlib.suppress(TypeError, ValueError, LinAlgError):
        call = CALLS[name](*args, **kwargs)
        if call is None or not all(map(_is_plain, (call.arguments["a"], call.arguments.get("b")))):
            return None
        work_of, core, signature = vars(call.function)["computes"]
        function = _as_numpy(call.function)
        found = on_a_gpu(function, work_of, core, signature, (), call.arguments)
        return None if found is None else (call.convert(found[0]),)
    return None


def _is_plain(a: Any) -> bool:
    """Return whether an array is of a type in which NumPy computes, or None: it has others, too."""
    return a is None or (type(a) is np.ndarray and a.dtype.char in "fdFD")


def _as_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without warnings, of row-major matrices, which are turned on the GPU."""

    def row_major(part: Any) -> Any:
        return array_module(part).ascontiguousarray(part) if np.ndim(part) == 2 else part

    def quiet(**arguments: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LinAlgWarning)
            return with_each_array(function(**arguments), row_major)

    return quiet
