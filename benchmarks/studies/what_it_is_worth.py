"""What each optimization is worth: a run without it, over the run with all of them.

look-ahead            the next panels are factored beside the update; else behind it
overlap of queues     a GPU's panels, updates and copies run at once; else one after the other
wide calls            one call for all tile columns of a step; else one for each (on the CPU)
solve by inverse      triangular solves multiply by the inverse of the diagonal tile; else trsm
net swaps             a GPU moves each row of a step once; else it swaps pair after pair
swaps at the end      finished columns get the swaps of all steps at once; else step by step
tiles of several sizes   large tiles first, then smaller ones; else all of the first size
windows               a Dask task for many steps; else one for each

What a run does not have anyway is left out of its rows: a matrix small enough for tiles of one
size does not show what several sizes are worth.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.cli.main import main
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.studies.common.columns import SECONDS, WORD, number
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
from hetero_la.studies.factorizations import ablation
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.runs import (
    ClusterRuns,
    ResidentRuns,
    Timed,
    free_gpus,
    seconds_in_turns,
)

ALL = "nothing"


def _on_one_device(runs: ResidentRuns, nb: int | None) -> dict[str, Timed]:
    """Return the contenders in this thread: what each is without, and its run."""
    plan = runs.plan(nb=nb)
    found: dict[str, Timed] = {ALL: partial(runs.seconds, plan)}
    if not runs.gpu:
        found["wide calls"] = partial(_column_by_column, runs, plan)
    else:
        found["look-ahead"] = partial(runs.seconds, runs.plan(nb=nb, lookahead=0))
        single = ablation.SingleQueueGpu(0, runs.device.name)
        found["overlap of queues"] = partial(runs.seconds, plan, single)
    if not isinstance(plan.nb, int):
        found["tiles of several sizes"] = partial(runs.seconds, runs.plan(nb=plan.nb[0]))
    if runs.problem.routine == "lu":
        kind = runs.device.kind
        by_trsm = partial(ablation.solves_by_trsm, kind)
        found["solve by inverse"] = partial(_within, by_trsm, runs, plan)
        late = ablation.with_left_swaps_at_every_step(plan)
        found["swaps at the end"] = partial(runs.seconds, late)
        if runs.gpu:
            found["net swaps"] = partial(_within, ablation.swaps_one_by_one, runs, plan)
    return found


def _within(changed: Callable[[], Any], runs: ResidentRuns, plan: Plan) -> float:
    """Return the seconds of a run with kernels changed."""
    with changed():
        return runs.seconds(plan)


def _column_by_column(runs: ResidentRuns, plan: Plan) -> float:
    """Return the seconds of a plan's tasks, each one call, in the graph's order."""
    graph, device = ROUTINES[plan.routine].tasks(plan.layout), runs.device
    a, _ = runs.storage(plan).home(device, plan.layout.n)
    order, options = range(len(graph.tasks)), plan.options.kernel
    with device.activate():
        return seconds_of(lambda: run_in_order(graph, order, a, device, options))


def _on_dask(runs: ClusterRuns, nb: int | None) -> dict[str, Timed]:
    """Return the contenders on a cluster."""
    plan, waiting = runs.plan(nb=nb), runs.plan(nb=nb, lookahead=0)
    return {
        ALL: partial(runs.seconds, plan),
        "look-ahead": partial(runs.seconds, waiting),
        "windows": partial(runs.seconds, plan, window=1),
    }


def _rows(
    place: str, problem: Factorization, n: int, contenders: dict[str, Timed], repeats: int
) -> Iterator[Row]:
    """Yield the rows of contenders, which take turns; ratios are of runs of one turn."""
    seconds = seconds_in_turns(contenders, repeats)
    for without, taken in seconds.items():
        ratios = [one / base for one, base in zip(taken, seconds[ALL], strict=True)]
        yield {
            "table": "worth", "place": place, "routine": problem.routine, "n": n,
            "without": without, **spread(taken), "over all": statistics.median(ratios),
        }  # fmt: skip


def measure(run: StudyRun) -> Iterator[Row]:
    """Leave out one optimization after the other, on one device and on several workers."""
    gpus = [False, True] if run.has_gpus(1, "runs on a GPU without one of its parts") else [False]
    for gpu in gpus:
        place, nb = ("1 GPU", None) if gpu else ("CPU", run.sizes["cpu tile"])
        for problem in FACTORIZATIONS.values():
            for n in run.sizes["gpu" if gpu else "cpu"]:
                run.report(f"{problem.routine}, {place}, n = {n}")
                contenders = _on_one_device(ResidentRuns(problem, n, gpu), nb)
                yield from _rows(place, problem, n, contenders, run.sizes["turns"])
                free_gpus(int(gpu))
    for place, orders, cluster in _clusters(run):
        yield from _of_cluster(run, place, orders, cluster)


def _clusters(run: StudyRun) -> Iterator[tuple[str, str, hetero_la.Cluster]]:
    """Yield names of clusters, the sizes that have their orders, and themselves."""
    if run.gpus:
        yield "1 GPU, on Dask", "gpu", hetero_la.Cluster(gpus=1, cpus=0)
    if run.has_gpus(2, "runs on two GPUs without one of its parts"):
        yield "2 GPUs, on Dask", "gpus", hetero_la.Cluster(gpus=2, cpus=0)
    elif not run.gpus:
        virtual = hetero_la.Cluster(virtual_gpus=2, cpus=0, blas_threads=1)
        yield "2 virtual GPUs, on Dask", "cpu", virtual


def _of_cluster(
    run: StudyRun, place: str, orders: str, cluster: hetero_la.Cluster
) -> Iterator[Row]:
    """Yield the rows of all factorizations on a cluster, which ends then."""
    nb = run.sizes["cpu tile"] if orders == "cpu" else None
    with cluster:
        for problem in FACTORIZATIONS.values():
            for n in run.sizes[orders]:
                run.report(f"{problem.routine}, {place}, n = {n}")
                contenders = _on_dask(ClusterRuns(cluster, problem, n), nb)
                yield from _rows(place, problem, n, contenders, run.sizes["turns"])
                free_gpus(cluster.size.gpus)


def find(rows: Rows) -> list[str]:
    """Say for each place and routine what is worth most, and at which order."""
    found = []
    for place in sorted(values_of(rows, "place"), key=lambda place: "GPU" not in place):
        for routine in values_of(rows, "routine"):
            shown = rows_of(rows, "worth", place=place, routine=routine)
            shown.sort(key=lambda row: row["over all"])
            best = {row["without"]: row for row in shown if row["without"] != ALL}
            text = ", ".join(
                f"{row['without']} {row['over all']:.2f} (n = {row['n']})"
                for row in sorted(best.values(), key=lambda row: -row["over all"])
            )
            found.append(f"{routine} on {place}, time without over time with, at most: {text}.")
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw what each is worth over the order, for each place and routine."""
    places, routines = values_of(rows, "place"), values_of(rows, "routine")
    parts = [part for part in values_of(rows, "without") if part != ALL]
    drawn = iter(panels(figure, len(places) * len(routines), across=len(routines)))
    for place in places:
        for routine in routines:
            axes = next(drawn)
            for i, part in enumerate(parts):
                shown = rows_of(rows, "worth", place=place, routine=routine, without=part)
                if shown:
                    line(axes, shown, "n", "over all", part, i)
            axes.axhline(1, color="black", lw=0.8)
            finish(axes, f"{routine}, {place}", "order n", "time without / with", logarithmic="x")
    shared_legend(figure, 4)


STUDY = Study(
    name="what_it_is_worth",
    question="How much longer does a factorization take without one of its optimizations?",
    source="Volkov and Demmel 2008, Figure 11",
    original="solving by inverses up to 30 %, batched swaps 30 to 100 % of small matrices, two "
    "levels and tuned sizes 4 to 7 %",
    tables=(
        StudyTable(
            "worth", "runs without one of their parts",
            {"routine": WORD, "place": WORD, "n": number(), "without": WORD, **SECONDS,
             "over all": number()},
        ),
    ),
    sizes={
        "cpu": [512, 1024, 2048], "cpu tile": 128,
        "gpu": [512, 1024, 2048, 4096, 8192, 16384, 32768],
        "gpus": [4096, 8192, 16384, 32768], "turns": 5,
    },
    quick={"cpu": [192], "cpu tile": 32, "gpu": [1024], "gpus": [2048], "turns": 1},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
