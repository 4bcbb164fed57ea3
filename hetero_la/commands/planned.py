"""Which plan a routine stands for, in the commands that run nothing."""

from __future__ import annotations

import argparse

import numpy as np

from hetero_la.commands.routine import RightHandSides
from hetero_la.commands.routines import ROUTINES
from hetero_la.tuning import Problem


def planned_problem(args: argparse.Namespace) -> Problem:
    """What a run of the routine would plan for, by its ``--n``, ``--m``, ``--nrhs``, ``--dtype``.

    Examples
    --------
    >>> args = argparse.Namespace(routine="lstsq", n=50, m=20, nrhs=None, dtype=None)
    >>> planned_problem(args)[:4]
    ('minimum_norm', 50, 20, 1)
    """
    routine, n = args.routine, args.n
    m = n if args.m is None else args.m
    nrhs = 0 if ROUTINES[routine].rhs is RightHandSides.NONE else args.nrhs or 1
    if routine == "lstsq" and m < n:  # the shortest solution, from the QR of the transpose
        routine, m, n = "minimum_norm", n, m
    return Problem(routine, m, n, nrhs, np.dtype(args.dtype or "float64"))
