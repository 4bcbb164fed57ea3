"""Command ``tune``: finds the best tile sizes and look-ahead by the machine model."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hetero_la
from hetero_la.checks.inputs import DTYPES
from hetero_la.checks.limits import require_few_tasks
from hetero_la.cli.common import values
from hetero_la.cli.common.planned import add_choices, add_sizes, planned_problem
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
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import sizes_text


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "choose tile sizes and look-ahead by prediction, for later runs of that size"
    parser = values.add_command(commands, "tune", tune, summary)
    add_sizes(parser)
    parser.add_argument("--nrhs", type=values.positive, help="right-hand sides (default: 1)")
    parser.add_argument("--dtype", choices=DTYPES, help="element type (default: float64)")
    add_choices(parser)
    parser.add_argument(
        "--nb", type=values.tilings, metavar="LIST", help="tile sizes to simulate, all of them"
    )
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
        print(f"{'look-ahead':>10}{'predicted s':>13}  nb")
        found = search(problem, workers, sizes=args.nb, depths=args.lookahead, report=_show)
        _store_tunings(tunings_of(problem, workers, found), profile)
    best = found[0]
    print(
        f"best: nb = {_blocking(best)}, look-ahead {best.lookahead}, {best.seconds:.4g} s; "
        f"kept in {profile_path()}"
    )
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


def _show(candidate: Candidate) -> None:
    blocking = _blocking(candidate)
    print(f"{candidate.lookahead:>10}{candidate.seconds:>13.5f}  {blocking}", flush=True)


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
