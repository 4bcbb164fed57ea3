"""Hybrid runs: who factors the panels, and whether a CPU worker owns columns beside a GPU.

The matrix is on the GPU, whose panels the GPU or the CPU factors, or it comes from NumPy and goes
back; then the library may also give columns to the CPU ("auto").  The CPU worker has one thread,
four or all of them: with few, it is a slow CPU.  Rates stand beside those of the update
C <- C - A B, with 512 columns of A, on the GPU and on the threads of the CPU together.

Without a GPU, a core takes its role; its memory is then separate, as a GPU's is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

import hetero_la
from hetero_la.cli.main import main
from hetero_la.planning.plan import Plan
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.plots import finish, line, panels, shared_legend
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)
from hetero_la.studies.common.timing import spread
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.runs import Timed, free_gpus, seconds_in_turns
from hetero_la.studies.factorizations.update_rate import update_rate
from hetero_la.tiles.arrays.counted import counted, in_units
from hetero_la.tiles.kernels.cpu.device import CpuDevice, usable_cores
from hetero_la.tiles.kernels.gpu.device import GpuDevice

RESIDENT, HOST = "on the GPU", "from the host"
PANELS = ("gpu", "cpu", "auto")
SCIPY = "SciPy"


@dataclass
class HybridWay:
    """A way to run, and the plan that it followed the last time."""

    where: str
    panel: str
    factor: Callable[[], Any]
    plan: Plan | None = None

    def seconds(self) -> float:
        """Run once; return the seconds."""
        factors = self.factor()
        self.plan = factors.plan
        return float(factors.timing.seconds)

    @property
    def cpu_share(self) -> float:
        """The part of the columns that CPU workers own."""
        assert self.plan is not None
        workers = self.plan.workers
        count = [(workers[p.worker].kind, len(p.columns)) for p in self.plan.programs]
        return sum(n for kind, n in count if kind == "cpu") / sum(n for _, n in count)


def _contenders(
    problem: Factorization, a: Any, gpu: bool, cluster: hetero_la.Cluster
) -> list[HybridWay]:
    """Return the ways to factor a matrix of the host."""
    common = {"client": cluster, "check_finite": False}
    found = [
        HybridWay(HOST, panel, partial(problem.factor, a, panel=panel, **common))
        for panel in PANELS
    ]
    if gpu:
        import cupy

        on_gpu = cupy.asarray(a, order="F")
        found += [
            HybridWay(RESIDENT, panel, partial(problem.factor, on_gpu, panel=panel, **common))
            for panel in PANELS[:2]
        ]
    return found


def measure(run: StudyRun) -> Iterator[Row]:
    """Time all ways, for each number of the CPU worker's threads."""
    gpu = run.has_gpus(1, "hybrid runs with a GPU")
    threads = sorted({min(count, usable_cores()) for count in run.sizes["threads"]})
    order, kind = run.sizes["update"], "gpu" if gpu else "cpu"
    with threadpool_limits(1, "blas"):
        device = GpuDevice(0) if gpu else CpuDevice()
        accelerator = update_rate(device, n=order, seconds=run.sizes["sustained"]).sustained
    for count in threads:
        run.report(f"update on {counted(count, 'thread')}")
        with threadpool_limits(count, "blas"):
            cores = update_rate(CpuDevice(), n=min(order, 4096), seconds=run.sizes["sustained"])
        yield {
            "table": "updates", "threads": count, "CPU": cores.sustained, "GPU": accelerator,
            "both": cores.sustained + accelerator,
        }  # fmt: skip
        size: dict[str, Any] = {"gpus": 1} if gpu else {"gpus": 0, "virtual_gpus": 1}
        with hetero_la.Cluster(cpus=1, blas_threads=count, **size) as cluster:
            for problem in FACTORIZATIONS.values():
                for n in run.sizes[kind]:
                    run.report(f"{problem.routine}, n = {n}, {counted(count, 'thread')}")
                    a = problem.host_matrix(n)
                    contenders = _contenders(problem, a, gpu, cluster)
                    rate_of_both = cores.sustained + accelerator
                    yield from _rows(run, problem, a, count, contenders, rate_of_both)
                    free_gpus(int(gpu))


def _rows(
    run: StudyRun, problem: Factorization, a: Any, threads: int, contenders: list[HybridWay],
    both: float,
) -> Iterator[Row]:  # fmt: skip
    """Yield the rows of contenders, and of SciPy on as many threads, which take turns."""
    timed: dict[str, Timed] = {f"{one.where}, {one.panel}": one.seconds for one in contenders}

    def by_scipy() -> float:
        with threadpool_limits(threads, "blas"):
            return seconds_of(lambda: problem.scipy(a))

    if len(a) <= run.sizes["SciPy"]:
        timed[SCIPY] = by_scipy
    taken = seconds_in_turns(timed, run.sizes["turns"])
    common = {"table": "runs", "routine": problem.routine, "n": len(a), "threads": threads}
    for one in contenders:
        found = spread(taken[f"{one.where}, {one.panel}"])
        speed = problem.flops(len(a)) / found["seconds"]
        yield {
            **common, "where": one.where, "panels": one.panel, **found, "flop/s": speed,
            "CPU columns": one.cpu_share, "of both updates": speed / both,
        }  # fmt: skip
    if SCIPY in taken:
        found = spread(taken[SCIPY])
        speed = problem.flops(len(a)) / found["seconds"]
        yield {**common, "where": SCIPY, "panels": "cpu", **found, "flop/s": speed}


def find(rows: Rows) -> list[str]:
    """Say for each routine what hybrid runs gain or lose against the GPU's own panels."""
    found = []
    runs = rows_of(rows, "runs")
    n = max(values_of(runs, "n"))
    for where in (RESIDENT, HOST):
        for threads in values_of(runs, "threads"):
            for routine in values_of(runs, "routine"):
                at = {
                    row["panels"]: row
                    for row in rows_of(runs, "runs", routine=routine, n=n, threads=threads,
                                       where=where)
                }  # fmt: skip
                if not at:
                    continue
                own = at["gpu"]
                best = min(at.values(), key=lambda row: row["seconds"])
                found.append(
                    f"{routine} {where}, n = {n}, with {counted(threads, 'thread')} of the CPU: "
                    f"panels={best['panels']!r} is fastest, with "
                    f"{in_units(best['flop/s'], 'flop/s')}; panels on the GPU reach "
                    f"{percent(best['seconds'] / own['seconds'])} of that, and "
                    f"{percent(own['of both updates'])} of both updates."
                )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw the rates over the order, for each routine and number of threads."""
    runs = rows_of(rows, "runs")
    routines, threads = values_of(runs, "routine"), values_of(runs, "threads")
    drawn = iter(panels(figure, len(routines) * len(threads), across=len(routines)))
    series = list(dict.fromkeys((row["where"], row["panels"]) for row in runs))
    for count in threads:
        for routine in routines:
            axes = next(drawn)
            for i, (where, panel) in enumerate(series):
                shown = rows_of(
                    runs, "runs", routine=routine, threads=count, where=where, panels=panel
                )
                rates = [{**row, "Gflop/s": row["flop/s"] / 1e9} for row in shown]
                label = where if where == SCIPY else f"panels {panel}, {where}"
                line(axes, rates, "n", "Gflop/s", label, i)
            finish(axes, f"{routine}, {counted(count, 'thread')} of the CPU", "order n", "Gflop/s")
    shared_legend(figure, 3)


STUDY = Study(
    name="hybrid",
    question="Does a CPU beside a GPU help: with the panels, or with columns of its own?",
    source="Volkov and Demmel 2008; GPU-only LU and Cholesky, 2018, Figures 13 to 16",
    original="GPU alone reaches 90 % of hybrid runs and more, and wins beside a slow CPU",
    tables=(
        StudyTable(
            "updates", "the update, sustained",
            {"threads": str, "CPU": rate("flop/s"), "GPU": rate("flop/s"),
             "both": rate("flop/s")},
        ),
        StudyTable(
            "runs", "who factors the panels",
            {"routine": WORD, "n": number(), "threads": str, "where": WORD, "panels": WORD,
             **SECONDS, "flop/s": rate("flop/s"), "CPU columns": percent,
             "of both updates": percent},
        ),
    ),
    sizes={
        "threads": [1, 4, usable_cores()], "cpu": [1024, 2048], "gpu": [2048, 4096, 8192, 16384],
        "SciPy": 4096, "update": 8192, "sustained": 1.0, "turns": 3,
    },
    quick={
        "threads": [1], "cpu": [256], "gpu": [1024], "SciPy": 1024, "update": 512,
        "sustained": 0.05, "turns": 1,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
