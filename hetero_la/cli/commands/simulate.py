"""Command ``simulate``: predicts a factorization on a described machine or a running cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_la.checks.limits import require_few_tasks
from hetero_la.cli.common import values
from hetero_la.cli.common.output import new_table
from hetero_la.cli.common.planned import add_sizes, plan_entries
from hetero_la.configs import available_machines
from hetero_la.execution.timeline import predicted_run
from hetero_la.io.outputs import require_writable_path
from hetero_la.pictures.charts.files import require_suffix, write_runs
from hetero_la.pictures.charts.scaling_chart import draw_scaling
from hetero_la.pictures.suffix import require_chart
from hetero_la.planning.check_memory import check_memory
from hetero_la.planning.planner import plan
from hetero_la.predict import scaling
from hetero_la.predict.forecast import Forecast
from hetero_la.predict.forecast_run import forecast_run, require_timeline
from hetero_la.predict.tile_search import largest_size
from hetero_la.scheduler.cluster.clients import client_at, worker_infos
from hetero_la.tiles.arrays.counted import a_matrix, counted, in_bytes, in_seconds, in_units
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.storage.layout import TileLayout

if TYPE_CHECKING:
    from rich.table import Table

_SCALING = {"strong": scaling.strong_scaling, "weak": scaling.weak_scaling}
_HEADINGS = (
    "GPUs", "n", "nb", "time", "rate", "of peak", "speed-up", "memory", "bound by",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "predict a factorization on a described machine, or on a running cluster"
    parser = values.add_command(
        commands, "simulate", simulate, summary,
        usage="[options] ROUTINE --n N",
        examples=(
            "lu --n 100000 --machine dgx-h200",
            "qr --n 100000 --machine dgx-h200-x128 --scaling strong --plot qr.svg",
            "cholesky --n 20000 --scheduler tcp://10.0.0.1:8786",
        ),
    )  # fmt: skip
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
    values.add_dtype(parser)
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
    parser.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="write the predicted timeline: .json, .svg, .png, .html or .gif; on a described "
        "machine, the calls of an update share its predicted time in proportion",
    )  # fmt: skip


def simulate(args: argparse.Namespace) -> int:
    """Predict, and print the time and what bounds it; nothing is run."""
    shape = (args.n if args.m is None else args.m, args.n)
    if args.trace is not None:
        require_suffix(args.trace)
        require_writable_path(args.trace)
    if args.scheduler is not None:
        return _simulate_cluster(args, shape)
    if args.plot is not None:
        if args.scaling is None:
            raise ValueError("--plot draws a table: choose one with --scaling strong or weak")
        require_chart(args.plot)
        require_writable_path(args.plot)
    machine = scaling.read_machine(args.machine)
    options = {"nb": args.nb, **values.given(args, "dtype", "lookahead")}
    if args.scaling == "strong":
        options["anyway"] = args.anyway
    predict = scaling.forecast if args.scaling is None else _SCALING[args.scaling]
    found = predict(args.routine, shape, machine, args.gpus, **options)
    rows = [found] if isinstance(found, Forecast) else found
    if not (args.anyway or rows[-1].fits):
        raise InsufficientMemoryError(f"{_memory_message(rows[-1])} (--anyway predicts it)")
    if args.trace is not None:
        require_timeline(rows[-1])
    args.report.show(rows[-1].explain())
    if args.scaling is not None:
        args.report.show("", table(rows))
    if args.plot is not None:
        draw_scaling(rows, args.plot)
        args.report.wrote(args.plot, "that table as a chart")
    if args.trace is not None:
        write_runs([forecast_run(rows[-1])], args.trace)
        args.report.wrote(args.trace, "the predicted timeline")
    args.report.record(forecasts=[_entries(row) for row in rows])
    return 0


def _entries(found: Forecast) -> dict[str, Any]:
    """Return a prediction for a JSON document."""
    layout = found.layout
    return {
        "routine": found.routine, "m": layout.m, "n": layout.n, "dtype": found.dtype.name,
        "machine": found.machine.name, "gpus": found.gpus, "nb": layout.nb_text,
        "lookahead": found.lookahead, "predicted_seconds": found.seconds,
        "flops_per_second": found.rate, "of_peak": found.efficiency, "bytes_a_gpu": found.memory,
        "bound": found.bound, "seconds_by_part": found.run.parts, "fits": found.fits,
    }  # fmt: skip


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
        plans.append(plan(args.routine, shape, args.dtype or "float64", workers=workers, **how))
    best = min(plans, key=lambda planned: planned.predicted_seconds)
    if not args.anyway:
        memory = {worker.name: worker.memory for worker in workers}
        check_memory(best, memory, -1, new_columns=best.layout.n)
    args.report.show(best.explain())
    if args.trace is not None:
        write_runs([predicted_run(best, best.simulate())], args.trace)
        args.report.wrote(args.trace, "the predicted timeline")
    args.report.record(plan=plan_entries(best))
    return 0


def _memory_message(found: Forecast) -> str:
    layout, gpus = found.layout, counted(found.gpus, "GPU")
    return (
        f"{found.routine} of {a_matrix(layout.m, layout.n, found.dtype.name)} does not fit on "
        f"{gpus} of {found.machine.name}: the fullest needs {in_bytes(found.memory)}, and has "
        f"{in_bytes(found.machine.memory)}"
    )


def table(rows: Sequence[Forecast]) -> Table:
    """Return a table of predictions for several numbers of GPUs, one row each."""
    cells = [
        [
            str(row.gpus), str(row.layout.n), row.layout.nb_text, in_seconds(row.seconds),
            in_units(row.rate, "flop/s"), f"{100 * row.efficiency:.1f} %",
            f"{row.rate / rows[0].rate:.2f}", in_bytes(row.memory),
            f"{row.bound}{'' if row.fits else ', does not fit'}",
        ]
        for row in rows
    ]  # fmt: skip
    return new_table(_HEADINGS, cells, left=["bound by"])
