"""Tile sizes: one for all, in two levels, or a sequence, by rule or by dynamic programming.

one size          every tile has the same, the best of several
half              large tiles up to half of the matrix, then tiles of half their size
two levels        up to half of the steps, narrow panels in blocks whose panels update the rest at
                  once (LU with partial pivoting)
predicted stages  the best sequence by Bellman's recursion over the stages of the run, from panel to
                  panel; each depends on where its tile begins, on its size, and on that of the tile
                  before, as the library predicts it from its profile or a few short kernels
measured triples  the same recursion over stages that are measured: in runs whose tiles have one
                  size, or two by turns
default           what the library takes

The fastest of many by noisy medians looks faster than it is.  So the best of each way, the best
single size included, are timed again in turns, and gains are of these times alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.cli.main import main
from hetero_la.execution.timeline import TracedRun
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.scheduler.predict.estimate import Stages
from hetero_la.scheduler.predict.tile_sizes import SearchRule, best_sizes
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.studies.common.columns import SECONDS, WORD, number, rate, signed
from hetero_la.studies.common.plots import finish, line, panels
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
from hetero_la.studies.factorizations.problems import FACTORIZATIONS
from hetero_la.studies.factorizations.runs import ResidentRuns, free_gpus, seconds_in_turns
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.kernels.spec import SPECS, Role
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_of_cut, tiles_texts

ONE, HALF, TWO, DEFAULT = "one size", "half", "two levels", "default"
PROGRAMMING, MEASURED = "predicted stages", "measured triples"
#: Size of the tile before (0: none) and of the tile -> where the tile begins -> seconds.
Triples = dict[tuple[int, int], dict[int, float]]
#: Panels in a block of two levels.
_PANELS = (2, 4)


def half_as_large(n: int, nb: int) -> TileSizes:
    """Return tiles of size nb up to half of the matrix, and half as large ones behind that.

    Examples
    --------
    >>> half_as_large(1024, 256)
    (256, 256, 128)
    """
    return (*[nb] * -(-n // (2 * nb)), nb // 2)


def programmed(routine: str, n: int, gpu: bool, sizes: Sequence[int]) -> TileSizes:
    """Return the best sequence of tile sizes, as far as this machine is known."""
    model = machine_model((calling_thread(gpu=0 if gpu else None),))
    layout = TileLayout(n, n, sizes[0])
    stages = Stages(ROUTINES[routine].tasks, layout, model, [0], None, "float64")
    rule = SearchRule(lookahead=gpu, shrinking=True)
    ((_, widths),) = best_sizes(stages, n, sizes, max(sizes), [rule])
    return sizes_of_cut(widths)


def by_turns(n: int, first: int, second: int) -> TileSizes:
    """Return tiles of two sizes, by turns.

    Examples
    --------
    >>> by_turns(100, 32, 16)
    (32, 16, 32, 16, 4)
    """
    sizes: list[int] = []
    for size in itertools.cycle((first, second)):
        if not (rest := n - sum(sizes)):
            return tuple(sizes)
        sizes.append(min(size, rest))
    raise AssertionError("a cycle does not end")


def stages_of(run: TracedRun) -> Iterator[tuple[int, int, int, float]]:
    """Yield, for each tile, the size before it, its own, where it begins, and its stage's seconds.

    A stage is from the end of the panel before, or the run's begin, until that of the panel.
    """
    ends: dict[int, float] = {}
    spans = run.workers[0].spans.tolist()
    for instruction, (_, stop) in zip(run.plan.programs[0].instructions, spans, strict=True):
        if isinstance(instruction, CallKernel) and SPECS[instruction.kind].role is Role.PANEL:
            ends[instruction.step] = max(stop, ends.get(instruction.step, stop))
    began, before, start = run.began, 0, 0
    for step, nb in enumerate(run.plan.layout.column_widths):
        yield before, nb, start, ends[step] - began
        began, before, start = ends[step], nb, start + nb


def measured_triples(runs: ResidentRuns, sizes: Sequence[int], repeats: int) -> Triples:
    """Return the seconds of stages, of runs with tiles of one size and of each two by turns."""
    found: defaultdict[tuple[int, int, int], list[float]] = defaultdict(list)
    for pair in itertools.combinations_with_replacement(sorted(sizes, reverse=True), 2):
        plan = runs.plan(nb=by_turns(runs.n, *pair))
        for repeat in range(repeats + 1):
            timeline = runs.timeline(plan)
            for before, nb, start, seconds in stages_of(timeline) if repeat else ():
                found[before, nb, start].append(seconds)
    triples: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for (before, nb, start), taken in found.items():
        triples[before, nb][start] = statistics.median(taken)
    return triples


def best_by_triples(n: int, sizes: Sequence[int], triples: Triples) -> TileSizes:
    """Return the sequence of tile sizes that do not grow, with the least sum of stages.

    Between the places at which a stage was measured, its seconds are interpolated.  What comes
    behind the last panel is taken for the same in all sequences.

    Examples
    --------
    >>> triples = {(0, 2): {0: 3}, (2, 2): {2: 2}, (0, 4): {0: 4}, (4, 4): {4: 4}, (4, 2): {4: 1}}
    >>> best_by_triples(8, [2, 4], triples)
    (4, 2)
    """

    def seconds(before: int, nb: int, start: int) -> float:
        places = sorted(triples[before, nb])
        return float(np.interp(start, places, [triples[before, nb][place] for place in places]))

    best: dict[tuple[int, int], tuple[float, int]] = {}
    for start in reversed(range(0, n, math.gcd(*sizes))):
        for before in sizes if start else [0]:
            allowed = [
                nb for nb in sizes if (before, nb) in triples and (nb <= before or not start)
            ]
            fitting = [nb for nb in allowed if start + nb <= n] or allowed[:1]
            best[start, before] = min(
                (
                    (seconds(before, nb, start) + best.get((start + nb, nb), (0.0, 0))[0], nb)
                    for nb in fitting
                ),
                default=(math.inf, 0),  # no run had such stages
            )
    widths = [best[0, 0][1]]
    while (start := sum(widths)) < n:
        widths.append(best[start, widths[-1]][1])
    return sizes_of_cut([*widths[:-1], n - sum(widths[:-1])])


def candidates(
    runs: ResidentRuns, sizes: Sequence[int], repeats: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ways to choose tiles, with the options of a plan."""
    routine, n = runs.problem.routine, runs.n
    small = [nb for nb in sizes if 2 * nb <= n]
    for nb in small:
        yield ONE, {"nb": nb}
    for nb in small:
        if 4 * nb <= n:
            yield HALF, {"nb": half_as_large(n, nb)}
    if ROUTINES[routine].two_levels:
        for nb in small:
            for panels_of_block in _PANELS:
                if 2 * panels_of_block * nb <= n:
                    yield TWO, {"nb": nb, "coarse": panels_of_block * nb}
    yield PROGRAMMING, {"nb": programmed(routine, n, runs.gpu, sizes)}
    yield MEASURED, {"nb": best_by_triples(n, small, measured_triples(runs, small, repeats))}
    yield DEFAULT, {}


def measure(run: StudyRun) -> Iterator[Row]:
    """Time all ways in turns, and the best of each again, on the CPU and on a GPU."""
    places = [False, True] if run.has_gpus(1, "tiles on a GPU") else [False]
    for gpu in places:
        place, kind = ("1 GPU", "gpu") if gpu else ("CPU", "cpu")
        for routine, problem in FACTORIZATIONS.items():
            for n in run.sizes[kind]:
                run.report(f"{routine}, {place}, n = {n}")
                runs = ResidentRuns(problem, n, gpu)
                common = {"place": place, "routine": routine, "n": n}
                yield from _rows(run, runs, common, run.sizes[f"{kind} tiles"])
                free_gpus(int(gpu))


def _text(plan: Plan) -> str:
    tiles, blocks, _ = tiles_texts(plan.layout.nb, plan.options.coarse, plan.lookahead)
    return f"{tiles}, {blocks}" if blocks else tiles


def _rows(run: StudyRun, runs: ResidentRuns, common: Row, sizes: Sequence[int]) -> Iterator[Row]:
    """Yield a row for each choice of tiles, and one for the best of each way, timed again."""
    plans = {
        (way, _text(plan := runs.plan(**options))): plan
        for way, options in candidates(runs, sizes, run.sizes["turns"])
    }
    taken = _in_turns(runs, plans, run.sizes["turns"])
    ways: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for (way, tiles), plan in plans.items():
        ways[way].append((way, tiles))
        found = spread(taken[way, tiles])
        yield {
            "table": "tiles", **common, "way": way, "tiles": tiles, **found,
            "flop/s": plan.flops / found["seconds"], "predicted": plan.predicted_seconds,
        }  # fmt: skip
    best = [min(keys, key=lambda key: statistics.median(taken[key])) for keys in ways.values()]
    again = _in_turns(runs, {key: plans[key] for key in best}, run.sizes["turns again"])
    (base,) = (seconds for (way, _), seconds in again.items() if way == ONE)
    for (way, tiles), seconds in again.items():
        gains = [one / other - 1 for one, other in zip(base, seconds, strict=True)]
        yield {
            "table": "best", **common, "way": way, "tiles": tiles, "of": len(ways[way]),
            **spread(seconds), "gain": statistics.median(gains), "least gain": min(gains),
            "most gain": max(gains),
        }  # fmt: skip


def _in_turns(
    runs: ResidentRuns, plans: dict[tuple[str, str], Plan], turns: int
) -> dict[tuple[str, str], list[float]]:
    taken = seconds_in_turns(
        {str(key): partial(runs.seconds, plan) for key, plan in plans.items()}, turns
    )
    return {key: taken[str(key)] for key in plans}


def find(rows: Rows) -> list[str]:
    """Say what the best way gains over one size, at each place's largest order."""
    found = []
    for place in sorted(values_of(rows, "place"), key=lambda place: "GPU" not in place):
        for routine in values_of(rows, "routine"):
            shown = rows_of(rows, "best", place=place, routine=routine)
            n = max(row["n"] for row in shown)
            at = {row["way"]: row for row in rows_of(shown, "best", n=n)}
            first = min(at.values(), key=lambda row: row["seconds"])
            others = ", ".join(
                f"{way} {signed(row['gain'])}" for way, row in at.items() if way != ONE
            )  # fmt: skip
            found.append(
                f"{place}, {routine} of n = {n}: {first['way']} ({first['tiles']}) is best, in "
                f"{in_seconds(first['seconds'])}; gains over the best single size, both timed "
                f"again: {others}."
            )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw the gain of each way over the best single size, over the order."""
    places, routines = values_of(rows, "place"), values_of(rows, "routine")
    drawn = iter(panels(figure, len(places) * len(routines), across=len(routines)))
    for place in places:
        for routine in routines:
            axes = next(drawn)
            ways = [HALF, TWO, PROGRAMMING, MEASURED, DEFAULT]
            for i, way in enumerate(ways):
                shown = rows_of(rows, "best", place=place, routine=routine, way=way)
                percents = [{**row, "gain": 100 * row["gain"]} for row in shown]
                if percents:
                    line(axes, percents, "n", "gain", way, i)
            axes.axhline(0, color="black", lw=0.8)
            finish(axes, f"{routine}, {place}", "order n", "faster than one size, %",
                   logarithmic="x")  # fmt: skip


_GAINS = ("gain", "least gain", "most gain")
_TIMED: dict[str, Any] = {"routine": WORD, "place": WORD, "n": number(), "way": WORD, "tiles": WORD}

STUDY = Study(
    name="two_level",
    question="Are several tile sizes, or two levels of blocking, worth their trouble?",
    source="Volkov and Demmel 2008, 5",
    original="two levels and sizes by dynamic programming gain 4 to 7 %",
    tables=(
        StudyTable(
            "best", "the best of each way, timed again, and its gain over the best single size",
            {**_TIMED, "of": str, **SECONDS, **dict.fromkeys(_GAINS, signed)},
        ),
        StudyTable(
            "tiles", "all of them",
            {**_TIMED, **SECONDS, "flop/s": rate("flop/s"), "predicted": in_seconds},
        ),
    ),
    sizes={
        "cpu": [1024, 2048], "cpu tiles": [64, 128, 256],
        "gpu": [4096, 8192, 16384, 32768], "gpu tiles": [256, 512, 1024], "turns": 2,
        "turns again": 5,
    },
    quick={
        "cpu": [256], "cpu tiles": [32, 64], "gpu": [2048], "gpu tiles": [256, 512], "turns": 1,
        "turns again": 2,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
