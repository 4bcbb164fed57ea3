"""Tile sizes: one for all, in two levels, or a sequence, by rule or by dynamic programming.

one size      every tile has the same, the best of several
half          large tiles up to half of the matrix, then tiles of half their size
two levels    up to half of the steps, narrow panels in blocks whose panels update the rest at once
              (LU with partial pivoting)
programming   the best sequence by Bellman's recursion over the stages of the run, of which each
              depends on where its tile begins, on its size, and on that of the tile before
default       what the library takes

The recursion knows the machine by its profile, or by a few short kernels; so do the predictions.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.cli.main import main
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.scheduler.predict.estimate import Stages
from hetero_la.scheduler.predict.tile_sizes import SearchRule, best_sizes
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.studies.common.columns import SECONDS, WORD, number, rate
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
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_of_cut, tiles_texts

ONE, HALF, TWO, PROGRAMMING, DEFAULT = "one size", "half", "two levels", "programming", "default"
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


def candidates(routine: str, n: int, gpu: bool, sizes: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield ways to choose tiles, with the options of a plan."""
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
    yield PROGRAMMING, {"nb": programmed(routine, n, gpu, sizes)}
    yield DEFAULT, {}


def measure(run: StudyRun) -> Iterator[Row]:
    """Time all ways in turns, on the CPU and on a GPU."""
    places = [False, True] if run.has_gpus(1, "tiles on a GPU") else [False]
    for gpu in places:
        place, kind = ("1 GPU", "gpu") if gpu else ("CPU", "cpu")
        for routine, problem in FACTORIZATIONS.items():
            for n in run.sizes[kind]:
                run.report(f"{routine}, {place}, n = {n}")
                runs = ResidentRuns(problem, n, gpu)
                plans = {
                    (way, _text(plan := runs.plan(**options))): plan
                    for way, options in candidates(routine, n, gpu, run.sizes[f"{kind} tiles"])
                }
                timed = {str(key): partial(runs.seconds, plan) for key, plan in plans.items()}
                taken = seconds_in_turns(timed, run.sizes["turns"])
                common = {"place": place, "routine": routine, "n": n}
                yield from _rows(common, plans, {key: taken[str(key)] for key in plans})
                free_gpus(int(gpu))


def _text(plan: Plan) -> str:
    tiles, blocks, _ = tiles_texts(plan.layout.nb, plan.options.coarse, plan.lookahead)
    return f"{tiles}, {blocks}" if blocks else tiles


def _rows(
    common: Row, plans: dict[tuple[str, str], Plan], taken: dict[tuple[str, str], list[float]]
) -> Iterator[Row]:
    """Yield a row for each choice of tiles, and one for the best of each way."""
    best: dict[str, tuple[str, str]] = {}
    for (way, tiles), plan in plans.items():
        found = spread(taken[way, tiles])
        yield {
            "table": "tiles", **common, "way": way, "tiles": tiles, **found,
            "flop/s": plan.flops / found["seconds"], "predicted": plan.predicted_seconds,
        }  # fmt: skip
        if way not in best or found["seconds"] < statistics.median(taken[best[way]]):
            best[way] = way, tiles
    base = taken[best[ONE]]
    for way, key in best.items():
        gains = [one / other for one, other in zip(base, taken[key], strict=True)]
        yield {
            "table": "best", **common, "way": way, "tiles": key[1], **spread(taken[key]),
            "gain": statistics.median(gains) - 1,
        }  # fmt: skip


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
                f"{way} {row['gain']:+.1%}" for way, row in at.items() if way != ONE
            )  # fmt: skip
            found.append(
                f"{routine} of n = {n} on the {place}: {first['way']} ({first['tiles']}) is best, "
                f"in {in_seconds(first['seconds'])}; against the best single size: {others}."
            )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw the gain of each way over the best single size, over the order."""
    places, routines = values_of(rows, "place"), values_of(rows, "routine")
    drawn = iter(panels(figure, len(places) * len(routines), across=len(routines)))
    for place in places:
        for routine in routines:
            axes = next(drawn)
            ways = [HALF, TWO, PROGRAMMING, DEFAULT]
            for i, way in enumerate(ways):
                shown = rows_of(rows, "best", place=place, routine=routine, way=way)
                percents = [{**row, "gain": 100 * row["gain"]} for row in shown]
                if percents:
                    line(axes, percents, "n", "gain", way, i)
            axes.axhline(0, color="black", lw=0.8)
            finish(axes, f"{routine}, {place}", "order n", "faster than one size, %",
                   logarithmic="x")  # fmt: skip


_TIMED: dict[str, Any] = {"routine": WORD, "place": WORD, "n": number(), "way": WORD, "tiles": WORD}

STUDY = Study(
    name="two_level",
    question="Are several tile sizes, or two levels of blocking, worth their trouble?",
    source="Volkov and Demmel 2008, 5",
    original="two levels and sizes by dynamic programming gain 4 to 7 %",
    tables=(
        StudyTable(
            "best", "the best of each way, and its gain over the best single size",
            {**_TIMED, **SECONDS, "gain": lambda value: f"{value:+.1%}"},
        ),
        StudyTable(
            "tiles", "all of them",
            {**_TIMED, **SECONDS, "flop/s": rate("flop/s"), "predicted": in_seconds},
        ),
    ),
    sizes={
        "cpu": [1024, 2048], "cpu tiles": [64, 128, 256],
        "gpu": [4096, 8192, 16384, 32768], "gpu tiles": [256, 512, 1024], "turns": 3,
    },
    quick={
        "cpu": [256], "cpu tiles": [32, 64], "gpu": [2048], "gpu tiles": [256, 512], "turns": 1,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
