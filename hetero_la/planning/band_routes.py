"""Choice of the way to solve with a band matrix, by prediction.

| route | of | seconds |
|---|---|---|
| the band on the host, by LAPACK | all | the band to the host, its factors, B to the host, X back |
| cuSPARSE | tridiagonal matrices on a GPU | the band, its factors and condition; B stays |
| dense LU where the matrix is | a wide band | as any general matrix |

Factors of a band cost the host a time for each column and for each diagonal below the main one, and
the operations at the rate of LAPACK's small products; a right-hand side costs a time for each row,
and its operations.  Copies cost what the profile says of the link to a GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero_la.planning.decisions import Problem, library_estimate, quick_estimate
from hetero_la.planning.options import Options
from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.tiles.arrays.transfer import device_index

#: Of LAPACK's band factors on a core of 2 to 3 GHz: seconds for each column, and for each entry
#: below its diagonal; operations a second (of double precision, real).  Measured with bandwidths
#: of 1 to 256: within a third, where other threads do not hold BLAS up.
_COLUMN_SECONDS, _ENTRY_SECONDS, _FACTOR_RATE = 2.5e-8, 8e-9, 25e9
#: Of a right-hand side: seconds for each row, the same with tridiagonal factors, and operations a
#: second.
_ROW_SECONDS, _TRIDIAGONAL_ROW_SECONDS, _SOLVE_RATE = 4e-8, 2e-8, 10e9
#: Of a refined solve by cuSPARSE: kernel launches, and passes over B.
_LAUNCHES, _PASSES = 60, 30
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
        return quick_estimate(problem, Options(), caller)
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
    weight = _weight(dtype)
    factored, solved = 2 * lower * (lower + upper), 2 * (2 * lower + upper + 1)
    column = _COLUMN_SECONDS + _ENTRY_SECONDS * lower + factored * weight / _FACTOR_RATE
    factor, solve = n * column, n * nrhs * (_ROW_SECONDS + solved * weight / _SOLVE_RATE)
    if caller.kind == "cpu":
        return factor + solve
    size, (band, b) = np.dtype(dtype).itemsize, (n * (lower + upper + 1), n * nrhs)
    return factor + solve + _copies_seconds(caller, dtype, band * size, b * size, b * size)


def _weight(dtype: Any) -> float:
    """Return the time of an operation relative to one in double precision."""
    return DeviceModel().work(dtype)


def _copies_seconds(gpu: WorkerInfo, dtype: Any, *sizes: int) -> float:
    link = machine_model((gpu,), dtype, measure=False).host_link
    return sum(map(link.seconds, sizes))
