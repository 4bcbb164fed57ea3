"""Hybrid runs: who factors the panels, and whether a CPU worker owns columns beside a GPU.

The matrix is on the GPU, whose panels the GPU or the CPU factors, or it comes from NumPy and goes
back; then the library may also give columns to the CPU ("auto").  The CPU worker has one thread,
four or all of them: with few, it is a slow CPU.  LAPACK, by SciPy, has as many.  All keep the
matrix, so that its copy counts, do not look for NaNs, and are timed from the call to its end.

Rates stand beside those of the update C <- C - A B, with 512 columns of A: the sum of the GPU's and
of that of the CPU's threads, each measured alone.  The fastest way is timed again before it is
compared, as the least of several medians is too low by chance.

Without a GPU, a core takes its role; its memory is then separate, as a GPU's is.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from hetero_la.studies.factorizations.peers import lapack_factor, seconds_of
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.runs import Timed, free_gpus, seconds_in_turns
from hetero_la.studies.factorizations.update_rate import update_rate
from hetero_la.studies.factorizations.verification import verify
from hetero_la.tiles.arrays.counted import counted, in_units
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.kernels.cpu.device import CpuDevice, usable_cores
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.shard import local_width

RESIDENT, HOST = "on the GPU", "from the host"
PANELS = ("gpu", "cpu", "auto")
SCIPY = "SciPy"


@dataclass
class HybridWay:
    """A way to run, and the plan that it followed the last time."""

    where: str
    panel: str
    factor: Callable[[], Any]
    wait: Callable[[], Any] = lambda: None
    plan: Plan | None = None

    @property
    def name(self) -> str:
        """A name of its own."""
        return f"{self.where}, {self.panel}"

    def seconds(self) -> float:
        """Run once; return the seconds of the call, until all that it enqueued has run."""
        kept: list[Any] = []

        def complete() -> None:
            kept.append(self.factor())
            self.wait()

        seconds = seconds_of(complete)
        self.plan = kept.pop().plan
        return seconds

    def decisions(self) -> Row:
        """Return who factored panels, and the part of the columns that CPU workers own."""
        assert self.plan is not None
        plan = self.plan
        owned = [
            (plan.workers[one.worker].kind, local_width(plan.layout, one.columns))
            for one in plan.programs
        ]
        part = sum(n for kind, n in owned if kind == "cpu") / sum(n for _, n in owned)
        return {"panels on": plan.panel, "CPU columns": part}


def _contenders(
    problem: Factorization, a: Any, gpu: bool, cluster: hetero_la.Cluster
) -> list[HybridWay]:
    """Return the ways to factor a matrix of the host."""
    common: dict[str, Any] = {"client": cluster, "check_finite": False}
    if problem.definite:
        common["lower"] = True  # as SciPy does it here
    found = [
        HybridWay(HOST, panel, partial(problem.factor, a, panel=panel, **common))
        for panel in PANELS
    ]
    if gpu:
        import cupy

        on_gpu, wait = cupy.asarray(a, order="F"), cupy.cuda.Device().synchronize
        found += [
            HybridWay(RESIDENT, panel, partial(problem.factor, on_gpu, panel=panel, **common), wait)
            for panel in PANELS
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
    timed: dict[str, Timed] = {one.name: one.seconds for one in contenders}

    def by_scipy() -> float:
        with threadpool_limits(threads, "blas"):
            return seconds_of(lambda: lapack_factor(problem.routine, a, overwrite=False))

    if len(a) <= run.sizes["small"]:
        timed[SCIPY] = by_scipy
        for one in contenders:
            packed, *_ = one.factor()
            verify(one.name, problem.routine, a, to_host(packed))
    taken = seconds_in_turns(timed, run.sizes["turns"])
    common = {"routine": problem.routine, "n": len(a), "threads": threads}
    flops = problem.flops(len(a))
    for one in contenders:
        yield {
            "table": "runs", **common, "where": one.where, "panels": one.panel,
            **_rates(taken[one.name], flops, both), **one.decisions(),
        }  # fmt: skip
    if SCIPY in taken:
        found = _rates(taken[SCIPY], flops, both)
        yield {"table": "runs", **common, "where": SCIPY, "panels": "cpu", **found}
    for where in dict.fromkeys(one.where for one in contenders):
        ways = [one for one in contenders if one.where == where]
        best, other = _best_and_other(ways, taken)
        pair = {one.name: one.seconds for one in (best, other)}
        again = seconds_in_turns(pair, run.sizes["turns"])
        ratio = statistics.median(again[other.name]) / statistics.median(again[best.name])
        yield {
            "table": "again", **common, "where": where, "panels": best.panel,
            **_rates(again[best.name], flops, both), **best.decisions(), "other": other.panel,
            "other over it": ratio,
        }  # fmt: skip


def _rates(seconds: Sequence[float], flops: float, both: float) -> Row:
    """Return the entries of a row for samples, with their rate beside that of both updates."""
    found = spread(seconds)
    speed = flops / found["seconds"]
    return {**found, "flop/s": speed, "of both updates": speed / both}


def _best_and_other(
    ways: Sequence[HybridWay], taken: Mapping[str, Sequence[float]]
) -> tuple[HybridWay, HybridWay]:
    """Return who took least, and panels on the GPU; if these took least, who took least but one."""
    best, second, *_ = sorted(ways, key=lambda one: statistics.median(taken[one.name]))
    on_gpu = next(one for one in ways if one.panel == "gpu")
    return best, second if best is on_gpu else on_gpu


def find(rows: Rows) -> list[str]:
    """Say who is fastest, when timed again, and how far panels on the GPU come."""
    runs = rows_of(rows, "runs")
    n = max(values_of(runs, "n"))
    found = [
        _of_routine(rows, routine, where, n)
        for where in (RESIDENT, HOST)
        for routine in values_of(runs, "routine")
        if rows_of(rows, "again", routine=routine, where=where, n=n)
    ]
    return found + _of_columns(runs, n)


def _of_routine(rows: Rows, routine: str, where: str, n: int) -> str:
    """Say who takes least with each number of threads, and what panels on the CPU cost."""
    same = {"routine": routine, "where": where, "n": n}
    fastest = "; ".join(
        f"{counted(row['threads'], 'thread')}: panel={row['panels']!r} with "
        f"{in_units(row['flop/s'], 'flop/s')} ({percent(row['of both updates'])} of both updates)"
        for row in rows_of(rows, "again", **same)
    )
    on_cpu, on_gpu = (rows_of(rows, "runs", **same, panels=panel) for panel in ("cpu", "gpu"))
    ratios = ", ".join(
        f"{cpu['seconds'] / gpu['seconds']:.2f}" for cpu, gpu in zip(on_cpu, on_gpu, strict=True)
    )
    return (
        f"{routine} {where}, n = {n}, fastest by the CPU's threads, timed again: {fastest}. Panels "
        f"on the CPU take {ratios} times as long as panels on the GPU."
    )


def _of_columns(runs: Rows, n: int) -> list[str]:
    """Say which part of the columns the library gives to the CPU at an order."""
    auto = rows_of(runs, "runs", n=n, where=HOST, panels="auto")
    most = max((row["CPU columns"] for row in auto), default=None)
    if most is None:
        return []
    return [f"Of the columns from the host, panel='auto' gives the CPU {percent(most)} at most."]


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


_WAY = {
    **SECONDS, "flop/s": rate("flop/s"), "of both updates": percent, "panels on": WORD,
    "CPU columns": percent,
}  # fmt: skip

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
             **_WAY},
        ),
        StudyTable(
            "again", "who took least, timed again in turns with another",
            {"routine": WORD, "n": number(), "threads": str, "where": WORD, "panels": WORD,
             **_WAY, "other": WORD, "other over it": number()},
        ),
    ),
    sizes={
        "threads": [1, 4, usable_cores()], "cpu": [1024, 2048], "gpu": [2048, 8192],
        "small": 4096, "update": 8192, "sustained": 1.0, "turns": 3,
    },
    quick={
        "threads": [1], "cpu": [256], "gpu": [1024], "small": 1024, "update": 512,
        "sustained": 0.05, "turns": 1,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
