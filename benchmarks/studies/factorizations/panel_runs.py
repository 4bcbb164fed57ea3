"""Panels on a device: the library's kernels and cuSOLVER's, each held to LAPACK's factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.linalg.blas
import scipy.linalg.lapack

from hetero_la.studies.factorizations import peers
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.runs import clock_of
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.kernels.device import Device, KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.queue import (
    block,
    cublas_function,
    cublas_handle,
    host_scalar,
    operation,
)
from hetero_la.tiles.kernels.spec import INTEGERS, SPECS

ROUTINES = ("lu", "qr", "cholesky")
#: What a factored panel is on the host: its entries where LAPACK has them, and the rest by name.
Factors = Mapping[str, np.ndarray]
PACKED, PIVOTS, T = "packed", "pivots", "T"
_KERNEL = {"lu": "getrf", "qr": "geqrf"}
#: How far apart factors may be, over their largest entry and the panel's width.
_LIMIT = 1e-11
#: cublasSideMode_t, cublasFillMode_t and cublasDiagType_t.
_RIGHT, _LOWER, _ANY_DIAGONAL = 1, 0, 0


def random_panel(routine: str, n: int, width: int) -> np.ndarray:
    """Return a random panel; for Cholesky, its top is symmetric positive definite."""
    a = np.random.default_rng(n).standard_normal((n, width))
    if routine == "cholesky":
        a[:width] = (a[:width] + a[:width].T) / 2 + 2 * width * np.eye(width)
    return np.asfortranarray(a)


class PanelRuns:
    """A panel on a device, and the library's calls that factor it.

    Parameters
    ----------
    routine : str
        One of `ROUTINES`.
    device : Device
        The device; it must be active.
    given : numpy.ndarray
        The panel, n x width; for Cholesky, its top is positive definite.
    """

    def __init__(self, routine: str, device: Device, given: np.ndarray) -> None:
        self.routine, self.device, self._options = routine, device, KernelOptions()
        self.given = device.empty(given.shape, given.dtype)
        device.copy(self.given, np.asfortranarray(given), Queue.PANEL)
        device.synchronize()
        self._array = device.empty(given.shape, given.dtype)
        rows, width = given.shape
        sizes = {"r": rows, "w": width}
        #: What is of use after the calls, the panel itself first.
        self.results = [self._array]
        if routine != "cholesky":
            self.results += self._arrays(_KERNEL[routine], sizes)[1:]
            self._calls = [(_KERNEL[routine], self.results)]
            return
        top, below = self._array[:width], self._array[width:]
        _, info = self._arrays("potrf", sizes)
        _, inverse = self._arrays("trtri_n", sizes)
        self._calls = [("potrf", [top, info])]
        if len(below):
            self._calls += [("trtri_n", [top, inverse]), ("trmm_rc", [top, inverse, below])]

    def _arrays(self, kernel: str, sizes: dict[str, int]) -> list[Any]:
        """Return arrays for a kernel."""
        spec = SPECS[kernel]
        return [
            self.device.empty(shape, np.int32 if name in INTEGERS else self._array.dtype)
            for name, shape in zip(spec.extents, spec.shapes(sizes), strict=True)
        ]

    def reset(self) -> None:
        """Enqueue a copy of the panel as it was."""
        self.device.copy(self._array, self.given, Queue.PANEL)

    def factor(self) -> None:
        """Enqueue the calls."""
        for kernel, arrays in self._calls:
            self.device.call(kernel, Queue.PANEL, arrays, self._options)

    def seconds(self) -> float:
        """Return the seconds of one factorization of the panel."""
        self.reset()
        return clock_of(self.device)(self.factor, 1)

    def factors(self) -> Factors:
        """Return the factors, once they are there."""
        self.device.synchronize()
        packed, *rest = (np.array(to_host(a)) for a in self.results)
        if self.routine == "lu":
            return {PACKED: packed, PIVOTS: rest[0]}
        if self.routine == "qr":
            _, upper, t, _ = rest
            packed = np.tril(packed, -1)
            packed[: len(upper)] += upper
            return {PACKED: packed, T: t}
        return {PACKED: packed}


class CusolverPanel:
    """A panel that cuSOLVER factors on the current GPU; for Cholesky, cuBLAS solves below it."""

    def __init__(self, routine: str, given: np.ndarray) -> None:
        import cupy

        self._given = cupy.asarray(given, order="F")
        self._array = cupy.empty_like(self._given)
        self._factor: Callable[[Any], float] = {
            "lu": peers.cusolver_getrf, "qr": peers.cusolver_geqrf, "cholesky": _potrf_and_trsm,
        }[routine]  # fmt: skip

    def seconds(self) -> float:
        """Return the seconds of one factorization of the panel."""
        self._array[...] = self._given
        return self._factor(self._array)

    def factors(self) -> Factors:
        """Return the factors."""
        return {PACKED: to_host(self._array)}


def _potrf_and_trsm(a: Any) -> float:
    """Return the seconds of Cholesky of the top tile, and of the solve with it below."""
    import cupy
    from cupy_backends.cuda.libs import cusolver

    (rows, width), A = a.shape, block(a)
    tile = cupy.cuda.device.get_cusolver_handle(), _LOWER, width, A.pointer, A.ld
    size = cusolver.dpotrf_bufferSize(*tile)
    work, info = cupy.empty(size), cupy.empty(1, np.int32)
    cupy.cuda.Device().synchronize()

    def factor() -> None:
        cusolver.dpotrf(*tile, work.data.ptr, size, info.data.ptr)
        if rows > width:
            cublas_function("trsm", A.dtype)(
                cublas_handle(), _RIGHT, _LOWER, operation("t", A.dtype), _ANY_DIAGONAL,
                rows - width, width, host_scalar(1, A.dtype)[0], A.pointer, A.ld,
                A.at(width, 0).pointer, A.ld,
            )  # fmt: skip
        cupy.cuda.Device().synchronize()

    return seconds_of(factor)


def by_lapack(routine: str, given: np.ndarray) -> Factors:
    """Return the factors of a panel by LAPACK."""
    if routine == "lu":
        packed, pivots, _ = scipy.linalg.lapack.dgetrf(given)
        return {PACKED: packed, PIVOTS: pivots}
    if routine == "qr":
        return {PACKED: scipy.linalg.lapack.dgeqrf(given)[0]}
    width = given.shape[1]
    lower, _ = scipy.linalg.lapack.dpotrf(given[:width], lower=1)
    below = scipy.linalg.blas.dtrsm(1.0, lower, given[width:], side=1, lower=1, trans_a=1)
    return {PACKED: np.concatenate([lower, below])}


def check(routine: str, who: str, given: np.ndarray, found: Factors, wanted: Factors) -> None:
    """Raise unless factors are LAPACK's, above the diagonal and below it, with what is beside them.

    Nothing is above Cholesky's diagonal.  T, which LAPACK has not made, must make Q orthogonal.
    """
    one, other = found[PACKED], wanted[PACKED]
    n, width = given.shape
    if routine == "cholesky":
        one, other = np.tril(one), np.tril(other)
    elif routine == "qr" and n == width:
        one, other = (_with_last_positive(a) for a in (one, other))
    limit = _LIMIT * np.abs(other).max() * width
    right = np.allclose(one, other, rtol=0, atol=limit)
    if PIVOTS in found:
        right &= bool((found[PIVOTS] == wanted[PIVOTS]).all())
    if T in found:
        right &= _orthogonal(np.tril(one[:, :width], -1), found[T], limit)
    if not right:
        raise AssertionError(f"{routine} of a panel of {given.shape} by {who} is wrong")


def _with_last_positive(a: np.ndarray) -> np.ndarray:
    """Return a factored square panel with R's last entry positive: it needs no reflector."""
    found = a.copy()
    found[-1, -1] = abs(found[-1, -1])
    return found


def _orthogonal(v: np.ndarray, t: np.ndarray, limit: float) -> bool:
    """Return whether I - V T V^T is orthogonal, V having ones on its diagonal beside what is given.

    Examples
    --------
    >>> v, t = np.array([[0.0], [1.0]]), np.array([[1.0]])  # I - v v^T turns two coordinates
    >>> _orthogonal(v, t, 1e-12), _orthogonal(v, 2 * t, 1e-12)
    (True, False)
    """
    v = v + np.eye(*v.shape)
    upper = np.array_equal(t, np.triu(t))
    return upper and bool(np.abs(t + t.T - t @ (v.T @ v) @ t.T).max() <= limit)
