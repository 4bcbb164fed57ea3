"""Choice between the host and a GPU of the calling thread, which both compute alike."""

from __future__ import annotations

import functools
import importlib.util
from typing import NamedTuple

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution.executor_choice import INLINE_LIMIT
from hetero_la.execution.one_call import fits
from hetero_la.execution.resident_factors import release_copies
from hetero_la.execution.timeline import recording
from hetero_la.planning.decisions import Problem, nearby_problem, rounded_size
from hetero_la.planning.routes import (
    copies_seconds,
    gpu_routes,
    host_call_seconds,
    host_routes,
    values_seconds,
)
from hetero_la.scheduler.cluster.clients import running_client
from hetero_la.scheduler.cluster.devices import current_worker
from hetero_la.tiles.arrays.transfer import current_gpu, forked_after_cuda, gpu_count

#: Operations of runs for which a GPU is considered at all: fewer are done on the host before a GPU
#: is found, and more take a GPU longer than a run in the calling thread may take.
_FEWEST_FLOPS, _MOST_FLOPS = 2e7, 5e13
#: Memory that a function takes on the GPU, over that of the matrix.
_COPIES = 4


class HostProblem(NamedTuple):
    """What is computed of arrays on the host.

    Attributes
    ----------
    problem : Problem
        The run.
    results : int
        How many elements of results come back.
    values : bool
        Whether the singular values of the triangle are found, too.
    """

    problem: Problem
    results: int
    values: bool = False


def _nearby(asked: HostProblem) -> HostProblem:
    problem, results = nearby_problem(asked.problem), rounded_size(asked.results)
    return HostProblem(problem, results, asked.values)


@functools.cache
def gpus_possible() -> bool:
    """Return whether there may be a GPU, as CuPy is installed: for small matrices each test counts.

    Examples
    --------
    >>> gpus_possible() or gpu_count() == 0
    True
    """
    return importlib.util.find_spec("cupy") is not None


def gpu_for(asked: HostProblem) -> int | None:
    """Return the GPU on which the result is predicted to be there first; None for the host.

    A client's workers, and a recorder, which wants tasks, have priority; and a Dask task has its
    worker's cores.
    """
    if running_client() or recording() or current_worker() or forked_after_cuda():
        return None
    _, m, n, nrhs, dtype = asked.problem
    if not _considered(_nearby(asked)):
        return None
    gpu, needed = current_gpu(), _COPIES * m * (n + nrhs) * dtype.itemsize
    return gpu if fits(needed, gpu) or (release_copies() and fits(needed, gpu)) else None


@functools.lru_cache(maxsize=1024)
def _considered(asked: HostProblem) -> bool:
    """Return whether a GPU is predicted to be faster, with the copies there and back."""
    routine, *sizes, dtype = asked.problem
    likely = _FEWEST_FLOPS < ROUTINES[routine].flops(*sizes) < _MOST_FLOPS
    if not likely or not gpu_count():
        return False
    computing = min(gpu_routes(asked.problem, current_gpu()).values())
    # A longer run loads and stores columns while it computes, on a cluster's workers.
    if computing >= INLINE_LIMIT["gpu"]:
        return False
    there = computing + copies_seconds(asked.problem, asked.results)
    here = min(host_routes(asked.problem).values())
    if asked.values:
        there += values_seconds(min(sizes[:2]), dtype, "gpu")
        here += values_seconds(min(sizes[:2]), dtype, "cpu")
    return there < here


def host_pays(asked: HostProblem, gpu: int) -> bool:
    """Return whether the host is predicted to be done first with small arrays of a GPU."""
    if running_client() or recording() or current_worker():
        return False
    return _host_is_faster(_nearby(asked), gpu)


@functools.lru_cache(maxsize=1024)
def _host_is_faster(asked: HostProblem, gpu: int) -> bool:
    problem, order = asked.problem, min(asked.problem.m, asked.problem.n)
    here = host_call_seconds(problem, asked.results)
    there = min(gpu_routes(problem, gpu).values())
    if asked.values:
        here += values_seconds(order, problem.dtype, "cpu")
        there += values_seconds(order, problem.dtype, "gpu")
    return here < there
