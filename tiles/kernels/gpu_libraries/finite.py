"""Tests for NaN and infinity, on the host and on GPUs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from scipy.linalg import blas

from hetero_la.tiles.arrays.host_threads import PARALLEL_BYTES, copy_threads, thread_count
from hetero_la.tiles.arrays.transfer import Array, is_device_array, on_device_of
from hetero_la.tiles.kernels.gpu_libraries.norms import holds_not_finite

#: SciPy's BLAS, as LAPACK's is: the threads of another one would compete with those that look for
#: more work.
_DOTS = {
    np.dtype(char).str: getattr(blas, name)
    for char, name in {"f": "sdot", "d": "ddot", "F": "cdotu", "D": "zdotu"}.items()
}
#: Elements of one call, in which no other thread of Python runs.
_AT_ONCE = 1 << 24
#: Elements up to which BLAS wakes no threads, and from there up to which each is tested, which
#: takes a mask.
_FEWEST, _FEW = 10_000, 1 << 16


def is_finite(a: Array) -> bool:
    """Return whether `a` holds neither NaN nor infinity."""
    if is_device_array(a):
        return not _holds_not_finite_there(a)
    if a.size <= _FEW:
        dot = _DOTS.get(a.dtype.str) if 0 < a.size <= _FEWEST and a.flags.forc else None
        if dot:  # of small matrices each call counts
            elements = a.ravel("K")
            square = dot(elements, elements)
            if square - square == 0:  # neither infinite nor NaN
                return True
        return bool(np.isfinite(a).all())
    with np.errstate(all="ignore"):
        # One pass without a temporary; each element is tested only if the sum is not finite.
        return bool(np.isfinite(_sum(a)) or np.isfinite(a).all())


def _holds_not_finite_there(a: Array) -> Array | bool:
    """Return whether an array on a GPU holds NaN or infinity; where it may, without a wait."""
    with on_device_of(a):
        if a.dtype.char == "e":  # half precision
            a = a.astype(np.float32)
        return a.dtype.kind in "fc" and holds_not_finite(a)


def _sum(a: np.ndarray) -> Array:
    """Return a sum over an array on the host that is not finite if an element is not.

    BLAS sums the squares of what is contiguous; else several threads sum what is large.
    """
    dot = _DOTS.get(a.dtype.str)
    if dot and a.flags.aligned and (a.flags.c_contiguous or a.flags.f_contiguous):
        elements = a.reshape(-1, order="A")
        parts = (elements[at : at + _AT_ONCE] for at in range(0, a.size, _AT_ONCE))
        return sum(dot(part, part) for part in parts)
    if a.nbytes < 2 * PARALLEL_BYTES:
        return a.sum()
    along = int(np.argmax(np.abs(a.strides)))
    count = min(a.nbytes // PARALLEL_BYTES, 4 * thread_count())
    pieces = np.array_split(a, count, axis=along)
    return sum(copy_threads().map(_quiet_sum, pieces))


def _quiet_sum(a: np.ndarray) -> Array:
    with np.errstate(all="ignore"):  # each thread has its own
        return a.sum()


def require_finite(a: Array, name: str) -> None:
    """Raise ValueError if `a` holds a NaN or an infinity."""
    if not is_finite(a):
        raise _error(name)


def require_system_finite(a: Array, b: Array) -> None:
    """Raise ValueError if the matrix, or what is beside it, holds a NaN or an infinity.

    On a GPU both are looked at before the host waits.
    """
    if not is_device_array(a):
        require_finite(a, "a")
        require_finite(b, "b")
        return
    LateTest({"a": a, "b": b}).require_finite()


class LateTest:
    """A test for NaN and infinity that is made behind a run, which only reads the arrays.

    Parameters
    ----------
    arrays : dict
        Their names, and the arrays.
    """

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    @functools.cached_property
    def _found(self) -> dict[str, Array | bool]:
        return {
            name: _holds_not_finite_there(a) if is_device_array(a) else not is_finite(a)
            for name, a in self._arrays.items()
        }

    def enqueue(self) -> None:
        """Make the test, on a GPU by kernels on the current stream."""
        _ = self._found

    def require_finite(self) -> None:
        """Raise ValueError if an array holds a NaN or an infinity."""
        _require_none(self._found)


def _require_none(found: dict[str, Any]) -> None:
    """Raise ValueError if something that is not finite was found in an array."""
    for name, bad in found.items():
        if bad:
            raise _error(name) from None  # not from what came of it


def _error(name: str) -> ValueError:
    return ValueError(f"{name}: array must not contain infs or NaNs")
