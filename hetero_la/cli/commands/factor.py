"""``hetero-la lu``, ``solve`` and so on: one problem, from files or made."""

from __future__ import annotations

import argparse

from hetero_la.cli.common import problems, rows, runs
from hetero_la.cli.common.command import key
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.cli.common.messages import arrays_text, say_written
from hetero_la.io import files

#: Exit status of a run whose result nobody has checked.
_UNCHECKED = 3


def run(args: argparse.Namespace) -> int:
    """Do what a command asks for; return the exit status."""
    names = COMMANDS[key(args.command, args.choices)].named(args.choices)
    if args.output is not None:
        files.require_writable(args.output, arrays=len(names))
    problem = problems.given(args)
    with runs.setting(args) as use:
        row, arrays = runs.measured(problem, use, overwrite=True)
    # First the results, then the row: what is printed has happened.
    if args.output is not None:
        named = dict(zip(names, arrays, strict=True))
        files.write_matrix(args.output, named)
        say_written(args.output, arrays_text(named))
    print(rows.header(), rows.formatted(row), sep="\n", flush=True)
    if not row.passed:
        return 1
    return _UNCHECKED if row.ratio is None else 0
