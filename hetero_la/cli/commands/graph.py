"""Command ``graph``: draws the task graph of a routine."""

from __future__ import annotations

import argparse
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetero_la.checks.limits import require_few_tasks
from hetero_la.cli.common import values
from hetero_la.cli.common.planned import add_choices, add_sizes, plan_entries, planned_problem
from hetero_la.io.outputs import require_writable_path
from hetero_la.pictures.graph.files import draw, require_suffix
from hetero_la.planning.planner import plan
from hetero_la.scheduler.cluster.clients import client_at, worker_infos
from hetero_la.scheduler.cluster.sizing import require_few_workers
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.storage.layout import TileLayout


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    parser = values.add_command(
        commands, "graph", draw_graph, "draw the task graph of a routine, without running it",
        usage="[options] ROUTINE --n N --nb NB -o FILE",
        examples=(
            "lu --n 800 --nb 200 -o lu.svg",
            "cholesky --n 20000 --nb 500 --gpus 4 -o cholesky.html",
            "qr --n 800 --nb 200 --granularity tile -o qr.png",
        ),
    )  # fmt: skip
    add_sizes(parser, number=values.count)
    parser.add_argument(
        "--nrhs", type=values.positive, metavar="K", help="right-hand sides (default: 1)"
    )
    add_choices(parser)
    parser.add_argument(
        "--nb", type=values.tiles, metavar="NB", required=True, help="tile size, or sizes"
    )
    parser.add_argument("--coarse", type=int, metavar="NC", help="LU: columns of blocks of panels")
    values.add_dtype(parser)
    parser.add_argument("--lookahead", type=int, metavar="D", help="look-ahead depth")
    parser.add_argument("--panel", choices=["auto", "cpu", "gpu"], help="device of the panels")
    parser.add_argument(
        "--granularity", choices=["column", "tile"], default="column",
        help="size of a task: one column of tiles, as in a run, or one tile",
    )  # fmt: skip
    parser.add_argument("--cpus", type=values.count, metavar="N", help="CPU workers")
    parser.add_argument(
        "--gpus", type=values.count, metavar="N", help="GPU workers, which need not exist"
    )
    values.add_scheduler(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", required=True,
        help=".svg, .png, .dot, .html: a page that plays the run, zooms and needs no network, or "
        ".gif: an animation",
    )  # fmt: skip


def draw_graph(args: argparse.Namespace) -> int:
    """Plan and draw a graph, and print the plan; nothing is run, and no worker is started."""
    if args.granularity == "tile" and args.lookahead is not None:
        raise ValueError("--lookahead orders columns, and does nothing with --granularity tile")
    require_suffix(args.output)
    require_writable_path(args.output)
    routine, m, n, nrhs, dtype = planned_problem(args)
    require_few_tasks(TileLayout(m, n, args.nb, nrhs), "drawn", args.granularity)
    planned = plan(
        routine, (m, n), dtype, nrhs=nrhs, workers=_workers(args),
        nb=args.nb, coarse=args.coarse, lookahead=args.lookahead, panel=args.panel,
    )  # fmt: skip
    placed = planned.graph.placed(args.granularity)
    # First, so that an error leaves no picture behind.  What runs is columns, not tiles.
    by_tile = f"{placed.title}\n{placed.summary}"
    said = planned.explain() if args.granularity == "column" else by_tile
    draw(placed, args.output, runs=lambda: planned.played(args.granularity))
    args.report.explain(said)
    args.report.wrote(args.output, f"the task graph, {placed.summary}")
    args.report.record(
        graph={
            "title": placed.title, "tasks": len(placed.graph), "steps": placed.steps,
            "workers": placed.workers, "critical_path": len(placed.path),
            "critical_path_seconds": placed.weights[placed.path].sum(),
            "work_seconds": placed.weights.sum(),
        },
        plan=plan_entries(planned),
    )  # fmt: skip
    return 0


def _workers(args: argparse.Namespace) -> list[WorkerInfo]:
    """Return the workers of the cluster that is named, or those asked for, which need not exist."""
    if args.scheduler is not None:
        with client_at(args.scheduler) as client:
            return worker_infos(client)
    for name in ("cpus", "gpus"):
        require_few_workers(name, getattr(args, name) or 0)
    threads = max(usable_cores() // max(args.cpus or 1, 1), 1)
    cpu = WorkerInfo("cpu", "cpu", "planned", host=platform.node(), blas_threads=threads)
    gpu = replace(cpu, kind="gpu")
    cpus = [replace(cpu, name=f"cpu{i}") for i in range(args.cpus or 0)]
    gpus = [replace(gpu, name=f"gpu{i}", device=i) for i in range(args.gpus or 0)]
    return [*cpus, *gpus] or [calling_thread()]
