"""Measured runs, and the rows that describe them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.linalg
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import hetero_la
from hetero_la.cli.common import rows
from hetero_la.cli.common.command import MatrixProblem
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.cli.common.messages import report_written
from hetero_la.cli.common.progress import show_progress
from hetero_la.cli.common.values import WORKERS
from hetero_la.io.outputs import require_writable_path
from hetero_la.pictures.charts.files import require_suffix
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.storage.tile_sizes import sizes_text

_FACTOR_OPTIONS = ("nb", "ib", "lookahead", "panel", "inverse_bound", "qr_panel")
_CLUSTER_OPTIONS = (*WORKERS, "preset")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings that all runs of a command share.

    Parameters
    ----------
    options : dict
        Keyword arguments of the factorization.
    client : distributed.Client or None
        Client of the cluster to use; None leaves the choice to the library.
    check, ref, verbose : bool
        Whether to compute the error ratio, to time the reference, and to print the plan and
        the timing of each worker.
    """

    options: dict[str, Any]
    client: Any
    check: bool
    ref: bool
    verbose: bool


@contextlib.contextmanager
def run_settings(args: argparse.Namespace) -> Iterator[RunSettings]:
    """Start the workers that `args` ask for, and yield the settings of the runs."""
    options = {key: getattr(args, key) for key in _FACTOR_OPTIONS}
    cluster = {key: getattr(args, key) for key in _CLUSTER_OPTIONS}
    cluster = {key: value for key, value in cluster.items() if value is not None}
    with contextlib.ExitStack() as stack:
        if args.trace is not None:
            stack.enter_context(_write_timeline(args.trace))
        client = None
        if cluster:
            _require_preset(args.preset)
            running = stack.enter_context(hetero_la.Cluster(**cluster))
            client = stack.enter_context(running.get_client())
        yield RunSettings(options, client, args.check, args.ref, args.verbose)


@contextlib.contextmanager
def _write_timeline(path: Path) -> Iterator[None]:
    """Check that the timeline can be written, record the runs of the block, and write it."""
    require_suffix(path)
    require_writable_path(path)
    with hetero_la.trace() as trace:
        yield
    trace.write(path)
    report_written(path, f"the timeline of {counted(len(trace.runs), 'run')}")


def _require_preset(name: str | None) -> None:
    if name is not None and name not in (known := hetero_la.available_presets()):
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(known)}")


def run_measured(
    problem: MatrixProblem, use: RunSettings, *, ref: float | None = None, overwrite: bool = False
) -> tuple[rows.Row, tuple[NDArray, ...]]:
    """Run once, in the memory of the matrix if that may be overwritten and is not needed later.

    `ref` is the reference's time, if it is known already.
    """
    command = COMMANDS[problem.key]
    overwrite = overwrite and not (use.check or use.ref)
    with show_progress(problem.command):
        outcome = command.run(problem, overwrite, {"client": use.client, **use.options})
    ratio = outcome.ratio() if use.check else None
    if use.ref and ref is None:
        ref = reference_seconds(problem, outcome.report.plan)
    plan, timing = outcome.report
    if use.verbose:
        print(plan.explain(), str(timing), sep="\n", file=sys.stderr)
    row = dataclasses.replace(
        row_without_result(problem, use, ref),
        nb=plan.layout.nb_text,
        lookahead=plan.lookahead,
        workers=rows.workers_text(plan.workers),
        seconds=timing.seconds,
        gflops=plan.flops / timing.seconds / 1e9 if timing.seconds > 0 else 0.0,
        ratio=ratio,
        status=rows.status(
            trouble=command.routine.trouble if outcome.deficient else "", ratio=ratio
        ),
    )
    return row, outcome.arrays


def row_without_result(problem: MatrixProblem, use: RunSettings, ref: float | None) -> rows.Row:
    """Return the row of a matrix for which the routine has no result."""
    (m, n), b, nb = problem.a.shape, problem.b, use.options["nb"]
    nrhs = 0 if b is None else 1 if b.ndim == 1 else b.shape[1]
    return rows.Row(
        problem.command, problem.a.dtype.name, problem.kind, m, n, nrhs,
        None if nb is None else sizes_text(nb), use.options["lookahead"], None, None, None, ref,
        None, COMMANDS[problem.key].routine.trouble,
    )  # fmt: skip


def reference_seconds(problem: MatrixProblem, plan: Any) -> float:
    """Return the seconds that cuSOLVER takes if GPUs were used, otherwise SciPy on all cores."""
    if any(worker.kind == "gpu" and not worker.virtual for worker in plan.workers):
        from hetero_la.tiles.kernels.gpu.libraries import cusolver_seconds

        return cusolver_seconds(problem.key, problem.a, problem.b)
    with warnings.catch_warnings(), threadpool_limits(usable_cores(), user_api="blas"):
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        start = time.perf_counter()
        COMMANDS[problem.key].refer(problem)
        return time.perf_counter() - start
