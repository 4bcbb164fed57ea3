"""Runs without a plan: LAPACK or cuSOLVER on the whole matrix, where that is the fastest."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution.destination import source_of
from hetero_la.execution.executor_choice import INLINE_LIMIT, caller_gpu
from hetero_la.execution.report import UnplannedReport
from hetero_la.execution.result import Result
from hetero_la.execution.timeline import recording
from hetero_la.planning.decisions import (
    Problem,
    library_estimate,
    nearby_problem,
    quick_estimate,
    team_estimate,
)
from hetero_la.planning.options import Options
from hetero_la.planning.routes import gpu_routes
from hetero_la.scheduler.cluster.clients import running_client
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.tiles.arrays.around_run import before_run, behind_run
from hetero_la.tiles.arrays.copies import copy_on_host
from hetero_la.tiles.arrays.transfer import (
    column_major_empty,
    copy_on_device,
    device_index,
    is_device_array,
)
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.cpu.device import available_memory
from hetero_la.tiles.kernels.gpu.stopwatch import Stretch
from hetero_la.tiles.kernels.gpu_libraries import cusolver
from hetero_la.tiles.storage.layout import TileLayout

#: A run of tasks has to be predicted faster by this factor: so far predictions may be wrong.
_GAIN = 1.1
#: Bytes of a result up to which free memory is not looked up: that takes as long as a small run.
_SURE_TO_FIT, _SURE_TO_FIT_ON_GPU = 1 << 24, 1 << 28


def takes_one_call(
    routine: str, a: Any, nrhs: int, *, in_place: bool = False, gains: bool = True
) -> bool:
    """Return whether one call of LAPACK or cuSOLVER is predicted to be fastest, without options.

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
    (m, n), gpu = a.shape, device_index(a)
    if library_call(routine, gpu) is None or recording():
        return False
    size = 0 if in_place else m * (n + nrhs) * a.itemsize
    if not m or not n or not fits(size, gpu):
        return False
    client = running_client()
    if client and getattr(client.cluster, "options", None):
        return False
    if not gains:
        return client is None
    return _is_fastest(routine, m, n, nrhs, a.dtype, client is not None, gpu)


def fits(size: int, gpu: int | None) -> bool:
    """Return whether so many bytes are free on a GPU, or on the host."""
    if gpu is None:
        return size <= _SURE_TO_FIT or size <= available_memory()
    return size <= _SURE_TO_FIT_ON_GPU or size <= caller_gpu(gpu).free_bytes()


@functools.lru_cache(maxsize=1024)
def _is_fastest(
    routine: str, m: int, n: int, nrhs: int, dtype: np.dtype[Any], client: bool, gpu: int | None
) -> bool:
    problem = nearby_problem(Problem(routine, m, n, nrhs, dtype))
    return _fastest_on_host(problem, client) if gpu is None else _fastest_on_gpu(problem, gpu)


@functools.cache
def _fastest_on_gpu(problem: Problem, gpu: int) -> bool:
    """Compare the predictions for a matrix on a GPU of the calling thread."""
    alone, tasks = gpu_routes(problem, gpu).values()
    return tasks < INLINE_LIMIT["gpu"] and alone < tasks


@functools.cache
def _fastest_on_host(problem: Problem, client: bool) -> bool:
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
    return alone < ROUTINES[problem.routine].lapack_longest and alone < _GAIN * tasks


@functools.cache
def _lapack_seconds(problem: Problem) -> float:
    return library_estimate(problem, calling_thread())


def about_seconds(problem: Problem) -> float:
    """Return what one call of LAPACK is predicted to take, for a problem of about this size."""
    return _lapack_seconds(nearby_problem(problem))


def library_call(routine: str, gpu: int | None = None) -> Any:
    """Return what overwrites a matrix, and the columns beside it, as the routine does, or None."""
    name = ROUTINES[routine].library
    return getattr(lapack if gpu is None else cusolver, name, None) if name else None


def call_library(routine: str, a: Any, b: Any, nrhs: int, in_place: bool) -> Result:
    """Run a routine by LAPACK or, on the GPU of the matrix, by cuSOLVER, in the calling thread.

    Parameters
    ----------
    routine, a, nrhs, in_place
        As for `takes_one_call`.
    b : array, shape (m, nrhs), or None
        Right-hand sides.
    """
    (m, n), gpu = a.shape, device_index(a)
    source = source_of(a, in_place)
    target = a if in_place else column_major_empty(a, (m, n + nrhs))
    left = target[:, :n] if nrhs else target
    before_run()
    began, stretch = time.perf_counter(), None if gpu is None else Stretch()
    if not in_place:
        _copy(left, a)
    # A view of CuPy's takes 10 microseconds.
    beside: Any = None if b is None and not nrhs else target[:, n:]
    if b is not None:
        beside[...] = b
    values = library_call(routine, gpu)(left, beside)
    seconds = stretch.end() if stretch else time.perf_counter() - began
    behind_run()
    report = UnplannedReport(Problem(routine, m, n, nrhs, a.dtype), source, seconds, gpu)
    return Result(values, _one_tile(m, n, nrhs), a.dtype, target, report)


def report_of_one(routine: str, a: Any, dtype: np.dtype[Any], began: float) -> UnplannedReport:
    """Return the report of a call that took the place of `call_library`, and is complete."""
    seconds, (m, n) = time.perf_counter() - began, a.shape
    problem = Problem(routine, m, n, 0, dtype)
    return UnplannedReport(problem, source_of(a, False), seconds, device_index(a))


def _copy(target: Any, source: Any) -> None:
    if is_device_array(source):
        copy_on_device(target, source)
    else:
        copy_on_host(target, source)


@functools.lru_cache(maxsize=64)
def _one_tile(m: int, n: int, nrhs: int) -> TileLayout:
    return TileLayout(m, n, max(m, n, nrhs), nrhs)
