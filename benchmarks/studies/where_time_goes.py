"""Where the time of a factorization goes: a timeline of its run, divided by kinds of work.

Every moment of a run belongs to one kind of work, the first in the order of `WORK` that goes on
then, so that the parts of a row add up to its run; ``idle`` is the rest, before the first kernel
and behind the last one, too.  ``hidden`` is the time of panels beside an update.  Of several
workers, parts are the means over these.

The matrix is on its devices beforehand and stays there, or it is a NumPy array, row-major or
column-major, whose factors go back to a new one.  Then the time is that of the whole call, and
``outside`` is what of it is no part of the run, as planning.  The host transposes columns of a
row-major array on their way, as part of ``there and back``: what that costs is the difference of
the two orders.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hetero_la
from hetero_la.cli.main import main
from hetero_la.execution.timeline import TracedRun
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.program.instructions import CallKernel, Instruction
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.plots import finish, panels, shared_legend
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Show,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)
from hetero_la.studies.common.timing import spread
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.processes import memory_limit
from hetero_la.studies.factorizations.runs import ClusterRuns, ResidentRuns, free_gpus
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.kernels.spec import SPECS, Role

#: Kinds of work, the most useful first, each with its colour in Okabe and Ito's palette.
WORK = {
    "update": "#56B4E9", "solve": "#0072B2", "swaps": "#CC79A7", "panel": "#D55E00",
    "inverse": "#F0E442", "there and back": "#009E73", "between": "#E69F00", "other": "#666666",
    "outside": "#000000",
}  # fmt: skip
IDLE, _GREY = "idle", "#CCCCCC"
RESIDENT, ROWS, COLUMNS = "resident", "row-major host array", "column-major host array"
#: Copies of the matrix for which the host, and all GPUs together, must have memory: a GPU beside
#: the matrix for work, and the host for the factors and for pinned memory.
_ON_HOST, _ON_GPUS = 2.5, 1.25
#: Rows of a random matrix that are made at a time.
_AT_ONCE = 256
_OF_ROLE = {
    Role.UPDATE: "update", Role.SOLVE: "solve", Role.EXCHANGE: "swaps", Role.PANEL: "panel",
    Role.INVERSE: "inverse",
}  # fmt: skip
_OF_OP = {
    "load": "there and back", "store": "there and back", "send": "between", "receive": "between",
}  # fmt: skip


class Span(NamedTuple):
    """A kind of work, from when until when."""

    work: str
    start: float
    stop: float


def work_of(instruction: Instruction) -> str:
    """Return the kind of work of an instruction."""
    if isinstance(instruction, CallKernel):
        return _OF_ROLE.get(SPECS[instruction.kind].role, "other")
    return _OF_OP.get(instruction.op, "other")


def spans_of(run: TracedRun, worker: int) -> list[Span]:
    """Return what a worker did, and when."""
    instructions = run.plan.programs[worker].instructions
    times = run.workers[worker].spans.tolist()
    return [Span(work_of(i), *time) for i, time in zip(instructions, times, strict=True)]


def shares(spans: Sequence[Span], began: float, ended: float) -> dict[str, float]:
    """Return the seconds of each kind of work, and those that are left of the run.

    Examples
    --------
    >>> spans = [Span("panel", 0.0, 3.0), Span("update", 1.0, 2.0)]
    >>> {work: s for work, s in shares(spans, 0.0, 4.0).items() if s}
    {'update': 1.0, 'panel': 2.0, 'idle': 1.0}
    """
    found, running = dict.fromkeys([*WORK, IDLE], 0.0), dict.fromkeys(WORK, 0)
    changes = [(span.start, span.work, 1) for span in spans]
    changes += [(span.stop, span.work, -1) for span in spans]
    before = began
    for when, work, change in [*sorted(changes), (ended, "other", 0)]:
        when = min(max(when, began), ended)
        found[next((kind for kind in WORK if running[kind]), IDLE)] += when - before
        running[work] += change
        before = when
    return found


def divided(run: TracedRun) -> dict[str, float]:
    """Return the part of a run that each kind of work takes, and the panels that are hidden."""
    found = dict.fromkeys([*WORK, IDLE, "hidden"], 0.0)
    workers = range(len(run.workers))
    for worker in workers:
        spans = spans_of(run, worker)
        parts = shares(spans, run.began, run.ended)
        panel = sum(span.stop - span.start for span in spans if span.work == "panel")
        for work, seconds in {**parts, "hidden": panel - parts["panel"]}.items():
            found[work] += seconds / run.seconds / len(workers)
    return found


class WholeCall(NamedTuple):
    """A run, and the seconds of the call that made it."""

    run: TracedRun
    seconds: float

    def divided(self) -> dict[str, float]:
        """Return the part of the call that each kind of work takes."""
        part = self.run.seconds / self.seconds
        found = {work: share * part for work, share in divided(self.run).items()}
        return found | {"outside": 1 - part}


def _row(place: str, problem: Factorization, n: int, calls: list[WholeCall]) -> Row:
    """Return the row of some calls, divided as the one of median time."""
    middle = sorted(calls, key=lambda call: call.seconds)[len(calls) // 2]
    found = spread([call.seconds for call in calls])
    return {
        "table": "shares", "place": place, "routine": problem.routine, "n": n, **found,
        "flop/s": problem.flops(n) / found["seconds"], **middle.divided(),
    }  # fmt: skip


def _fits(run: StudyRun, place: str, n: int, *, host: float = 0, gpus: int = 0) -> bool:
    """Return whether there is memory for so many copies on the host, and a matrix on GPUs."""
    nbytes = 8 * n * n
    memory = [("the host", host * nbytes, memory_limit())]
    if gpus:
        import cupy

        memory.append(("a GPU", _ON_GPUS * nbytes / gpus, cupy.cuda.Device(0).mem_info[0]))
    for where, needed, there in memory:
        if needed > there:
            run.leave_out(
                f"{place}, n = {n}: it takes {in_bytes(int(needed))} of the memory of {where}, "
                f"which has {in_bytes(int(there))}"
            )
            return False
    return True


def _calls(run: StudyRun, n: int, call: Callable[[], WholeCall]) -> list[WholeCall]:
    """Return calls after one for warm-up; of the largest orders, which are long, just one."""
    if n > run.sizes["once above"]:
        return [call()]
    return [call() for _ in range(run.sizes["runs"] + 1)][1:]


def _of_resident(runs: ResidentRuns | ClusterRuns, plan: Plan) -> WholeCall:
    timeline = runs.timeline(plan)
    return WholeCall(timeline, timeline.seconds)


def _resident(run: StudyRun, gpu: bool) -> Iterator[Row]:
    """Yield rows of one device that has the matrix."""
    place = f"1 GPU, {RESIDENT}" if gpu else "CPU"
    for n in run.sizes["gpu" if gpu else "cpu"]:
        if not _fits(run, place, n, host=0 if gpu else _ON_HOST, gpus=int(gpu)):
            continue
        for problem in FACTORIZATIONS.values():
            run.report(f"{problem.routine}, {place}, n = {n}")
            runs = ResidentRuns(problem, n, gpu)
            plan = runs.plan(nb=None if gpu else run.sizes["cpu tile"])
            yield _row(place, problem, n, _calls(run, n, partial(_of_resident, runs, plan)))
            free_gpus(int(gpu))


def _resident_on(
    run: StudyRun, name: str, orders: str, cluster: hetero_la.Cluster
) -> Iterator[Row]:
    """Yield rows of a cluster whose workers have their columns."""
    place, gpus = f"{name}, {RESIDENT}", cluster.size.gpus
    nb = None if gpus else run.sizes["cpu tile"]
    for n in run.sizes[orders]:
        if not _fits(run, place, n, host=0 if gpus else _ON_HOST, gpus=gpus):
            continue
        for problem in FACTORIZATIONS.values():
            run.report(f"{problem.routine}, {place}, n = {n}")
            runs = ClusterRuns(cluster, problem, n)
            plan = runs.plan(nb=nb)
            yield _row(place, problem, n, _calls(run, n, partial(_of_resident, runs, plan)))
            free_gpus(gpus)


def _from_host(run: StudyRun, name: str, orders: str, cluster: hetero_la.Cluster) -> Iterator[Row]:
    """Yield rows of a cluster whose workers get the columns of a NumPy array, and bring it back."""
    gpus = cluster.size.gpus
    nb = None if gpus else run.sizes["cpu tile"]
    for n in run.sizes[orders]:
        if not _fits(run, f"{name}, from the host", n, host=_ON_HOST, gpus=gpus):
            continue
        a = random_matrix(n)
        for problem in FACTORIZATIONS.values():
            np.fill_diagonal(a, problem.diagonal(n))
            for order, given in ((ROWS, a), (COLUMNS, a.T)):
                place = f"{name}, {order}"
                run.report(f"{problem.routine}, {place}, n = {n}")
                call = partial(_traced, problem, given, client=cluster, nb=nb)
                yield _row(place, problem, n, _calls(run, n, call))
        free_gpus(gpus)


def random_matrix(n: int) -> np.ndarray:
    """Return a random row-major matrix between -1/2 and 1/2, made by all threads."""
    a = np.empty((n, n))

    def make(start: int) -> None:
        rows = a[start : start + _AT_ONCE]
        np.random.Generator(np.random.SFC64(start)).random(out=rows)
        rows -= 0.5

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(make, range(0, n, _AT_ONCE)))
    return a


def _traced(problem: Factorization, a: Any, **options: Any) -> WholeCall:
    with hetero_la.trace() as traced:
        began = time.perf_counter()
        problem.factor(a, check_finite=False, **options)
        seconds = time.perf_counter() - began
    return WholeCall(traced.runs[-1], seconds)


def measure(run: StudyRun) -> Iterator[Row]:
    """Divide runs on the CPU, and on one GPU and on two, resident and from the host."""
    yield from _resident(run, gpu=False)
    if run.has_gpus(1, "runs on a GPU, resident and from the host"):
        yield from _resident(run, gpu=True)
        with hetero_la.Cluster(gpus=1, cpus=0) as one:
            yield from _from_host(run, "1 GPU", "gpu, from the host", one)
    else:
        with hetero_la.Cluster(virtual_gpus=2, cpus=0, blas_threads=1) as virtual:
            yield from _resident_on(run, "2 virtual GPUs", "cpu", virtual)
            yield from _from_host(run, "2 virtual GPUs", "cpu", virtual)
    if run.has_gpus(2, "runs on two GPUs, resident and from the host"):
        with hetero_la.Cluster(gpus=2, cpus=0) as two:
            yield from _resident_on(run, "2 GPUs", "gpu", two)
            yield from _from_host(run, "2 GPUs", "gpu, from the host", two)


def find(rows: Rows) -> list[str]:
    """Say of each place what its time goes to, at the largest order, and what turning costs."""
    places = sorted(values_of(rows, "place"), key=lambda place: "GPU" not in place)
    found = []
    for place in places:
        routines = values_of(rows_of(rows, "shares", place=place), "routine")
        texts = "; ".join(_of_largest(rows, place, routine) for routine in routines)
        found.append(f"{place}: {texts}.")
    return found + [_of_turning(rows, place) for place in places if place.endswith(ROWS)]


def _of_largest(rows: Rows, place: str, routine: str) -> str:
    """Say what most of the time of the largest matrix goes to."""
    row = max(rows_of(rows, "shares", place=place, routine=routine), key=lambda row: row["n"])
    parts = sorted([*WORK, IDLE], key=lambda work: -row[work])[:3]
    text = ", ".join(f"{percent(row[work])} {work}" for work in parts)
    return f"{routine} of n = {row['n']} takes {in_seconds(row['seconds'])} ({text})"


def _of_turning(rows: Rows, place: str) -> str:
    """Compare the two orders of an array on the host, at the largest order."""
    n = max(row["n"] for row in rows_of(rows, "shares", place=place))
    seconds = [
        {row["routine"]: row["seconds"] for row in rows_of(rows, "shares", place=one, n=n)}
        for one in (place, place.replace(ROWS, COLUMNS))
    ]
    text = ", ".join(f"{seconds[0][r] / seconds[1][r]:.2f} ({r})" for r in seconds[0])
    return f"{place}, n = {n}: times over those of a column-major one are {text}."


def draw(figure: Any, rows: Rows) -> None:
    """Draw the shares of each place and routine, stacked, over the order."""
    series = [
        (place, routine) for place in values_of(rows, "place")
        for routine in values_of(rows, "routine")
    ]  # fmt: skip
    drawn = panels(figure, len(series), across=3)
    for axes, (place, routine) in zip(drawn, series, strict=True):
        shown = rows_of(rows, "shares", place=place, routine=routine)
        labels, bottoms = [str(row["n"]) for row in shown], [0.0] * len(shown)
        for work, colour in {**WORK, IDLE: _GREY}.items():
            heights = [100 * row[work] for row in shown]
            axes.bar(labels, heights, bottom=bottoms, color=colour, label=work, ec="white", lw=0.3)
            bottoms = [b + h for b, h in zip(bottoms, heights, strict=True)]
        finish(axes, f"{routine}, {place}", "order n", "share of the run, %", logarithmic="")
        axes.tick_params(axis="x", labelrotation=60 if len(shown) > 5 else 0)
    shared_legend(figure, 5)


_SHARES: dict[str, Show] = dict.fromkeys([*WORK, IDLE, "hidden"], percent)

STUDY = Study(
    name="where_time_goes",
    question="Which kinds of work does the time of a factorization go to, and how much is hidden?",
    source="Volkov and Demmel 2008, Figure 10",
    original="with look-ahead most of the time of large matrices goes to products; of small ones, "
    "to panels and transfers",
    tables=(
        StudyTable(
            "shares", "shares of a run",
            {"routine": WORD, "place": WORD, "n": number(), **SECONDS, "flop/s": rate("flop/s"),
             **_SHARES},
        ),
    ),
    sizes={
        "cpu": [448, 1024, 2048],
        "cpu tile": 128,
        "gpu": [448, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
        "gpu, from the host": [1024, 2048, 4096, 8192, 16384, 32768],
        "runs": 3,
        "once above": 16384,
    },
    quick={
        "cpu": [128, 256], "cpu tile": 32, "gpu": [1024], "gpu, from the host": [1024], "runs": 1,
        "once above": 16384,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
