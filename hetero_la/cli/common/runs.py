"""Measured runs, and the rows that describe them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scipy.linalg
from threadpoolctl import threadpool_limits

import hetero_la
from hetero_la.cli.common import rows
from hetero_la.cli.common.command import CommandResult, MatrixProblem
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.cli.common.output import print_message
from hetero_la.cli.common.values import flag
from hetero_la.cli.common.workers import asked_for
from hetero_la.io.outputs import require_writable_path
from hetero_la.pictures.charts.files import require_suffix
from hetero_la.scheduler.cluster.clients import runs_link
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.storage.tile_sizes import sizes_text

_FACTOR_OPTIONS = (
    "nb",
    "coarse",
    "ib",
    "lookahead",
    "panel",
    "inverse_bound",
    "qr_panel",
    "products",
    "memory",
    "order",
)


def in_parts_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a run in the calling process; raise ValueError for those of workers."""
    for name in "cpus", "gpus", "virtual_gpus", "scheduler", "preset":
        if getattr(args, name, None) is not None:
            raise ValueError(f"{flag(name)} is for matrices in memory: a file is one worker's")
    return {key: getattr(args, key, None) for key in _FACTOR_OPTIONS}


@contextlib.contextmanager
def run_options(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Find or start the workers that `args` ask for; yield the keyword arguments of the runs.

    Without such workers, the client is None, which leaves the choice to the library.
    """
    options = {key: getattr(args, key, None) for key in _FACTOR_OPTIONS}
    traced = contextlib.nullcontext() if args.trace is None else _write_timeline(args)
    with traced, asked_for(args) as client:
        if args.verbose and client is not None and (link := runs_link(client)):
            print_message(f"watch the runs: {link}")
        yield {"client": client, **options}


@contextlib.contextmanager
def _write_timeline(args: argparse.Namespace) -> Iterator[None]:
    """Check that the timeline can be written, record the runs of the block, and write it."""
    path: Path = args.trace
    require_suffix(path)
    require_writable_path(path)
    with hetero_la.trace() as trace:
        yield
    trace.write(path)
    args.report.wrote(path, f"the timeline of {counted(len(trace.runs), 'run')}")


def _without_effect(plan: hetero_la.Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield options that change nothing in a run of a plan, after the reason."""
    if not any(worker.has_gpu for worker in plan.workers):
        yield "it is for GPUs, of which none took part", ("qr_panel", "products", "ib")
    if plan.layout.kt <= 1:
        yield "there is one step only", ("lookahead",)
    if plan.groups is not None:
        yield "only some columns were in memory at a time", ("coarse",)


def empty_columns(args: argparse.Namespace) -> list[str]:
    """Return the names of the columns that have no figures without an option."""
    return ["ref_seconds"] * (not args.ref) + ["ratio"] * (not args.check)


def run_measured(
    problem: MatrixProblem, args: argparse.Namespace, options: dict[str, Any], *,
    ref: float | None = None, overwrite: bool = False,
) -> tuple[rows.Row, CommandResult]:  # fmt: skip
    """Run once, in the memory of the matrix if that may be overwritten and is not needed later.

    `ref` is the reference's time, if it is known already.
    """
    overwrite = overwrite and not (args.check or args.ref or problem.choices.report)
    quiet = args.report.quiet
    with contextlib.nullcontext() if quiet else hetero_la.progress(options["client"]):
        result = COMMANDS[problem.command].run(problem, overwrite, options)
    ratio = result.ratio() if args.check else None
    plan, timing = result.report.plan, result.report.timing
    if args.ref and ref is None:
        ref = reference_seconds(problem, plan)
    if args.verbose:
        print_message(f"{plan.explain()}\n{timing}")
    for why, names in _without_effect(plan):
        for name in names:
            if options[name] is not None:
                args.report.note_once(f"{flag(name)} did nothing: {why}")
    if (mixed := result.report.mixed) is not None and mixed.fallback:
        args.report.note(f"--precision mixed: {mixed}")
    row = row_without_result(problem, options, ref)
    row = dataclasses.replace(
        row,
        nb=plan.layout.nb_text,
        lookahead=plan.lookahead,
        workers=rows.workers_text(plan.workers),
        seconds=timing.seconds,
        gflops=plan.flops / timing.seconds / 1e9 if timing.seconds > 0 else 0.0,
        ratio=ratio,
        status=rows.status(trouble=row.status if result.deficient else "", ratio=ratio),
    )
    return row, result


def row_without_result(
    problem: MatrixProblem, options: dict[str, Any], ref: float | None
) -> rows.Row:
    """Return the row of a matrix for which the routine has no result."""
    (m, n), b, nb = problem.a.shape, problem.b, options["nb"]
    nrhs = 0 if b is None else 1 if b.ndim == 1 else b.shape[1]
    return rows.Row(
        problem.command, problem.a.dtype.name, problem.kind, m, n, nrhs,
        None if nb is None else sizes_text(nb), options["lookahead"], ref_seconds=ref,
        status=problem.routine.trouble,
    )  # fmt: skip


def reference_seconds(problem: MatrixProblem, plan: Any) -> float:
    """Return the seconds that cuSOLVER takes if GPUs were used, otherwise SciPy on all cores.

    It runs here: SciPy also if only other hosts of a cluster have GPUs.
    """
    if gpu_count() and any(one.has_gpu for one in plan.workers):
        from hetero_la.tiles.kernels.gpu_libraries.cusolver import cusolver_seconds

        return cusolver_seconds(problem.routine.panel_kernel, problem.a, problem.b)
    with warnings.catch_warnings(), threadpool_limits(usable_cores(), user_api="blas"):
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        start = time.perf_counter()
        COMMANDS[problem.command].reference(problem)
        return time.perf_counter() - start
