"""Runs without a plan: LAPACK on the whole matrix, where that is predicted to be the fastest."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution.destination import source_of
from hetero_la.execution.executor_choice import INLINE_LIMIT
from hetero_la.execution.report import UnplannedReport
from hetero_la.execution.result import Result
from hetero_la.execution.timeline import recording
from hetero_la.planning.decisions import Problem, lapack_estimate, quick_estimate, team_estimate
from hetero_la.planning.options import Options
from hetero_la.scheduler.cluster.clients import running_client
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.cpu.device import available_memory, copy_on_host
from hetero_la.tiles.storage.layout import TileLayout

#: A run of tasks has to be predicted faster by this factor: so far predictions may be wrong.
_GAIN = 1.1
#: Predicted seconds from which there are tasks: a call of LAPACK cannot be interrupted, and its
#: threads wait for each other at every step, which costs more the longer it is (see
#: docs/performance.md).
_LONGEST = 0.5
#: Bytes of a result up to which free memory is not looked up: that takes as long as a small run.
_SURE_TO_FIT = 1 << 24


def takes_one_call(
    routine: str, a: Any, nrhs: int, *, in_place: bool = False, gains: bool = True
) -> bool:
    """Return whether LAPACK alone is predicted to be fastest, for a call without options.

    Parameters
    ----------
    routine : str
        A key of `ROUTINES`.
    a : array, shape (m, n)
        The matrix.
    nrhs : int
        Columns beside it.
    in_place : bool, optional
        Whether the result takes the place of `a`.
    gains : bool, optional
        Whether a run of tasks could be faster at all.
    """
    if not isinstance(a, np.ndarray) or not ROUTINES[routine].lapack or recording():
        return False
    m, n = a.shape
    size = 0 if in_place else m * (n + nrhs) * a.itemsize
    if not m or not n or (size > _SURE_TO_FIT and size > available_memory()):
        return False
    client = running_client()
    if client and getattr(client.cluster, "options", None):
        return False
    if not gains:
        return client is None
    return _is_fastest(routine, m, n, nrhs, a.dtype, client is not None)


@functools.lru_cache(maxsize=1024)
def _is_fastest(
    routine: str, m: int, n: int, nrhs: int, dtype: np.dtype[Any], client: bool
) -> bool:
    return _predicted_fastest(_nearby(Problem(routine, m, n, nrhs, dtype)), client)


def _nearby(problem: Problem) -> Problem:
    """Return the problem that stands for others of about its size: few predictions are enough."""
    m, n, nrhs = map(_rounded, problem[1:4])
    return problem._replace(m=m, n=n, nrhs=nrhs)


def _rounded(size: int) -> int:
    """Return the next size with three binary digits.

    Examples
    --------
    >>> [_rounded(size) for size in (0, 7, 10, 1000, 1025)]
    [0, 7, 10, 1024, 1280]
    """
    shift = max(size.bit_length() - 3, 0)
    return -(-size >> shift) << shift


@functools.cache
def _predicted_fastest(problem: Problem, client: bool) -> bool:
    """Compare the predictions, once in a process."""
    caller = calling_thread()
    tasks = quick_estimate(problem, Options(), caller)
    if tasks >= INLINE_LIMIT["cpu"]:  # then they run on a cluster
        size = ClusterSize.choose({}) if not client else None
        if size is None or size.gpus:
            return False
        worker = replace(caller, blas_threads=size.blas_threads)
        tasks = team_estimate(problem, [worker] * size.cpus)
    alone = _lapack_seconds(problem)
    return alone < _LONGEST and alone < _GAIN * tasks


@functools.cache
def _lapack_seconds(problem: Problem) -> float:
    return lapack_estimate(problem, calling_thread())


def about_seconds(problem: Problem) -> float:
    """Return what one call of LAPACK is predicted to take, for a problem of about this size."""
    return _lapack_seconds(_nearby(problem))


def lapack_call(routine: str) -> Callable[[np.ndarray, np.ndarray, bool], lapack.Vectors]:
    """Return what overwrites a matrix, and the columns beside it, as the routine does."""
    function: Callable[..., lapack.Vectors] = getattr(lapack, ROUTINES[routine].lapack)
    return function


def call_lapack(routine: str, a: np.ndarray, b: Any, nrhs: int, in_place: bool) -> Result:
    """Run a routine on a matrix on the host by LAPACK, in the calling thread.

    Parameters
    ----------
    routine, a, nrhs, in_place
        As for `takes_one_call`.
    b : array, shape (m, nrhs), or None
        Right-hand sides.
    """
    began = time.perf_counter()
    m, n = a.shape
    source = source_of(a, in_place)
    target = a if in_place else np.empty((m, n + nrhs), a.dtype, order="F")
    left = target[:, :n] if nrhs else target
    if not in_place:
        copy_on_host(left, a)
    beside = target[:, n:]
    if b is not None:
        beside[...] = b
    values = lapack_call(routine)(left, beside, False)
    problem = Problem(routine, m, n, nrhs, a.dtype)
    report = UnplannedReport(problem, source, time.perf_counter() - began)
    return Result(values, _one_tile(m, n, nrhs), a.dtype, target, report)


@functools.lru_cache(maxsize=64)
def _one_tile(m: int, n: int, nrhs: int) -> TileLayout:
    return TileLayout(m, n, max(m, n, nrhs), nrhs)
