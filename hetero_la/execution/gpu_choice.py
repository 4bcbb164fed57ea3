"""Choice between the host and a GPU of the calling thread, for arrays on the host."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

from hetero_la.execution.executor_choice import INLINE_LIMIT, caller_gpu
from hetero_la.execution.one_call import GPU_RUN, SURE_TO_FIT_ON_GPU
from hetero_la.execution.timeline import recording
from hetero_la.planning.decisions import (
    Problem,
    library_estimate,
    nearby_problem,
    quick_estimate,
    team_estimate,
)
from hetero_la.planning.options import Options
from hetero_la.scheduler.cluster.clients import running_client
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.machine.model import LinkModel
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.tiles.arrays.transfer import current_gpu, forked_after_cuda, gpu_count

#: Copies between a GPU and pageable memory by several threads, without a profile.
_PAGEABLE = LinkModel(3e-4, 15e9)
#: Seconds on the host from which a GPU is considered at all: to look for one takes longer.
_SHORT = 5e-4
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
    if host_seconds(asked.problem) < _SHORT or not gpu_count():
        return None
    gpu = current_gpu()
    seconds, computing = gpu_seconds(asked, gpu)
    # A longer run loads and stores columns while it computes, on a cluster's workers.
    return (
        gpu if computing < INLINE_LIMIT["gpu"] and seconds < host_seconds(asked.problem) else None
    )


def host_seconds(problem: Problem) -> float:
    """Estimate the seconds of the fastest way on the host's cores."""
    caller, size = calling_thread(), ClusterSize.choose({"gpus": 0})
    cores = [replace(caller, blas_threads=size.blas_threads)] * size.cpus
    return min(
        library_estimate(problem, caller), quick_estimate(problem, Options(), caller),
        team_estimate(problem, cores),
    )  # fmt: skip


def gpu_seconds(asked: HostProblem, gpu: int) -> tuple[float, float]:
    """Estimate the seconds on a GPU: with the copies there and back, and without."""
    problem, caller, profile = asked.problem, calling_thread(gpu=gpu), current_profile()
    links: dict[str, Any] = profile.links if profile else {}
    computing = min(
        library_estimate(problem, caller), quick_estimate(problem, Options(), caller) + GPU_RUN
    )
    _, m, n, nrhs, dtype = problem
    there = links.get("pageable_to_gpu", _PAGEABLE).seconds(m * (n + nrhs) * dtype.itemsize)
    back = links.get("gpu_to_pageable", _PAGEABLE).seconds(asked.results * dtype.itemsize)
    return there + computing + back, computing
