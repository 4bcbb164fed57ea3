"""Where the time of a factorization goes: a timeline of its run, divided by kinds of work.

Every moment of a run belongs to one kind of work, the first in the order of `WORK` that goes on
then, so that the parts of a row add up to its run; ``idle`` is the rest, before the first kernel
and behind the last one, too.  ``hidden`` is the time of panels beside an update.  Of several
workers, parts are the means over these.

The matrix is on its device beforehand and stays there, or it comes from NumPy and goes back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hetero_la
from hetero_la.cli.main import main
from hetero_la.execution.timeline import TracedRun
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
from hetero_la.studies.factorizations.runs import ResidentRuns, free_gpus
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.kernels.spec import SPECS, Role

#: Kinds of work, the most useful first, each with its colour in Okabe and Ito's palette.
WORK = {
    "update": "#56B4E9", "solve": "#0072B2", "swaps": "#CC79A7", "panel": "#D55E00",
    "inverse": "#F0E442", "there and back": "#009E73", "between": "#E69F00", "other": "#666666",
}  # fmt: skip
IDLE, _GREY = "idle", "#CCCCCC"
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


def _row(place: str, problem: Factorization, n: int, runs: list[TracedRun]) -> Row:
    """Return the row of some runs, divided as the one of median time."""
    middle = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    found = spread([run.seconds for run in runs])
    return {
        "table": "shares", "place": place, "routine": problem.routine, "n": n, **found,
        "flop/s": problem.flops(n) / found["seconds"], **divided(middle),
    }  # fmt: skip


def _resident(run: StudyRun, gpu: bool) -> Iterator[Row]:
    """Yield rows of one device that has the matrix."""
    place = "1 GPU, resident" if gpu else "CPU"
    for problem in FACTORIZATIONS.values():
        for n in run.sizes["resident" if gpu else "cpu"]:
            run.report(f"{problem.routine}, {place}, n = {n}")
            runs = ResidentRuns(problem, n, gpu)
            plan = runs.plan(nb=None if gpu else run.sizes["cpu tile"])
            yield _row(place, problem, n, _timelines(run, partial(runs.timeline, plan)))
            free_gpus(int(gpu))


def _timelines(run: StudyRun, trace: Callable[[], TracedRun]) -> list[TracedRun]:
    return [trace() for _ in range(run.sizes["runs"] + 1)][1:]  # the first is warm-up


def _from_host(
    run: StudyRun, place: str, orders: str, cluster: hetero_la.Cluster, nb: int | None = None
) -> Iterator[Row]:
    """Yield rows of a cluster whose workers get the columns of a NumPy array, and bring it back."""
    with cluster:
        for problem in FACTORIZATIONS.values():
            for n in run.sizes[orders]:
                run.report(f"{problem.routine}, {place}, n = {n}")
                trace = partial(_traced, problem, problem.host_matrix(n), client=cluster, nb=nb)
                yield _row(place, problem, n, _timelines(run, trace))


def _traced(problem: Factorization, a: Any, **options: Any) -> TracedRun:
    with hetero_la.trace() as traced:
        problem.factor(a, check_finite=False, **options)
    return traced.runs[-1]


def measure(run: StudyRun) -> Iterator[Row]:
    """Divide runs on the CPU, on one GPU, and on GPUs whose columns come from the host."""
    yield from _resident(run, gpu=False)
    if run.has_gpus(1, "runs on a GPU, resident and from the host"):
        yield from _resident(run, gpu=True)
        one = hetero_la.Cluster(gpus=1, cpus=0)
        yield from _from_host(run, "1 GPU, from the host", "hosted", one)
    else:
        virtual = hetero_la.Cluster(virtual_gpus=2, cpus=0, blas_threads=1)
        name, nb = "2 virtual GPUs, from the host", run.sizes["cpu tile"]
        yield from _from_host(run, name, "cpu", virtual, nb)
    if run.has_gpus(2, "runs on two GPUs"):
        two = hetero_la.Cluster(gpus=2, cpus=0)
        yield from _from_host(run, "2 GPUs, from the host", "hosted", two)


def find(rows: Rows) -> list[str]:
    """Say of each place and routine what most of the time goes to, at the largest order."""
    found = []
    for place in sorted(values_of(rows, "place"), key=lambda place: "GPU" not in place):
        for routine in values_of(rows, "routine"):
            row = max(rows_of(rows, "shares", place=place, routine=routine), key=lambda r: r["n"])
            parts = sorted([*WORK, IDLE], key=lambda work: -row[work])[:3]
            text = ", ".join(f"{percent(row[work])} {work}" for work in parts)
            found.append(
                f"{place}: {routine} of n = {row['n']} takes {in_seconds(row['seconds'])}: {text}."
            )
    return found


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
        "resident": [448, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
        "hosted": [2048, 8192, 16384],
        "runs": 3,
    },
    quick={"cpu": [128, 256], "cpu tile": 32, "resident": [1024], "hosted": [1024], "runs": 1},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
