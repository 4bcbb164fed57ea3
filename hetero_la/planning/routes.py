"""Routes: ways to run a routine on the host or on one GPU, with estimates of their times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hetero_la.planning.decisions import Problem, library_estimate, quick_estimate, team_estimate
from hetero_la.planning.options import Options
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.machine.model import LinkModel
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.tiles.kernels.device import DeviceKind
from hetero_la.tiles.storage.host_copies import DRIVER_BYTES

#: Seconds that a run of tasks on the caller's GPU takes beside its kernels, and for which a call of
#: cuSOLVER's routine keeps the calling thread: with what is enqueued after it, if it solves.
_GPU_RUN, _GPU_CALL, _GPU_SOLVE = 7e-4, 1.2e-4, 1e-3
#: What the run takes for each of so many columns at most: the kernels of small matrices end sooner
#: than a slow host enqueues the next ones.
_ENQUEUING, _ENQUEUED_COLUMNS = 1e-6, 1024
_SOLVES = ("solve", "solve_positive", "inverse")
#: Copies between a GPU and pageable memory by several threads, without a profile.
_PAGEABLE = LinkModel(3e-4, 15e9)
#: Those by the driver, up to `DRIVER_BYTES` (measured: 12.5 to 15 GB/s for 2 to 12 MB), and those
#: of arrays for which the host is considered.
_DRIVER, _SMALL = LinkModel(2e-5, 12e9), LinkModel(1.5e-5, 4e9)
#: Of the singular values of a triangle, in double precision, by LAPACK and cuSOLVER: seconds for
#: each column, and for each entry.
_VALUES = {"cpu": (1e-5, 1e-7), "gpu": (2.7e-5, 5.6e-8)}


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
    call = _GPU_SOLVE if problem.routine in _SOLVES else _GPU_CALL
    run = _GPU_RUN + _ENQUEUING * min(problem.m, problem.n, _ENQUEUED_COLUMNS)
    return {
        "one call on the GPU": library_estimate(problem, caller) + call,
        "tasks on the GPU": quick_estimate(problem, options or Options(), caller) + run,
    }


def values_seconds(order: int, dtype: Any, kind: DeviceKind) -> float:
    """Estimate the seconds of the singular values of a triangle, in O(order^3) operations.

    They take more memory traffic than operations, and are far slower than a factorization.
    """
    column, entry = _VALUES[kind]
    return order * (column + entry * order * np.dtype(dtype).itemsize / 8)


def copies_seconds(problem: Problem, results: int) -> float:
    """Estimate the seconds of copies from the host to a GPU, and of `results` elements back."""
    profile = current_profile()
    links: dict[str, Any] = profile.links if profile else {}
    _, m, n, nrhs, dtype = problem

    def seconds(link: str, elements: int) -> float:
        nbytes = elements * dtype.itemsize
        known = _DRIVER if nbytes <= DRIVER_BYTES else links.get(link, _PAGEABLE)
        return float(known.seconds(nbytes))

    return seconds("pageable_to_gpu", m * (n + nrhs)) + seconds("gpu_to_new", results)


def host_call_seconds(problem: Problem, results: int) -> float:
    """Estimate the seconds of one call of LAPACK for small arrays of a GPU, with copies."""
    _, m, n, nrhs, dtype = problem
    sizes = (m * n, m * nrhs, results or m * nrhs, min(m, n))  # the last: interchanges, scalars
    copies = sum(_SMALL.seconds(size * dtype.itemsize) for size in sizes if size)
    return library_estimate(problem, calling_thread()) + copies
