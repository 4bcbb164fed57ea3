"""Predicted beside measured: what a plan said that a run would take, and what it took.

python benchmarks/prediction.py                       the CPU: n = 2048 and 4096
python benchmarks/prediction.py --gpu 8192 16384      matrix on a GPU, and left there
python benchmarks/prediction.py --gpus 4 32768        several GPUs, columns there beforehand
python benchmarks/prediction.py --kernels             with a table of kernels for each run
python benchmarks/prediction.py --rounds 5            each round after a probe of its own

The model is the machine's profile: run `hetero-la probe` first.  A ratio is predicted over
measured; the measured time is the median of the repeats, after one warm-up.  On a machine that
others share, what a profile says holds for minutes: with `--rounds` a profile is made for each
round, and the row of the median ratio stands at the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from harness import Case, Row, write_json

import hetero_la
from hetero_la.cli.common.values import positive, tiles
from hetero_la.execution.timeline import TracedRun
from hetero_la.studies.factorizations.problems import FACTORIZATIONS
from hetero_la.tiles.arrays.counted import counted


def row(case: Case, where: str, plan: Any, measured: list[float]) -> Row:
    """One line of the table."""
    seconds = statistics.median(measured)
    return {
        "routine": case.benchmark.routine, "case": where, "n": plan.layout.n,
        "nb": plan.layout.nb_text, "lookahead": plan.lookahead,
        "predicted": plan.predicted_seconds, "measured": seconds,
        "least": min(measured), "most": max(measured),
        "ratio": plan.predicted_seconds / seconds,
        "model": plan.model.measured or "nominal",
    }  # fmt: skip


def traced(case: Case, run: Callable[[], Any]) -> list[TracedRun]:
    """The runs of several calls, the longest of each, without the first."""
    found = []
    for _ in range(case.repeats + 1):
        with hetero_la.trace() as trace:
            run()
        found.append(max(trace.runs, key=lambda run: run.seconds))
    return found[1:]


def shown(runs: list[TracedRun], kernels: bool) -> list[float]:
    """Seconds of the runs; the median one in full, if that is asked for."""
    runs = sorted(runs, key=lambda run: run.seconds)
    if kernels:
        print(hetero_la.Trace([runs[len(runs) // 2]]).compare(), end="\n\n")
    return [run.seconds for run in runs]


def cpu(case: Case, n: int, kernels: bool) -> Row:
    """NumPy in, NumPy out."""
    a = case.benchmark.host_matrix(n, case.dtype)
    runs = traced(case, lambda: case.benchmark.factor(a, nb=case.nb))
    return row(case, "CPU", runs[-1].plan, shown(runs, kernels))


def on_device(case: Case, n: int, kernels: bool) -> Row:
    """On the device, in place; where there are several, they share it if that is faster."""
    import cupy

    a = cupy.empty((n, n), case.dtype, order="F")

    def run() -> None:
        case.benchmark.fill(a)
        case.on_device(a)

    runs = traced(case, run)
    plan = runs[-1].plan
    return row(case, counted(len(plan.workers), "GPU"), plan, shown(runs, kernels))


def several_gpus(case: Case, gpus: int, n: int) -> Row:
    """Columns distributed over the GPUs beforehand, and left there."""
    with hetero_la.Cluster(gpus=gpus, cpus=0) as cluster:
        client, plan = cluster.private_client(), case.plan(cluster, n)
        measured = [case.on_dask(client, plan) for _ in range(case.repeats + 1)]
    return row(case, counted(gpus, "GPU"), plan, measured[1:])


def show(found: Row) -> None:
    """Print a row."""
    print(
        f"{found['routine']:<10}{found['case']:<8}{found['n']:>7}{found['nb']:>14}"
        f"{found['lookahead']:>4}{found['predicted']:>13.4f}{found['measured']:>12.4f}"
        f"{found['least']:>9.4f}{found['most']:>9.4f}{found['ratio']:>8.3f}",
        flush=True,
    )


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """All that the command line asks for."""
    orders = args.cpu if args.cpu is not None else [] if args.gpu or args.gpus else [2048, 4096]
    for name in args.routines:
        case = Case(FACTORIZATIONS[name], args.dtype, args.repeats, args.nb)
        for n in orders:
            yield cpu(case, n, args.kernels)
        for n in args.gpu:
            yield on_device(case, n, args.kernels)
        for n in args.gpus[1:]:
            yield several_gpus(case, args.gpus[0], n)


def rounds(args: argparse.Namespace) -> Iterator[Row]:
    """The same in each round, after a probe whose profile nobody else sees; then the medians."""
    found: list[list[Row]] = []
    with tempfile.TemporaryDirectory() as folder:
        profile = os.path.join(folder, "profile.json")
        probe = [sys.executable, "-m", "hetero_la", "probe", "--dtype", args.dtype, "-o", profile]
        with mock.patch.dict(os.environ, {"HETERO_LA_PROFILE": profile}):
            for number in range(args.rounds):
                subprocess.run(probe, check=True, stdout=subprocess.DEVNULL)
                found.append([{**one, "round": number} for one in rows(args)])
                yield from found[-1]
    print(f"the lower medians of {args.rounds} rounds, by the ratio:")
    for same in zip(*found, strict=True):
        ratios = [one["ratio"] for one in same]
        median = same[ratios.index(statistics.median_low(ratios))]
        yield {**median, "round": "median"}


def study_parser(description: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """The arguments of what is measured for several routines, on the CPU and on one GPU."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    every = list(FACTORIZATIONS)
    parser.add_argument("--routines", nargs="+", choices=every, default=every)
    parser.add_argument("--cpu", type=int, nargs="*", metavar="N", help="orders on the CPU")
    parser.add_argument("--gpu", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--json", metavar="FILE")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run, print, and perhaps write JSON."""
    parser = study_parser(__doc__, repeats=5)
    parser.add_argument("--gpus", type=int, nargs="+", default=[], metavar=("G", "N"))
    parser.add_argument("--nb", type=tiles)
    parser.add_argument("--kernels", action="store_true", help="compare kernel by kernel")
    parser.add_argument(
        "--rounds", type=positive, default=0, metavar="N", help="probe the machine N times"
    )
    args = parser.parse_args(argv)
    print(
        f"{'routine':<10}{'case':<8}{'n':>7}{'nb':>14}{'la':>4}{'predicted s':>13}"
        f"{'measured s':>12}{'least':>9}{'most':>9}{'ratio':>8}"
    )
    found = []
    for one in rounds(args) if args.rounds else rows(args):
        show(one)
        found.append(one)
    write_json(found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
