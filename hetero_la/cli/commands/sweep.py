"""Command ``sweep``: runs all combinations of options, one row each."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero_la.cli.common import rows, runs
from hetero_la.cli.common.problems import generate
from hetero_la.io.outputs import require_different_files, require_writable_path
from hetero_la.tiles.arrays.counted import counted

#: Options of which there may be several values, by the columns that show them.
_VARIED = ("dtype", "kind", "n", "m", "nrhs", "nb", "lookahead")


def sweep(args: argparse.Namespace) -> int:
    """Run every combination; return 1 if any of them failed."""
    if args.csv is not None:
        require_writable_path(args.csv)
    require_different_files(args.csv, args.trace)
    done: list[rows.Row] = []
    with runs.run_options(args) as options:
        varied = [name for name in _VARIED if len(getattr(args, name) or ()) > 1]
        table = rows.RowTable(args.report, varied, runs.empty_columns(args))
        table.begin()
        for row in _rows(args, options):
            done.append(row)
            table.add(row)
            if args.csv is not None:  # after each row, so that Ctrl-C loses none
                rows.write_csv(args.csv, done)
    if args.csv is not None and done:
        args.report.wrote(args.csv, counted(len(done), "row"))
    args.report.record(rows=done)
    return 0 if all(row.passed for row in done) else 1


def _rows(args: argparse.Namespace, options: dict[str, Any]) -> Iterator[rows.Row]:
    """Run all problems, each with all tile sizes and look-ahead depths."""
    for dtype, kind, n, m, nrhs in itertools.product(
        args.dtype, args.kind or [None], args.n, args.m or [None], args.nrhs or [1]
    ):
        shape = n if m is None else m, n
        one = {"command": args.routine, "random": shape, "nrhs": nrhs, "kind": kind, "dtype": dtype}
        # No run overwrites the matrix: the next run and the error ratio need it.
        problem = generate(argparse.Namespace(**{**vars(args), **one}))
        ref: float | None = None
        for nb, lookahead, _ in itertools.product(args.nb, args.lookahead, range(args.repeat)):
            how = {**options, "nb": nb, "lookahead": lookahead}
            try:
                row, _ = runs.run_measured(problem, args, how, ref=ref)
            except np.linalg.LinAlgError:
                row = runs.row_without_result(problem, how, ref)
            ref = row.ref_seconds
            yield row
