"""One measured run: the result, and the row that describes it."""

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
from hetero_la.cli.common.command import Problem
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.cli.common.messages import say_written
from hetero_la.cli.common.progress import shown
from hetero_la.cli.common.values import WORKERS
from hetero_la.io.files import require_place
from hetero_la.pictures.charts.files import require_suffix
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.storage.tile_sizes import sizes_text

_FACTOR_OPTIONS = ("nb", "ib", "lookahead", "panel", "inverse_bound", "qr_panel")
_CLUSTER_OPTIONS = (*WORKERS, "preset")


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
        if args.trace is not None:
            stack.enter_context(_written(args.trace))
        client = None
        if cluster:
            _require_preset(args.preset)
            running = stack.enter_context(hetero_la.Cluster(**cluster))
            client = stack.enter_context(running.get_client())
        yield Setting(options, client, args.check, args.ref, args.verbose)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    """Write the timeline of the block's runs, if it can be written at all."""
    require_suffix(path)
    require_place(path)
    with hetero_la.trace() as trace:
        yield
    trace.write(path)
    say_written(path, f"the timeline of {counted(len(trace.runs), 'run')}")


def _require_preset(name: str | None) -> None:
    if name is not None and name not in (known := hetero_la.available_presets()):
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(known)}")


def measured(
    problem: Problem, use: Setting, *, ref: float | None = None, overwrite: bool = False
) -> tuple[rows.Row, tuple[NDArray, ...]]:
    """Run once, in the place of the matrix if that may be and nothing needs it later.

    `ref` is the reference's time where it is known already.
    """
    command = COMMANDS[problem.key]
    overwrite = overwrite and not (use.check or use.ref)
    with shown(problem.command):
        outcome = command.run(problem, overwrite, {"client": use.client, **use.options})
    ratio = outcome.ratio() if use.check else None
    if use.ref and ref is None:
        ref = reference(problem, outcome.report.plan)
    plan, timing = outcome.report
    if use.verbose:
        print(plan.explain(), str(timing), sep="\n", file=sys.stderr)
    row = dataclasses.replace(
        blank(problem, use, ref),
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


def blank(problem: Problem, use: Setting, ref: float | None) -> rows.Row:
    """The row of a matrix with which the routine can do nothing."""
    (m, n), b, nb = problem.a.shape, problem.b, use.options["nb"]
    nrhs = 0 if b is None else 1 if b.ndim == 1 else b.shape[1]
    return rows.Row(
        problem.command, problem.a.dtype.name, problem.kind, m, n, nrhs,
        None if nb is None else sizes_text(nb), use.options["lookahead"], None, None, None, ref,
        None, COMMANDS[problem.key].routine.trouble,
    )  # fmt: skip


def reference(problem: Problem, plan: Any) -> float:
    """Seconds that cuSOLVER takes where GPUs ran, and SciPy on all cores elsewhere."""
    if any(worker.kind == "gpu" and not worker.virtual for worker in plan.workers):
        from hetero_la.tiles.kernels.gpu.libraries import cusolver_seconds

        return cusolver_seconds(problem.key, problem.a, problem.b)
    with warnings.catch_warnings(), threadpool_limits(usable_cores(), user_api="blas"):
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        start = time.perf_counter()
        COMMANDS[problem.key].refer(problem)
        return time.perf_counter() - start
