"""Choice between the host and a GPU of the calling thread, for arrays on the host."""

from __future__ import annotations

import functools
from typing import NamedTuple

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution.executor_choice import INLINE_LIMIT, caller_gpu
from hetero_la.execution.one_call import SURE_TO_FIT_ON_GPU
from hetero_la.execution.timeline import recording
from hetero_la.planning.decisions import Problem, nearby_problem
from hetero_la.planning.routes import copies_seconds, gpu_routes, host_routes
from hetero_la.scheduler.cluster.clients import running_client
from hetero_la.tiles.arrays.transfer import current_gpu, forked_after_cuda, gpu_count

#: Operations of runs for which a GPU is considered at all: fewer are done on the host before a GPU
#: is found, and more take a GPU longer than a run in the calling thread may take.
_FEWEST_FLOPS, _MOST_FLOPS = 2e7, 5e13
#: Memory that a function takes on the GPU, over that of the matrix.
_COPIES = 4


class HostProblem(NamedTuple):
    """What is computed of arrays on the host, and how many elements of results come back."""

    problem: Problem
    results: int


def gpu_for(asked: HostProblem) -> int | None:
    """Return the GPU on which the result is predicted to be there first; None for the host."""
    if running_client() is not None or recording() or forked_after_cuda():
        return None
    _, m, n, nrhs, dtype = asked.problem
    place = _place(asked._replace(problem=nearby_problem(asked.problem)))
    if place is None:
        return None
    needed = _COPIES * m * (n + nrhs) * dtype.itemsize
    fits = needed <= SURE_TO_FIT_ON_GPU or needed <= caller_gpu(place).free_bytes()
    return place if fits else None


@functools.lru_cache(maxsize=1024)
def _place(asked: HostProblem) -> int | None:
    routine, *sizes, _ = asked.problem
    likely = _FEWEST_FLOPS < ROUTINES[routine].flops(*sizes) < _MOST_FLOPS
    if not likely or not gpu_count():
        return None
    gpu = current_gpu()
    computing = min(gpu_routes(asked.problem, gpu).values())
    # A longer run loads and stores columns while it computes, on a cluster's workers.
    if computing >= INLINE_LIMIT["gpu"]:
        return None
    there = computing + copies_seconds(*asked)
    return gpu if there < min(host_routes(asked.problem).values()) else None
