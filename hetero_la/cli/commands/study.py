"""Command ``study``: lists the studies of this machine, and runs them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_la.cli.common import values
from hetero_la.cli.common.output import new_table
from hetero_la.cli.common.progress import show_steps
from hetero_la.io.outputs import require_writable_path
from hetero_la.pictures.suffix import require_chart
from hetero_la.studies.common.results import StudyResult, run_study
from hetero_la.studies.common.study import Study, load_study, study_names

if TYPE_CHECKING:
    from rich.table import Table

#: Stands for all studies.
ALL = "all"
_FOLDER = Path("hetero-la-studies")


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "list the studies of what GPUs and CPUs are good at, or run some"
    parser = values.add_command(
        commands, "study", study, summary, usage="[options] [NAME ...]",
        examples=("", "blas12", "blas12 --quick -o figures", "all --quick --json"),
        notes="Each study prints tables of medians and spread, says what it has left out (most of "
        "it without a GPU), and writes NAME.json and a plot, NAME.svg.  It takes minutes, and with "
        "--quick seconds.",
    )  # fmt: skip
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"studies, or {ALL} (default: list them)"
    )
    parser.add_argument("--quick", action="store_true", help="measure few sizes, in seconds")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", default=_FOLDER,
        help="folder of the files that are written (default: %(default)s)",
    )  # fmt: skip


def study(args: argparse.Namespace) -> int:
    """List the studies, or run those that are named; return the exit status.

    One that fails is reported, and the next one runs.
    """
    known = study_names()
    studies = [load_study(name) for name in (known if ALL in args.names else args.names or known)]
    if not args.names:
        args.report.record(studies=[_described(one) for one in studies])
        args.report.show(_list(studies))
        return 0
    require_writable_path(args.output, folder=True)
    require_chart(args.output / "plot.svg")
    documents, failed = [], False
    for one in studies:
        try:
            result = _run(args, one)
        except Exception as error:
            if len(studies) == 1:
                raise
            args.report.warn(f"{one.name} failed: {type(error).__name__}: {error}")
            failed = True
        else:
            documents.append(result.document())
    args.report.record(studies=documents)
    return int(failed)


def _run(args: argparse.Namespace, one: Study) -> StudyResult:
    """Run a study; show and write what it has found."""
    with show_steps(args.report.quiet) as show:
        result = run_study(
            one, quick=args.quick, report=lambda what: show(f"{one.name}: {what}")
        )  # fmt: skip
    args.report.show(*_shown(result))
    for path, what in result.write(args.output):
        args.report.wrote(path, what)
    return result


def _shown(result: StudyResult) -> Iterator[str | Table]:
    """Yield the lines and tables that show a result."""
    yield f"{result.study.name}: {result.study.question}"
    for title, table in result.tables():
        yield from ("", title, table)
    yield ""
    yield from result.found
    yield from (f"left out: {what}" for what in result.left_out)
    yield ""


def _described(one: Study) -> dict[str, str]:
    return {
        "name": one.name, "question": one.question, "source": one.source, "original": one.original,
    }  # fmt: skip


def _list(studies: list[Study]) -> Table:
    headings = ("study", "question", "after")
    rows = [(one.name, one.question, one.source) for one in studies]
    return new_table(headings, rows, left=headings)
