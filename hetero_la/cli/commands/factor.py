"""Commands ``lu``, ``solve`` and so on: one problem, from files or generated."""

from __future__ import annotations

import argparse

from hetero_la.cli.common import problems, rows, runs
from hetero_la.cli.common.command import routine_key
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.cli.common.messages import arrays_text, report_written
from hetero_la.io import files

#: Exit status of a run whose result was not checked.
_UNCHECKED = 3


def run(args: argparse.Namespace) -> int:
    """Run a command on one problem; return the exit status."""
    names = COMMANDS[routine_key(args.command, args.choices)].named(args.choices)
    if args.output is not None:
        files.require_writable(args.output, arrays=len(names))
    problem = problems.read_or_generate(args)
    with runs.run_settings(args) as use:
        row, arrays = runs.run_measured(problem, use, overwrite=True)
    # Write the results before the row is printed, so that a printed row means success.
    if args.output is not None:
        named = dict(zip(names, arrays, strict=True))
        files.write_matrix(args.output, named)
        report_written(args.output, arrays_text(named))
    print(rows.header(), rows.format_row(row), sep="\n", flush=True)
    if not row.passed:
        return 1
    return _UNCHECKED if row.ratio is None else 0
