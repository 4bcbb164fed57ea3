"""Runs without a plan: LAPACK or cuSOLVER on the whole matrix, where that is the fastest."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

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
from hetero_la.scheduler.cluster.plugins import blas_bound
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.tiles.arrays.transfer import (
    column_major_empty,
    copy_on_device,
    device_index,
    is_device_array,
)
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.cpu.device import available_memory, copy_on_host, usable_cores
from hetero_la.tiles.kernels.gpu_libraries import cusolver
from hetero_la.tiles.storage.layout import TileLayout

#: A run of tasks has to be predicted faster by this factor: so far predictions may be wrong.
_GAIN = 1.1
#: Predicted seconds from which there are tasks: a call of LAPACK cannot be interrupted, and its
#: threads wait for each other at every step, which costs more the longer it is (see
#: docs/performance.md).
_LONGEST = 0.5
#: Bytes of a result up to which free memory is not looked up: that takes as long as a small run.
_SURE_TO_FIT, SURE_TO_FIT_ON_GPU = 1 << 24, 1 << 28
#: Elements of a matrix from which LAPACK takes longer than threads to hand over the interpreter.
_LONG_ENOUGH = 48 * 48
#: Seconds of work that are worth the start of a thread.
_WORTH_A_THREAD = 5e-4


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
    if _library(routine, gpu) is None or recording():
        return False
    size = 0 if in_place else m * (n + nrhs) * a.itemsize
    if not m or not n or not _fits(size, gpu):
        return False
    client = running_client()
    if client and getattr(client.cluster, "options", None):
        return False
    if not gains:
        return client is None
    return _is_fastest(routine, m, n, nrhs, a.dtype, client is not None, gpu)


def _fits(size: int, gpu: int | None) -> bool:
    if gpu is None:
        return size <= _SURE_TO_FIT or size <= available_memory()
    return size <= SURE_TO_FIT_ON_GPU or size <= caller_gpu(gpu).free_bytes()


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
    return alone < _LONGEST and alone < _GAIN * tasks


@functools.cache
def _lapack_seconds(problem: Problem) -> float:
    return library_estimate(problem, calling_thread())


def _library(routine: str, gpu: int | None = None) -> Any:
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
    began = time.perf_counter()
    (m, n), gpu = a.shape, device_index(a)
    source = source_of(a, in_place)
    target = a if in_place else column_major_empty(a, (m, n + nrhs))
    left = target[:, :n] if nrhs else target
    if not in_place:
        _copy(left, a)
    beside = target[:, n:]
    if b is not None:
        beside[...] = b
    values = _library(routine, gpu)(left, beside)
    problem = Problem(routine, m, n, nrhs, a.dtype)
    report = UnplannedReport(problem, source, time.perf_counter() - began, gpu)
    return Result(values, _one_tile(m, n, nrhs), a.dtype, target, report)


def _copy(target: Any, source: Any) -> None:
    if is_device_array(source):
        copy_on_device(target, source)
    else:
        copy_on_host(target, source)


@functools.lru_cache(maxsize=64)
def _one_tile(m: int, n: int, nrhs: int) -> TileLayout:
    return TileLayout(m, n, max(m, n, nrhs), nrhs)


class Stack(NamedTuple):
    """What a routine leaves of a stack of matrices.

    Attributes
    ----------
    factors : array, shape (count, m, n)
        The overwritten matrices, each column-major.
    beside : array, shape (count, m, nrhs)
        The overwritten columns beside them.
    vectors : dict
        Name -> the vectors of all matrices, in an array of shape (count, ...).
    """

    factors: np.ndarray
    beside: np.ndarray
    vectors: dict[str, np.ndarray]


def call_lapack_for_each(
    routine: str, a: Any, b: Any = None, *, columns: int = 0, client: Any = None, **options: Any
) -> Stack | None:
    """Run a routine on each matrix of a stack by LAPACK, several at once if there are many.

    Parameters
    ----------
    routine, columns, client, **options
        As for `execute`.
    a : array, shape (count, m, n)
        The matrices.
    b : array, shape (count, m, nrhs), optional
        Right-hand sides.

    Returns
    -------
    Stack or None
        None if a run for one matrix after another is better, and if a matrix is singular, or not
        definite.
    """
    if client is not None or options:
        return None
    (count, m, n), nrhs = a.shape, columns if b is None else b.shape[2]
    if count < usable_cores() or not takes_one_call(routine, a[0], nrhs):
        return None
    call = _library(routine)
    factors, beside = (np.empty((count, k, m), a.dtype).swapaxes(1, 2) for k in (n, nrhs))
    found: list[lapack.Vectors] = [{}] * count

    def run(i: int) -> None:
        copy_on_host(factors[i], a[i])
        if b is not None:
            beside[i] = b[i]
        found[i] = call(factors[i], beside[i], threads > 1)

    threads = _threads_for(count, Problem(routine, m, n, nrhs, a.dtype))
    _for_each_of(run, count, threads)
    vectors = {name: np.array([one[name, 0] for one in found]) for name, _ in found[0]}
    return None if vectors.get("info", np.zeros(1)).any() else Stack(factors, beside, vectors)


def _threads_for(count: int, problem: Problem) -> int:
    """Return how many threads pay for so many runs of LAPACK; 0 if they are over at once."""
    threads = int(count * _lapack_seconds(nearby_problem(problem)) / _WORTH_A_THREAD)
    most = min(usable_cores(), count) if problem.m * problem.n >= _LONG_ENOUGH else 1
    return min(threads, most)


def _for_each_of(run: Callable[[int], None], count: int, threads: int) -> None:
    """Call `run` with each number below `count`, in so many threads, each with one of BLAS."""

    def run_part(part: range) -> None:
        for i in part:
            run(i)

    if not threads:
        run_part(range(count))
        return
    share = -(-count // threads)
    parts = [range(count)[first : first + share] for first in range(0, count, share)]
    with blas_bound(1):
        if threads == 1:
            run_part(*parts)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run_part, parts))
