"""Whether mixed precision is predicted to pay, and the options of its runs in both precisions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution.resident_factors import Residency
from hetero_la.mixed.precision import lower_dtype
from hetero_la.mixed.trend import sample_of
from hetero_la.planning.decisions import Problem, nearby_problem, quick_estimate
from hetero_la.planning.options import Options
from hetero_la.planning.routes import gpu_routes, host_routes
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.tiles.arrays.transfer import current_gpu, device_index, gpu_count

#: Mixed precision has to be predicted to take at most this share of the time of full precision.
_SHARE = 0.9
#: Order below which nothing is predicted, which would take a tenth of the time of full precision.
_LEAST = 512
#: Steps of refinement that are expected, beyond those that full precision takes as well.
_STEPS = 3
#: Passes over the matrix, in its own precision: a step's, and those of its range and its copy.
_STEP_PASSES, _COPY_PASSES = 1.5, 3.0
#: Seconds for each row of two triangles that a GPU solves with for few columns, row after row.
_CHAIN = 6e-7
#: Steps that GMRES takes, for each tiny singular value and besides them; what they read of the
#: matrix and its factors; and the share of full precision's time that all of them may take.
_TINY_STEPS, _OTHER_STEPS, _GMRES_PASSES, _WORTH = 3, 5, 2.0, 0.75

#: How a copy is factored that nobody else has: factors that GPUs of this process have computed stay
#: with them, where they solve.
LOWER_RUN: dict[str, Any] = {"overwrite_a": True, "residency": Residency.WORKERS}
#: And how it is where the caller gets the factors.
LOWER_FACTORS: dict[str, Any] = {**LOWER_RUN, "residency": Residency.BOTH}


def pays(problem: Problem, gpu: int | None) -> bool:
    """Return whether mixed precision is predicted to be faster than full precision.

    Parameters
    ----------
    problem : Problem
        The factorization in full precision, with the right-hand sides that are solved for.
    gpu : int or None
        The GPU that holds the matrix; None for the host.
    """
    if min(problem.m, problem.n) < _LEAST:
        return False
    return _pays(nearby_problem(problem), gpu, gpu_count() > 0)


@functools.lru_cache(maxsize=256)
def _pays(problem: Problem, gpu: int | None, with_gpus: bool) -> bool:
    lower = problem._replace(dtype=lower_dtype(problem.dtype))
    full, low, some = (
        _factor_seconds(each, gpu, with_gpus) for each in (problem, lower, sample_of(lower))
    )
    chains = _STEPS * _CHAIN * problem.n if with_gpus else 0.0
    return gains(problem, gpu, full, low + some + chains)


def tiny_values(n: int, nrhs: int, dtype: Any, gpu: int | None) -> int:
    """Return with how many tiny singular values GMRES is faster than full precision.

    Parameters
    ----------
    n, nrhs : int
        Order of the matrix, and number of right-hand sides.
    dtype : dtype
        Its dtype.
    gpu : int or None
        The GPU that holds it; None for the host.

    Examples
    --------
    >>> few, many = (tiny_values(10000, nrhs, np.dtype(float), None) for nrhs in (2, 1000))
    >>> many < few
    True
    """
    with_gpus = gpu_count() > 0
    full = _factor_seconds(Problem("lu", n, n, 0, np.dtype(dtype)), gpu, with_gpus)
    products = 6 * nrhs / max(n, 1) * full  # with A and the factors, at the rate of LU
    step = max(_GMRES_PASSES * _pass_seconds(n * n, dtype, gpu), products)
    step += _CHAIN * n if with_gpus else 0.0
    return max(int((_WORTH * full / step - _OTHER_STEPS) / _TINY_STEPS), 0) if step else 0


def gains(problem: Problem, gpu: int | None, full: float, low: float) -> bool:
    """Return whether mixed precision is faster, for seconds in each precision.

    Parameters
    ----------
    problem, gpu
        As for `pays`.
    full, low : float
        Seconds of a factorization in full precision, and of all in the lower one but the copy and
        the refinement, which are estimated here.
    """
    return low + _refinement_seconds(problem, gpu, full) < _SHARE * full


def _factor_seconds(problem: Problem, gpu: int | None, with_gpus: bool) -> float:
    """Estimate the factorization alone; of a matrix on the host by its GPUs, if there are any."""
    problem = problem._replace(nrhs=0)
    if gpu is None and not with_gpus:
        return min(host_routes(problem).values())
    gpu = current_gpu() if gpu is None else gpu
    seconds = min(gpu_routes(problem, gpu).values())
    products = split_products(problem.routine, (problem.m, problem.n), problem.dtype, gpu)
    if products is None:
        return seconds
    return min(seconds, _task_seconds(problem, gpu, products))


def _refinement_seconds(problem: Problem, gpu: int | None, full: float) -> float:
    """Estimate what mixed precision takes beside the factorization, and full precision does not."""
    routine, m, n, nrhs, dtype = problem
    twice = 2 if routine == "qr" else 1  # least squares take a product with A, and one with A^H
    passes = _COPY_PASSES + _STEPS * _STEP_PASSES * twice
    moving = passes * _pass_seconds(m * n, dtype, gpu)
    # A residual, and a solve at twice the rate, at the rate of the factorization.
    products = twice * _STEPS * 3 * m * n * nrhs / ROUTINES[routine].flops(m, n, 0) * full
    return moving + (products if nrhs > 1 else 0.0)


def _pass_seconds(entries: int, dtype: Any, gpu: int | None) -> float:
    """Estimate the time in which so many entries are read once."""
    model = machine_model((calling_thread(gpu=gpu),), dtype, measure=False)
    return float(entries * np.dtype(dtype).itemsize / model.devices[0].bandwidth)


def split_products(
    routine: str, shape: tuple[int, int], dtype: Any, gpu: int | None
) -> dict[str, Any] | None:
    """Return the option of a GPU's products of a lower precision, or None for native ones.

    Parameters
    ----------
    routine : str
        A key of `ROUTINES`.
    shape : tuple of int
        Shape of the matrix.
    dtype : dtype
        The lower precision.
    gpu : int or None
        The GPU that holds the matrix; None for the host, which computes natively.
    """
    if gpu is None or np.dtype(dtype).name not in ("float32", "complex64"):
        return None
    problem = nearby_problem(Problem(routine, *shape, 0, np.dtype(dtype)))
    split = {"products": "split"}
    native = min(gpu_routes(problem, gpu).values())
    return split if _task_seconds(problem, gpu, split) < native else None


def _task_seconds(problem: Problem, gpu: int, options: dict[str, Any]) -> float:
    return quick_estimate(problem, Options(**options), calling_thread(gpu=gpu))


def with_lower_products(routine: str, a: Any, how: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run on the lower copy of A: with products from parts, if faster.

    Examples
    --------
    >>> with_lower_products("lu", np.eye(3), {"nb": 2})
    {'nb': 2}
    """
    if how.get("products") is not None or how.get("client") is not None:
        return how
    chosen = split_products(routine, a.shape, lower_dtype(a.dtype), device_index(a))
    return how if chosen is None else {**how, **chosen}


def full_products(how: dict[str, Any]) -> dict[str, Any]:
    """Return what takes the place of products from parts in a run in full precision.

    Examples
    --------
    >>> full_products({"products": "split"}), full_products({"nb": 2})
    ({'products': None}, {})
    """
    return {"products": None} if how.get("products") == "split" else {}
