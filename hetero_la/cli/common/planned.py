"""The problem that a plan is made for, in commands that run nothing."""

from __future__ import annotations

import argparse

import numpy as np

from hetero_la.cli.common.command import ASSUMPTIONS, MODES, PIVOTING, RightHandSides
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.planning.decisions import Problem


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options on which the planned routine depends."""
    parser.add_argument(
        "--assume-a", choices=ASSUMPTIONS,
        help="for solve: structure of the matrix (default: gen); pos is solved by Cholesky",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=MODES,
        help="for qr: part of Q to compute (default: raw, as in a sweep)",
    )  # fmt: skip
    parser.add_argument(
        "--pivot", choices=PIVOTING,
        help="for lu and solve: row interchanges (default: partial)",
    )  # fmt: skip


def planned_problem(args: argparse.Namespace) -> Problem:
    """Return the problem that a run of the routine with these options would plan for.

    Examples
    --------
    >>> args = argparse.Namespace(routine="lstsq", n=50, m=20, nrhs=None, dtype=None)
    >>> planned_problem(args)[:4]
    ('minimum_norm', 50, 20, 1)
    >>> args = argparse.Namespace(routine="qr", n=50, m=90, dtype=None, mode="economic")
    >>> planned_problem(args)[:4]
    ('explicit_q', 90, 50, 50)
    """
    routine, n = args.routine, args.n
    m = n if args.m is None else args.m
    nrhs = 0 if COMMANDS[routine].rhs is RightHandSides.NONE else args.nrhs or 1
    if routine == "lstsq" and m < n:  # the minimum-norm solution, from QR of the transpose
        routine, m, n = "minimum_norm", n, m
    elif routine == "solve" and args.assume_a == "pos":
        routine = "solve_positive"
    elif routine in ("lu", "solve") and args.pivot == "none":
        routine = f"{routine}_nopivot"
    elif routine == "qr" and args.mode in ("economic", "full"):
        columns = m if args.mode == "full" else min(m, n)
        routine, nrhs = ("explicit_q", columns) if columns else ("qr", 0)
    return Problem(routine, m, n, nrhs, np.dtype(args.dtype or "float64"))
