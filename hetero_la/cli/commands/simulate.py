"""Command ``simulate``: predicts a factorization on a described machine or a running cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_la.checks.inputs import DTYPES
from hetero_la.checks.limits import require_few_tasks
from hetero_la.cli.common import values
from hetero_la.cli.common.messages import written_message
from hetero_la.cli.common.planned import add_sizes
from hetero_la.configs import available_machines
from hetero_la.io.outputs import require_writable_path
from hetero_la.pictures.charts.scaling_chart import draw_scaling
from hetero_la.pictures.suffix import require_chart
from hetero_la.planning.check_memory import check_memory
from hetero_la.planning.planner import plan
from hetero_la.predict import scaling
from hetero_la.predict.forecast import Forecast
from hetero_la.predict.tile_search import largest_size
from hetero_la.scheduler.cluster.clients import client_at, worker_infos
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.storage.layout import TileLayout

_SCALING = {"strong": scaling.strong_scaling, "weak": scaling.weak_scaling}
_HEADINGS = (
    "GPUs", "n", "nb", "seconds", "TFLOP/s", "of peak", "speed-up", "GB a GPU", "bound by",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "predict a factorization on a described machine, or on a running cluster"
    parser = values.add_command(commands, "simulate", simulate, summary)
    add_sizes(parser, scaling.FACTORIZATIONS)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--machine", metavar="FILE",
        help=f"a machine described in TOML, or one of {', '.join(available_machines())}",
    )  # fmt: skip
    values.add_scheduler(where)
    parser.add_argument(
        "--gpus", type=values.positive, metavar="N", help="number of its GPUs (default: all)"
    )
    sizes = ", ".join(map(str, scaling.TILE_SIZES))
    parser.add_argument(
        "--nb", type=values.tilings, metavar="LIST",
        help="tile sizes, of which the fastest that fits is used "
        f"(default: {sizes}; on a cluster those of a run)",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, default="float64", help="element type")
    parser.add_argument(
        "--lookahead", type=values.count, metavar="D",
        help="look-ahead depth (default: 1; on a cluster that of a run)",
    )  # fmt: skip
    parser.add_argument(
        "--scaling", choices=list(_SCALING),
        help="table over 1, 2, 4, ... GPUs, for the same matrix (strong), or for matrices with "
        "equal memory per GPU (weak)",
    )  # fmt: skip
    parser.add_argument(
        "--anyway", action="store_true", help="also predict matrices that do not fit into memory"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the table: .svg, .png or .pdf"
    )


def simulate(args: argparse.Namespace) -> int:
    """Predict, and print the time and what bounds it; nothing is run."""
    shape = (args.n if args.m is None else args.m, args.n)
    if args.scheduler is not None:
        return _simulate_cluster(args, shape)
    if args.plot is not None:
        if args.scaling is None:
            raise ValueError("--plot draws a table: choose one with --scaling strong or weak")
        require_chart(args.plot)
        require_writable_path(args.plot)
    machine = scaling.read_machine(args.machine)
    options = {"nb": args.nb, "dtype": args.dtype, **values.given(args, "lookahead")}
    if args.scaling == "strong":
        options["anyway"] = args.anyway
    predict = scaling.forecast if args.scaling is None else _SCALING[args.scaling]
    found = predict(args.routine, shape, machine, args.gpus, **options)
    rows = [found] if isinstance(found, Forecast) else found
    if not (args.anyway or rows[-1].fits):
        raise InsufficientMemoryError(f"{_memory_message(rows[-1])} (--anyway predicts it)")
    print(rows[-1].explain())
    if args.scaling is not None:
        print("\n" + table(rows))
    if args.plot is not None:
        draw_scaling(rows, args.plot)
        print("\n" + written_message(args.plot, "that table as a chart"))
    return 0


def _simulate_cluster(args: argparse.Namespace, shape: tuple[int, int]) -> int:
    """Predict a run on the workers of a cluster by its plan, the fastest of all tile sizes."""
    if unused := values.given(args, "gpus", "scaling", "plot"):
        flag = values.flag(next(iter(unused)))
        raise ValueError(f"{flag} is for a machine that --machine describes, not for a cluster")
    with client_at(args.scheduler) as client:
        workers = worker_infos(client)
    plans = []
    for nb in args.nb or [None]:
        require_few_tasks(TileLayout(*shape, nb or largest_size(workers)), "simulated")
        how = {"nb": nb, "lookahead": args.lookahead}
        plans.append(plan(args.routine, shape, args.dtype, workers=workers, **how))
    best = min(plans, key=lambda planned: planned.predicted_seconds)
    if not args.anyway:
        memory = {worker.name: worker.memory for worker in workers}
        check_memory(best, memory, -1, new_columns=best.layout.n)
    print(best.explain())
    return 0


def _memory_message(found: Forecast) -> str:
    layout, gpus = found.layout, counted(found.gpus, "GPU")
    return (
        f"{found.routine} of a {layout.m} x {layout.n} {found.dtype.name} matrix does not fit on "
        f"{gpus} of {found.machine.name}: the fullest needs {found.memory / 1e9:.3g} GB, and has "
        f"{found.machine.memory / 1e9:.3g} GB"
    )


def table(rows: Sequence[Forecast]) -> str:
    """Format predictions for several numbers of GPUs, one row each.

    Examples
    --------
    >>> print(table([scaling.forecast("lu", (40000, 40000), "h200", nb=1024)]))
      GPUs        n    nb    seconds   TFLOP/s  of peak  speed-up  GB a GPU  bound by
         1    40000  1024  ...
    """
    room = max(6, *(2 + len(row.layout.nb_text) for row in rows))
    gpus, n, nb, *rest = _HEADINGS
    lines = [f"{gpus:>6}{n:>9}{nb:>{room}}" + "{:>11}{:>10}{:>9}{:>10}{:>10}  {}".format(*rest)]
    for row in rows:
        lines.append(
            f"{row.gpus:>6}{row.layout.n:>9}{row.layout.nb_text:>{room}}{row.seconds:>11.4g}"
            f"{row.rate / 1e12:>10.1f}{100 * row.efficiency:>7.1f} %"
            f"{row.rate / rows[0].rate:>10.2f}"
            f"{row.memory / 1e9:>10.1f}  {row.bound}{'' if row.fits else ', does not fit'}"
        )
    return "\n".join(lines)
