"""Routes: ways to run a routine on the host or on one GPU, with estimates of their times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hetero_la.planning.decisions import Problem, library_estimate, quick_estimate, team_estimate
from hetero_la.planning.options import Options
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.machine.model import LinkModel
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.scheduler.placement.workers import calling_thread

#: Seconds that a run of tasks on the caller's GPU takes beside its kernels.
_GPU_RUN = 7e-4
#: Copies between a GPU and pageable memory by several threads, without a profile.
_PAGEABLE = LinkModel(3e-4, 15e9)


def host_routes(problem: Problem, options: Options | None = None) -> dict[str, float]:
    """Return the routes on the host's cores, with their estimated seconds."""
    caller, size = calling_thread(), ClusterSize.choose({"gpus": 0})
    cores = [replace(caller, blas_threads=size.blas_threads)] * size.cpus
    return {
        "one call of LAPACK": library_estimate(problem, caller),
        "tasks in the calling thread": quick_estimate(problem, options or Options(), caller),
        "tasks on CPU workers": team_estimate(problem, cores, options),
    }


def gpu_routes(problem: Problem, gpu: int, options: Options | None = None) -> dict[str, float]:
    """Return the routes on a GPU that has the matrix, with their estimated seconds."""
    caller = calling_thread(gpu=gpu)
    return {
        "one call of cuSOLVER": library_estimate(problem, caller),
        "tasks on the GPU": quick_estimate(problem, options or Options(), caller) + _GPU_RUN,
    }


def copies_seconds(problem: Problem, results: int) -> float:
    """Estimate the seconds of copies from the host to a GPU, and of `results` elements back."""
    profile = current_profile()
    links: dict[str, Any] = profile.links if profile else {}
    _, m, n, nrhs, dtype = problem
    there = links.get("pageable_to_gpu", _PAGEABLE).seconds(m * (n + nrhs) * dtype.itemsize)
    return there + links.get("gpu_to_new", _PAGEABLE).seconds(results * dtype.itemsize)
