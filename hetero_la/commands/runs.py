"""One measured run: the result, and the row that describes it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import hetero_la
from hetero_la import residuals
from hetero_la.commands import rows
from hetero_la.commands.progress import shown

_FACTOR_OPTIONS = ("nb", "ib", "lookahead", "panel", "inverse_bound")
_CLUSTER_OPTIONS = ("cpus", "gpus", "virtual_gpus", "blas_threads", "preset")


@dataclass(frozen=True, slots=True)
class Setting:
    """What the runs of one command share.

    Parameters
    ----------
    options : dict
        Keyword arguments of the factorization.
    client : distributed.Client or None
        Who runs it; None leaves that to the library.
    check, ref, verbose : bool
        Whether to compute the error ratio, to time the reference, and to show
        the plan and who did what.
    """

    options: dict[str, Any]
    client: Any
    check: bool
    ref: bool
    verbose: bool


@contextlib.contextmanager
def setting(args: argparse.Namespace) -> Iterator[Setting]:
    """The setting that `args` ask for, with their workers running."""
    options = {key: getattr(args, key) for key in _FACTOR_OPTIONS}
    cluster = {key: getattr(args, key) for key in _CLUSTER_OPTIONS}
    cluster = {key: value for key, value in cluster.items() if value is not None}
    with contextlib.ExitStack() as stack:
        client = None
        if cluster:
            _require_preset(args.preset)
            running = stack.enter_context(hetero_la.Cluster(**cluster))
            client = stack.enter_context(running.get_client())
        yield Setting(options, client, args.check, args.ref, args.verbose)


def _require_preset(name: str | None) -> None:
    if name is not None and name not in (known := hetero_la.available_presets()):
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(known)}")


def lu(
    a: NDArray, kind: str, use: Setting, *, ref: float | None = None, overwrite: bool = False
) -> tuple[rows.Row, Any]:
    """Factor `a`, in its own place if it may be and nothing needs it later.

    `ref` is the reference's time where it is known already.
    """
    overwrite = overwrite and not (use.check or use.ref)
    with shown("lu"):
        factors = hetero_la.lu_factor(a, overwrite_a=overwrite, client=use.client, **use.options)
    ratio = residuals.lu_ratio(a, *factors) if use.check else None
    if use.ref and ref is None:
        ref = _reference(a, None, factors.plan)
    state = rows.status(singular=factors.info > 0, ratio=ratio)
    return _row("lu", a, 0, kind, factors.plan, factors.timing, ref, ratio, state, use), factors


def solve(
    a: NDArray, b: NDArray, kind: str, use: Setting, *, ref: float | None = None
) -> tuple[rows.Row, NDArray]:
    """Solve with `a` for `b`; `ref` is the reference's time where it is known already."""
    with shown("solve"):
        x, report = hetero_la.solve_with_report(a, b, client=use.client, **use.options)
    ratio = residuals.solve_ratio(a, x, b) if use.check else None
    if use.ref and ref is None:
        ref = _reference(a, b, report.plan)
    nrhs = 1 if b.ndim == 1 else b.shape[1]
    state = rows.status(singular=False, ratio=ratio)
    return _row("solve", a, nrhs, kind, report.plan, report.timing, ref, ratio, state, use), x


def _row(
    routine: str,
    a: NDArray,
    nrhs: int,
    kind: str,
    plan: Any,
    timing: Any,
    ref: float | None,
    ratio: float | None,
    state: str,
    use: Setting,
) -> rows.Row:
    if use.verbose:
        print(plan.explain(), str(timing), sep="\n", file=sys.stderr)
    gflops = plan.flops / timing.seconds / 1e9 if timing.seconds > 0 else 0.0
    workers = rows.workers_text(plan.workers)
    m, n = a.shape
    return rows.Row(
        routine, a.dtype.name, kind, m, n, nrhs, plan.nb, plan.lookahead, workers,
        timing.seconds, gflops, ref, ratio, state,
    )  # fmt: skip


def _reference(a: NDArray, b: NDArray | None, plan: Any) -> float:
    """Seconds that cuSOLVER takes where GPUs ran, and SciPy on all cores elsewhere."""
    if any(worker.kind == "gpu" for worker in plan.workers):
        from hetero_la.tiles.kernels.gpu import cusolver_seconds

        return float(cusolver_seconds(a, b))
    cores = len(os.sched_getaffinity(0))
    with warnings.catch_warnings(), threadpool_limits(cores, user_api="blas"):
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        start = time.perf_counter()
        factors = scipy.linalg.lu_factor(a, check_finite=False)
        if b is not None:
            scipy.linalg.lu_solve(factors, b, check_finite=False)
        return time.perf_counter() - start


def supported(a: NDArray, dtype: str | None, what: str) -> NDArray:
    """`a` in the dtype asked for, or in its own where that is supported."""
    if dtype is not None:
        if a.dtype.kind == "c" and np.dtype(dtype).kind != "c":
            raise ValueError(f"{what} is complex, and --dtype {dtype} would drop imaginary parts")
        return a.astype(dtype, copy=False)
    if a.dtype.kind in "biu":
        return a.astype(np.float64)
    if a.dtype.name not in ("float32", "float64", "complex64", "complex128"):
        raise ValueError(f"{what} has dtype {a.dtype}, which is not supported: choose a --dtype")
    return a
