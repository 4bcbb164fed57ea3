"""Choice of the way to solve with a band matrix, by prediction.

| route | of | seconds |
|---|---|---|
| the band on the host, by LAPACK | all | the band to the host, its factors, B to the host, X back |
| cuSPARSE | tridiagonal matrices on a GPU | the band, its factors and condition; B stays |
| dense LU where the matrix is | a wide band | as any general matrix |

Factors of a band cost the host a time for each entry below the diagonal, and the operations at the
rate of LAPACK's small products; a right-hand side costs a time for each row, and its operations;
the condition of a large matrix is estimated by solves.  Copies cost what the profile says of the
link to a GPU.  All figures were measured beside an H200, with orders of 512 to 16384, bandwidths
of 4 to 128 and 1 to 64 right-hand sides: `test_band_matrices.py` has them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero_la.numerics.band_matrices import FEW
from hetero_la.planning.decisions import Problem, library_estimate, quick_estimate
from hetero_la.planning.options import Options
from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.tiles.arrays.transfer import device_index

#: Of LAPACK's band factors: seconds for each entry below the diagonal; operations a second (of
#: double precision, real).
_ENTRY_SECONDS, _FACTOR_RATE = 1.5e-8, 50e9
#: Of a right-hand side: seconds for each row, the same with tridiagonal factors, and operations a
#: second.
_ROW_SECONDS, _TRIDIAGONAL_ROW_SECONDS, _SOLVE_RATE = 1.5e-8, 9e-9, 10e9
#: Right-hand sides for which a solve takes as long as an estimate of the condition.
_CONDITION = 24
#: Bytes of an array from which its memory is new to the process each time, and seconds for a byte.
_NEW_MEMORY, _NEW_BYTE_SECONDS = 2**25, 1.5e-9
#: Of a refined solve by cuSPARSE: kernel launches, and passes over B.
_LAUNCHES, _PASSES = 60, 600
#: What a solve by dense LU on a GPU takes besides its run, for norm, condition and refinement:
#: seconds, and passes over the matrix.
_CHECK_SECONDS, _CHECK_PASSES = 1.2e-3, 10
#: Seconds up to which a band is solved with at once, as no estimate of other routes is worth more.
_AT_ONCE = 1e-4


def band_pays(a: Any, lower: int, upper: int, nrhs: int) -> bool:
    """Return whether LAPACK on the band is predicted to be faster than LU of the dense matrix.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix.
    lower, upper : int
        Diagonals below and above the main one.
    nrhs : int
        Right-hand sides.

    Examples
    --------
    >>> a = np.broadcast_to(1.0, (4096, 4096))
    >>> band_pays(a, 4, 4, 1), band_pays(a, 4095, 4095, 1)
    (True, False)
    """
    n, caller = len(a), _caller(a)
    seconds = _band_seconds(caller, n, lower, upper, nrhs, a.dtype)
    if seconds <= _AT_ONCE:
        return True
    return seconds < _dense_seconds(Problem("solve", n, n, nrhs, a.dtype), caller)


@functools.lru_cache(maxsize=64)
def _dense_seconds(problem: Problem, caller: WorkerInfo) -> float:
    """Predict the seconds of a solve by dense LU, in place on a GPU or by LAPACK."""
    if caller.kind == "gpu":
        device = machine_model((caller,), problem.dtype, measure=False).devices[0]
        size = problem.n**2 * np.dtype(problem.dtype).itemsize
        checks = _CHECK_SECONDS + _CHECK_PASSES * size / device.bandwidth
        return quick_estimate(problem, Options(), caller) + checks
    return library_estimate(problem, caller)


def cusparse_pays(b: Any) -> bool:
    """Return whether right-hand sides on a GPU are predicted to be solved for faster there.

    LAPACK would solve on the host with factors that are there in either case.

    Parameters
    ----------
    b : cupy.ndarray, shape (n, ...)
        Right-hand sides.
    """
    caller = _caller(b)
    device = machine_model((caller,), b.dtype, measure=False).devices[0]
    there = _LAUNCHES * device.launch_seconds + _PASSES * b.nbytes / device.bandwidth
    rows = b.size * _TRIDIAGONAL_ROW_SECONDS * _weight(b.dtype)
    return there < rows + _copies_seconds(caller, b.dtype, b.nbytes, b.nbytes)


def _caller(a: Any) -> WorkerInfo:
    """Return the calling thread as a worker where the matrix is."""
    return calling_thread(gpu=device_index(a))


def _band_seconds(
    caller: WorkerInfo, n: int, lower: int, upper: int, nrhs: int, dtype: Any
) -> float:
    """Predict the seconds of a solve with the band on the host, copies from a GPU included."""
    weight, size = _weight(dtype), np.dtype(dtype).itemsize
    factored, solved = 2 * lower * (lower + upper), 2 * (2 * lower + upper + 1)
    factor = n * (_ENTRY_SECONDS * lower + factored * weight / _FACTOR_RATE)
    memory = n * (2 * lower + upper + 1) * size
    factor += _NEW_BYTE_SECONDS * memory if memory > _NEW_MEMORY else 0
    solves = nrhs + (_CONDITION if n > FEW else 0)
    solve = n * solves * (_ROW_SECONDS + solved * weight / _SOLVE_RATE)
    if caller.kind == "cpu":
        return factor + solve
    band, b = n * (lower + upper + 1) * size, n * nrhs * size
    return factor + solve + _copies_seconds(caller, dtype, band, b, b)


def _weight(dtype: Any) -> float:
    """Return the time of an operation relative to one in double precision."""
    return DeviceModel().work(dtype)


def _copies_seconds(gpu: WorkerInfo, dtype: Any, *sizes: int) -> float:
    link = machine_model((gpu,), dtype, measure=False).host_link
    return sum(map(link.seconds, sizes))
