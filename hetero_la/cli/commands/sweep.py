"""``hetero-la sweep``: a tester that prints one row for every combination of options."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from hetero_la.cli.common import rows, runs
from hetero_la.cli.common.command import Problem
from hetero_la.cli.common.messages import say_written
from hetero_la.cli.common.problems import Recipe, copies
from hetero_la.io.files import require_place, require_two_files
from hetero_la.tiles.arrays.counted import counted


def sweep(args: argparse.Namespace) -> int:
    """Run every combination; return 1 if any of them failed."""
    if args.csv is not None:
        require_place(args.csv)
    require_two_files(args.csv, args.trace)
    done: list[rows.Row] = []
    print(rows.header(), flush=True)
    with runs.setting(args) as use:
        for row in _rows(args, use):
            done.append(row)
            print(rows.formatted(row), flush=True)
            if args.csv is not None:  # after each row, so that Ctrl-C loses none
                rows.write_csv(args.csv, done)
    if args.csv is not None and done:
        say_written(args.csv, counted(len(done), "row"))
    return 0 if all(row.passed for row in done) else 1


def _rows(args: argparse.Namespace, use: runs.Setting) -> Iterator[rows.Row]:
    """Run all problems, each of them with all tunings."""
    # Every run leaves its matrix as it is, for the next one and for the error ratio.
    needed = copies(args, args.routine, args.choices, overwrite=False)
    for dtype, kind, n, m, nrhs in itertools.product(
        args.dtype, args.kind or [None], args.n, args.m or [None], args.nrhs or [1]
    ):
        recipe = Recipe(
            args.routine, args.choices, n if m is None else m, n, nrhs, kind, dtype, args.seed,
            args.cond,
        )  # fmt: skip
        problem = recipe.made(needed)
        ref: float | None = None
        for nb, lookahead, _ in itertools.product(args.nb, args.lookahead, range(args.repeat)):
            options = {**use.options, "nb": nb, "lookahead": lookahead}
            row = _run(problem, dataclasses.replace(use, options=options), ref)
            ref = row.ref_seconds
            yield row


def _run(problem: Problem, use: runs.Setting, ref: float | None) -> rows.Row:
    """One run; a matrix with which nothing can be done has a row like any other."""
    try:
        return runs.measured(problem, use, ref=ref)[0]
    except np.linalg.LinAlgError:
        return runs.blank(problem, use, ref)
