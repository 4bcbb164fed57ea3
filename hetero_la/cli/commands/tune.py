"""Command ``tune``: finds the best tile sizes and look-ahead by the machine model."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hetero_la
from hetero_la.checks.limits import require_few_tasks
from hetero_la.cli.common import values
from hetero_la.cli.common.output import new_table
from hetero_la.cli.common.planned import add_choices, add_sizes, planned_problem
from hetero_la.cli.common.progress import show_steps
from hetero_la.cli.common.workers import asked_for
from hetero_la.execution.executor_choice import INLINE_LIMIT
from hetero_la.planning.decisions import Problem, quick_estimate
from hetero_la.planning.options import Options
from hetero_la.predict.tile_search import (
    Candidate,
    largest_size,
    require_measured,
    search,
    tunings_of,
)
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.machine.profile import Profile, Tuning
from hetero_la.scheduler.machine.profile_file import read_profile, require_regular, write_profile
from hetero_la.scheduler.machine.this_machine import current_profile, profile_path
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import sizes_text

if TYPE_CHECKING:
    from rich.table import Table


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "choose tile sizes and look-ahead by prediction, for later runs of that size"
    parser = values.add_command(
        commands, "tune", tune, summary, usage="[options] ROUTINE --n N",
        examples=("lu --n 4000", "cholesky --n 8000 --dtype float32 --nb 128:512:128"),
        notes="It needs the profile that 'hetero-la probe' makes, and adds to it.",
    )  # fmt: skip
    add_sizes(parser)
    parser.add_argument(
        "--nrhs", type=values.positive, metavar="K", help="right-hand sides (default: 1)"
    )
    values.add_dtype(parser)
    add_choices(parser)
    parser.add_argument(
        "--nb", type=values.tilings, metavar="LIST",
        help="tile sizes to simulate, in place of those that a search finds",
    )  # fmt: skip
    parser.add_argument(
        "--lookahead", type=values.sizes, metavar="LIST", help="look-ahead depths to simulate"
    )
    values.add_workers(parser)
    values.add_scheduler(parser)


def tune(args: argparse.Namespace) -> int:
    """Simulate the candidates, print them, store the best; return the exit status."""
    profile = current_profile()
    if profile is None:
        raise ValueError("there is no profile of this machine: run 'hetero-la probe' first")
    problem = planned_problem(args)
    with _workers(args, problem) as workers:
        require_measured(workers, problem.dtype)
        for nb in args.nb or [largest_size(workers)]:
            layout = TileLayout(problem.m, problem.n, nb, problem.nrhs)
            require_few_tasks(layout, "simulated")
        with show_steps(args.report.quiet) as show:
            found = search(
                problem, workers, sizes=args.nb, depths=args.lookahead,
                report=lambda candidate: show(f"simulated nb = {_blocking(candidate)}"),
            )  # fmt: skip
        _store_tunings(tunings_of(problem, workers, found), profile)
    args.report.explain(_table(found))
    best = found[0]
    args.report.show(
        f"best: nb = {_blocking(best)}, look-ahead {best.lookahead}, {in_seconds(best.seconds)}"
    )
    args.report.wrote(profile_path(), "the profile: plans of this size now use this choice")
    args.report.record(candidates=found, best=best)
    return 0


def _store_tunings(tunings: list[Tuning], initial: Profile) -> None:
    """Add tunings to the profile as it is now: other processes may have added theirs."""
    path = profile_path()
    require_regular(path)
    with _file_lock(path):
        try:
            profile = read_profile(path)
        except (OSError, ValueError):  # removed or damaged meanwhile
            profile = initial
        write_profile(profile.with_tunings(tunings), path)


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Hold a lock beside the file, as far as the file system can lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock file is not removed: a process that waits for it would not notice a new one.
    with open(path.with_name(f".{path.name}.lock"), "a", encoding="utf-8") as lock:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _table(found: Sequence[Candidate]) -> Table:
    """Return a table of all candidates, the best first."""
    cells = [
        [_blocking(one), str(one.lookahead), in_seconds(one.seconds), _beside(one, found[0])]
        for one in found
    ]
    table = new_table(("nb", "look-ahead", "predicted", "beside the best"), cells, left=["nb"])
    table.rows[0].style = "bold green"
    return table


def _beside(candidate: Candidate, best: Candidate) -> str:
    more = 100 * (candidate.seconds / max(best.seconds, 1e-12) - 1)
    return "best" if candidate is best else f"+{more:.1f} %"


def _blocking(candidate: Candidate) -> str:
    coarse = "" if candidate.coarse is None else f", coarse = {candidate.coarse}"
    return f"{sizes_text(candidate.nb)}{coarse}"


@contextlib.contextmanager
def _workers(args: argparse.Namespace, problem: Problem) -> Iterator[list[WorkerInfo]]:
    """Yield the workers that a run of the problem would have; if small, the calling thread."""
    with asked_for(args) as client:
        if client is not None:
            yield worker_infos(client)
            return
    caller = calling_thread()
    if quick_estimate(problem, Options(), caller) < INLINE_LIMIT["cpu"]:
        yield [caller]
        return
    with hetero_la.Cluster() as cluster:
        yield worker_infos(cluster.private_client())
