"""Command ``bench``: measures this machine's functions beside those of SciPy, CuPy and torch."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hetero_la.bench.chart import draw
from hetero_la.bench.contenders import FUNCTIONS, installed_versions
from hetero_la.bench.measuring import Measured, measure_for, speed_up
from hetero_la.cli.common import values
from hetero_la.cli.common.output import new_table
from hetero_la.cli.common.planned import worker_entries
from hetero_la.cli.common.progress import show_steps
from hetero_la.io.outputs import require_writable_path, write_text
from hetero_la.pictures.suffix import require_chart
from hetero_la.scheduler.cluster.clients import client_at, worker_infos
from hetero_la.scheduler.machine.identity import HARDWARE, machine_identity
from hetero_la.scheduler.placement.workers import WorkerInfo, workers_text
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.arrays.transfer import gpu_count

_PICTURE = Path("hetero-la-bench.png")
_FIRST = 256  #: the first order
_LEFT = ("function", "arrays")  #: columns of text


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "measure this machine beside SciPy, and CuPy and torch on a GPU"
    parser = values.add_command(
        commands, "bench", bench, summary, usage="[options]",
        examples=(
            "", "--seconds 30 --functions solve,lstsq", "--scheduler tcp://10.0.0.1:8786",
            "--json > bench.json",
        ),
        notes="Contenders take turns at orders that double as far as time allows; times are "
        "medians, of float64 matrices, and speed-up is that of hetero_la over the fastest other. "
        "With a GPU, SciPy, CuPy and torch get NumPy arrays, the latter two with copies both "
        "ways, and then CuPy and torch get arrays on the GPU.  With --scheduler, hetero_la gets "
        "NumPy arrays and may use the cluster; the others use this machine.",
    )  # fmt: skip
    values.add_scheduler(parser)
    parser.add_argument(
        "--seconds", type=values.positive, metavar="S", default=120,
        help="seconds to take, approximately (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--functions", type=values.names(list(FUNCTIONS)), metavar="LIST", default=[*FUNCTIONS],
        help=f"functions to measure: {', '.join(FUNCTIONS)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--first", type=values.positive, metavar="N", default=_FIRST,
        help="first order (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="picture to write: .svg, .png or .pdf; the table goes into a file -table.md beside it "
        f"(default: {_PICTURE}, if Matplotlib is there)",
    )  # fmt: skip


def bench(args: argparse.Namespace) -> int:
    """Measure, print and write a table, draw a picture; return the exit status."""
    picture, name = _picture(args), args.output or _PICTURE
    table = name.with_name(f"{name.stem}-table.md")
    require_writable_path(table)
    gpu = gpu_count() > 0
    versions = installed_versions(gpu)
    places = ["host", "device"] if gpu and args.scheduler is None else ["host"]
    found: list[list[Measured]] = []
    interrupted: KeyboardInterrupt | None = None
    with _cluster(args.scheduler) as workers, show_steps(args.report.quiet) as show:
        try:
            for rows in measure_for(args.seconds, args.functions, places, gpu, show, args.first):
                found.append(rows)
        except KeyboardInterrupt as error:
            interrupted = error  # what was measured until then is shown, for which there is time
    title = _title(versions)
    if args.scheduler is not None:
        title += f"\nhetero_la with {workers_text(workers)} of {args.scheduler}"
        args.report.record(scheduler=args.scheduler, workers=worker_entries(workers))
    head, cells = _cells(found)
    args.report.show(title, "", new_table(head, cells, left=_LEFT))
    rows = [row for some in found for row in some]
    args.report.record(
        machine={name: machine_identity()[name] for name in HARDWARE}, versions=versions, rows=rows
    )
    if picture is not None and rows and interrupted is None:
        draw(rows, picture, title)
        args.report.wrote(picture, "that table as a picture")
    if rows:
        write_text(table, f"{title}\n\n{_markdown(head, cells)}\n")
        args.report.wrote(table, "that table, to be shared")
    if interrupted is not None:
        raise interrupted
    return 0


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[Sequence[WorkerInfo]]:
    """Let hetero_la use a running cluster in the block, which gets its workers."""
    if address is None:
        yield ()
        return
    with client_at(address) as client, client.as_current():
        yield worker_infos(client)


def _picture(args: argparse.Namespace) -> Path | None:
    """Return the picture to draw; None where Matplotlib is missing and none was asked for."""
    picture: Path = args.output or _PICTURE
    try:
        require_chart(picture)
    except ValueError as error:
        if args.output is not None:
            raise
        args.report.note(f"there will be no picture: {error}")
        return None
    require_writable_path(picture)
    return picture


def _title(versions: dict[str, str]) -> str:
    """Say what is compared, and on which machine."""
    machine = machine_identity()
    ours, *others = (f"{name} {version}" for name, version in versions.items())
    hardware = [f"{machine['cpu']}, {counted(machine['cores'], 'core')}", *machine["gpus"]]
    return f"{ours} beside {', '.join(others)}\n{'; '.join(hardware)}"


def _cells(found: Sequence[Sequence[Measured]]) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a row for each function, place of the arrays, and order."""
    who = list(dict.fromkeys(row.who for rows in found for row in rows))
    several = len({row.where for rows in found for row in rows}) > 1
    cells = []
    for rows in sorted((rows for rows in found if rows), key=_place):
        first, times = rows[0], {row.who: in_seconds(row.median) for row in rows}
        factor = speed_up(rows)
        cells.append([
            first.function, *[first.where] * several, str(first.n),
            *(times.get(one, "-") for one in who),
            "-" if factor is None else f"{factor:.2f} x",
        ])  # fmt: skip
    return ["function", *["arrays"] * several, "n", *who, "speed-up"], cells


def _markdown(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown.

    Examples
    --------
    >>> print(_markdown(["function", "n"], [["qr", "64"]]))
    | function | n |
    |---|--:|
    | qr | 64 |
    """
    sides = "|".join("---" if name in _LEFT else "--:" for name in head)
    first, *others = (f"| {' | '.join(row)} |" for row in (head, *cells))
    return "\n".join([first, f"|{sides}|", *others])


def _place(rows: Sequence[Measured]) -> tuple[bool, int, int]:
    first = rows[0]
    return first.where != "host", list(FUNCTIONS).index(first.function), first.n
