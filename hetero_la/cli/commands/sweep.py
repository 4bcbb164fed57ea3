"""Command ``sweep``: runs all combinations of options, one row each."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from hetero_la.cli.common import rows, runs
from hetero_la.cli.common.command import MatrixProblem
from hetero_la.cli.common.messages import report_written
from hetero_la.cli.common.problems import ProblemGenerator, count_arrays
from hetero_la.io.outputs import require_different_files, require_writable_path
from hetero_la.tiles.arrays.counted import counted


def sweep(args: argparse.Namespace) -> int:
    """Run every combination; return 1 if any of them failed."""
    if args.csv is not None:
        require_writable_path(args.csv)
    require_different_files(args.csv, args.trace)
    done: list[rows.Row] = []
    print(rows.header(), flush=True)
    with runs.run_settings(args) as use:
        for row in _rows(args, use):
            done.append(row)
            print(rows.format_row(row), flush=True)
            if args.csv is not None:  # after each row, so that Ctrl-C loses none
                rows.write_csv(args.csv, done)
    if args.csv is not None and done:
        report_written(args.csv, counted(len(done), "row"))
    return 0 if all(row.passed for row in done) else 1


def _rows(args: argparse.Namespace, use: runs.RunSettings) -> Iterator[rows.Row]:
    """Run all problems, each with all tile sizes and look-ahead depths."""
    # No run overwrites the matrix: the next run and the error ratio need it.
    needed = count_arrays(args, args.routine, args.choices, overwrite=False)
    for dtype, kind, n, m, nrhs in itertools.product(
        args.dtype, args.kind or [None], args.n, args.m or [None], args.nrhs or [1]
    ):
        generator = ProblemGenerator(
            args.routine, args.choices, n if m is None else m, n, nrhs, kind, dtype, args.seed,
            args.cond,
        )  # fmt: skip
        problem = generator.generate(needed)
        ref: float | None = None
        for nb, lookahead, _ in itertools.product(args.nb, args.lookahead, range(args.repeat)):
            options = {**use.options, "nb": nb, "lookahead": lookahead}
            row = _run(problem, dataclasses.replace(use, options=options), ref)
            ref = row.ref_seconds
            yield row


def _run(problem: MatrixProblem, use: runs.RunSettings, ref: float | None) -> rows.Row:
    """Run once; return a row without a result for a matrix that the routine refuses."""
    try:
        return runs.run_measured(problem, use, ref=ref)[0]
    except np.linalg.LinAlgError:
        return runs.row_without_result(problem, use, ref)
