"""The problem that a plan is made for, in commands that run nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hetero_la.cli.common import values
from hetero_la.cli.common.command import CHOICES, NAMES, takes_rhs
from hetero_la.planning.decisions import Problem
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import WorkerInfo

#: Help of the options on which the planned routine depends.
_HELP = {
    "assume_a": "for solve: structure of the matrix (default: gen); pos is solved by Cholesky",
    "mode": "for qr: part of Q to compute (default: raw, as in a sweep)",
    "pivot": "for lu and solve: row interchanges (default: partial)",
}


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options on which the planned routine depends."""
    for name, text in _HELP.items():
        parser.add_argument(values.flag(name), choices=CHOICES[name]["choices"], help=text)


def add_sizes(
    parser: argparse.ArgumentParser, routines: Sequence[str] = NAMES, number: Any = values.positive
) -> None:
    """Add the routine, and the sizes of its matrix."""
    values.add_routine(parser, routines)
    parser.add_argument(
        "--n", type=number, metavar="N", required=True, help="columns of the matrix"
    )
    parser.add_argument("--m", type=number, metavar="M", help="rows (default: as many as columns)")


def plan_entries(planned: Plan) -> dict[str, Any]:
    """Return what a plan decided and predicts, for a JSON document."""
    layout = planned.layout
    return {
        "routine": planned.routine, "m": layout.m, "n": layout.n, "nrhs": layout.nrhs,
        "dtype": planned.dtype.name, "nb": layout.nb_text, "lookahead": planned.lookahead,
        "panel": planned.panel, "tasks": len(planned.graph), "flops": planned.flops,
        "measured": planned.model.measured, "predicted_seconds": planned.predicted_seconds,
        "workers": worker_entries(planned.workers),
    }  # fmt: skip


def worker_entries(workers: Iterable[WorkerInfo]) -> list[dict[str, str]]:
    """Return names and kinds of workers, for a JSON document."""
    return [{"name": one.name, "kind": one.kind_text} for one in workers]


def planned_problem(args: argparse.Namespace) -> Problem:
    """Return the problem that a run of the routine with these options would plan for.

    Examples
    --------
    >>> from hetero_la.cli.common.command import Choices
    >>> args = argparse.Namespace(n=50, m=20, nrhs=None, dtype=None, choices=Choices())
    >>> args.routine = "lstsq"
    >>> planned_problem(args)[:4]
    ('minimum_norm', 50, 20, 1)
    >>> args.routine = "qr"
    >>> planned_problem(args)[:4]
    ('explicit_q', 20, 50, 20)
    """
    n, m = args.n, args.n if args.m is None else args.m
    routine = args.choices.routine(args.routine)
    nrhs = args.nrhs or 1 if takes_rhs(args.routine) else 0
    if routine == "lstsq" and m < n:  # the minimum-norm solution, from QR of the transpose
        routine, m, n = "minimum_norm", n, m
    elif routine == "explicit_q":
        columns = m if args.choices.mode == "full" else min(m, n)
        routine, nrhs = ("explicit_q", columns) if columns else ("qr", 0)
    return Problem(routine, m, n, nrhs, np.dtype(args.dtype or "float64"))
