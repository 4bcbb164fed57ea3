"""Commands ``lu``, ``solve`` and so on: one problem, from files or generated."""

from __future__ import annotations

import argparse

from hetero_la.cli.commands.factor_parts import factor_parts, takes_parts
from hetero_la.cli.common import problems, rows, runs
from hetero_la.cli.common.command import count_results
from hetero_la.cli.common.output import arrays_text
from hetero_la.io import files

#: Exit status of a run whose result was not checked.
_UNCHECKED = 3


def run(args: argparse.Namespace) -> int:
    """Run a command on one problem; return the exit status."""
    table = rows.RowTable(args.report, empty=runs.empty_columns(args))
    if takes_parts(args):
        row = factor_parts(args)
        table.add(row)
        args.report.record(rows=[row])
        return _UNCHECKED if row.passed else 1
    if args.output is not None:
        files.require_writable(args.output, count_results(args.command, args.choices))
    with runs.run_options(args) as options:  # first, as a cluster that is not there ends it
        problem = problems.read_or_generate(args)
        row, result = runs.run_measured(problem, args, options, overwrite=True)
        judged = result.accuracy() if args.choices.report and result.accuracy else None
    # Write the results before the row is printed, so that a printed row means success.
    if args.output is not None:
        files.write_matrix(args.output, result.arrays)
        args.report.wrote(args.output, arrays_text(result.arrays))
    table.add(row)
    args.report.record(rows=[row])
    if judged is not None:
        args.report.show(f"\n{judged}")
        args.report.record(accuracy=judged.as_dict())
    if not row.passed:
        return 1
    return _UNCHECKED if row.ratio is None else 0
