"""What each optimization is worth: a run without it, over the run with all of them.

look-ahead            the next panels are factored beside the update; else behind it
overlap of queues     a GPU's panels, updates and copies run at once; else one after the other
wide calls            one call for all tile columns of a step; else one for each (on the CPU)
solve by inverse      triangular solves multiply by the inverse of the diagonal tile; else trsm
net swaps             a GPU moves each row of a step once; else it swaps pair after pair
swaps at the end      finished columns get the swaps of all steps at once; else step by step
tiles of several sizes   large tiles first, then smaller ones; else all of the first size
two levels            up to half of the steps, panels of a quarter of a tile's width in blocks of
                      that width, whose panels update the rest at once; else one level
column-major input    lu_factor of an array on the device that is column-major; else row-major, and
                      turned first
windows               a Dask task for many steps; else one for each

What a run does not have anyway is left out of its rows: a matrix small enough for tiles of one
size does not show what several sizes are worth.  Two levels are no default, so that they are added
to a run with all others; of the input the library's function is timed, with its copy of the matrix.
The library stores columns only: what rows would gain is in the study ``layouts``.

Factors of small matrices are compared with those of the run with all, on one device.
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
from hetero_la.tiles.arrays.transfer import array_module
from hetero_la.tiles.kernels.device import Device

ALL, TWO_LEVELS = "nothing", "two levels"
COLUMNS, ROWS = "column-major input", "row-major input"
#: Who runs without a part, and who runs with it, where these are not the part's name and `ALL`.
_PAIRS = {TWO_LEVELS: (ALL, TWO_LEVELS), COLUMNS: (ROWS, COLUMNS)}
#: Largest order of matrices whose factors are compared, and their largest relative difference:
#: those of other tiles differ, as random matrices magnify rounding errors by their condition.
_COMPARED, _LIMIT = 2048, 1e-6


class Contenders:
    """Runs on one device, in this thread, whose factors are compared with those of the first.

    Parameters
    ----------
    runs : ResidentRuns
        The runs.
    nb : int or None
        Their tile size.
    """

    def __init__(self, runs: ResidentRuns, nb: int | None) -> None:
        self.runs, self.nb, self.plan = runs, nb, runs.plan(nb=nb)
        self._reference: Any = None

    def timed(self) -> dict[str, Timed]:
        """Return what each is without, and its run."""
        runs, plan = self.runs, self.plan
        found: dict[str, Timed] = {ALL: partial(self.seconds, plan)}
        if runs.gpu:
            found["look-ahead"] = partial(self.seconds, runs.plan(nb=self.nb, lookahead=0))
            single = ablation.SingleQueueGpu(0, runs.device.name)
            found["overlap of queues"] = partial(self.seconds, plan, device=single)
        else:
            found["wide calls"] = partial(self._column_by_column, plan)
        if not isinstance(plan.nb, int):
            found["tiles of several sizes"] = partial(self.seconds, runs.plan(nb=plan.nb[0]))
        return found | (self._of_lu() if runs.problem.routine == "lu" else {})

    def _of_lu(self) -> dict[str, Timed]:
        runs, plan = self.runs, self.plan
        by_trsm = partial(ablation.solves_by_trsm, runs.device.kind)
        late = ablation.with_left_swaps_at_every_step(plan)
        found: dict[str, Timed] = {
            "solve by inverse": partial(self._within, by_trsm),
            "swaps at the end": partial(self.seconds, late),
        }
        if runs.gpu:
            found["net swaps"] = partial(self._within, ablation.swaps_one_by_one)
        wide = plan.nb if isinstance(plan.nb, int) else plan.nb[0]
        if wide % 4 == 0 and 2 * wide <= runs.n:
            found[TWO_LEVELS] = partial(self.seconds, runs.plan(nb=wide // 4, coarse=wide))
        return found | _of_inputs(runs, self.nb)

    def _within(self, changed: Callable[[], Any]) -> float:
        """Return the seconds of a run with kernels changed."""
        with changed():
            return self.seconds(self.plan)

    def seconds(self, plan: Plan, device: Device | None = None) -> float:
        """Return the seconds of a plan's program; compare factors."""
        return self.runs.seconds(plan, device, matrix_of=self.plan, check=self._compare)

    def _column_by_column(self, plan: Plan) -> float:
        """Return the seconds of a plan's tasks, each one call, in the graph's order."""
        device, graph = self.runs.device, ROUTINES[plan.routine].tasks(plan.layout)
        a, _ = self.runs.storage(self.plan).home(device, self.runs.n)
        order, options = range(len(graph.tasks)), plan.options.kernel
        with device.activate():
            seconds = seconds_of(lambda: run_in_order(graph, order, a, device, options))
        self._compare(a)
        return seconds

    def _compare(self, a: Any) -> None:
        """Raise unless these factors, of a small matrix, are those of the first run."""
        if self.runs.n > _COMPARED:
            return
        factors = array_module(a).tril(a) if self.runs.problem.definite else a
        if self._reference is None:
            self._reference = factors.copy()
        difference = abs(factors - self._reference).max() / abs(self._reference).max()
        if not float(difference) < _LIMIT:
            raise AssertionError(
                f"factors are off by {float(difference):.1e} of the largest entry, without one part"
            )


def _wait(gpu: bool) -> None:
    """Wait for all work of the current GPU, if the matrix is there."""
    if gpu:
        import cupy

        cupy.cuda.Device().synchronize()


def _of_inputs(runs: ResidentRuns, nb: int | None) -> dict[str, Timed]:
    """Return `lu_factor` of a column-major and a row-major array on the device."""
    columns: Any = runs.given
    if runs.gpu:
        import cupy

        columns = cupy.empty((runs.n, runs.n), order="F")
        runs.problem.fill(columns)
    rows = columns.copy(order="C")
    _wait(runs.gpu)

    def seconds(a: Any) -> float:
        def run() -> None:
            runs.problem.factor(a, check_finite=False, nb=nb)
            _wait(runs.gpu)

        return seconds_of(run)

    return {COLUMNS: partial(seconds, columns), ROWS: partial(seconds, rows)}


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
    """Yield the rows of parts; runs take turns, and ratios are of runs of one turn."""
    seconds = seconds_in_turns(contenders, repeats)
    for part in seconds:
        without, complete = _PAIRS.get(part, (part, ALL))
        if part == ROWS:
            continue
        taken = seconds[without]
        ratios = [one / base for one, base in zip(taken, seconds[complete], strict=True)]
        yield {
            "table": "worth", "place": place, "routine": problem.routine, "n": n,
            "without": part, **spread(taken), "over all": statistics.median(ratios),
            "least ratio": min(ratios), "most ratio": max(ratios),
        }  # fmt: skip


def measure(run: StudyRun) -> Iterator[Row]:
    """Leave out one optimization after the other, on one device and on several workers."""
    gpus = [False, True] if run.has_gpus(1, "runs on a GPU without one of its parts") else [False]
    for gpu in gpus:
        place, nb = ("1 GPU", None) if gpu else ("CPU", run.sizes["cpu tile"])
        for problem in FACTORIZATIONS.values():
            for n in run.sizes["gpu" if gpu else "cpu"]:
                run.report(f"{problem.routine}, {place}, n = {n}")
                contenders = Contenders(ResidentRuns(problem, n, gpu), nb).timed()
                yield from _rows(place, problem, n, contenders, run.sizes["turns"])
                del contenders  # and with it the matrices
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
    """Say for each place and routine what parts are worth, at the least and the largest order."""
    found = []
    for place in sorted(values_of(rows, "place"), key=lambda place: "GPU" not in place):
        for routine in values_of(rows, "routine"):
            shown = rows_of(rows, "worth", place=place, routine=routine)
            parts = [part for part in values_of(shown, "without") if part != ALL]
            texts = [_of_part(part, rows_of(shown, "worth", without=part)) for part in parts]
            found.append(f"{routine} on {place}, time without over time with: {'; '.join(texts)}.")
    return found


def _of_part(part: str, rows: Rows) -> str:
    """Return what a part is worth, at the least and at the largest order that have it."""
    ends = sorted(rows, key=lambda row: row["n"])[:: max(len(rows) - 1, 1)]
    return f"{part} " + ", ".join(f"{row['over all']:.2f} (n = {row['n']})" for row in ends)


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
             "over all": number(), "least ratio": number(), "most ratio": number()},
        ),
    ),
    sizes={
        "cpu": [512, 1024, 2048], "cpu tile": 128,
        "gpu": [512, 1024, 2048, 4096, 8192, 16384, 32768],
        "gpus": [8192, 16384, 32768], "turns": 3,
    },
    quick={"cpu": [192], "cpu tile": 32, "gpu": [1024], "gpus": [2048], "turns": 1},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
