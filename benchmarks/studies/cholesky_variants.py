"""Orders of Cholesky's tasks: one graph, walked to the right, to the left, or from the top.

right-looking   a finished column updates all columns to its right at once
left-looking    a column gets all its updates just before it is factored
by rows         a row of tiles is finished after all rows above it (bordered, or up-looking)
program         the library's, with the same tiles: right-looking in wide calls, and on a GPU with
                look-ahead
library         LAPACK's or cuSOLVER's potrf
one kernel      on a GPU, a small matrix in one launch: that of stacks, with a stack of one

The first three run the tasks of one graph one by one, on columns of tiles or tile by tile, in
different topological orders, on one queue.  So the calls are the same in all orders: a left-looking
column does not get its updates as one long product.  All factors are compared with the library's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

from hetero_la.algorithms.cholesky import cholesky_tasks
from hetero_la.cli.main import main
from hetero_la.scheduler.graph.task_graph import Granularity, TaskGraph
from hetero_la.scheduler.graph.tasks import Task
from hetero_la.scheduler.run.inline import run_in_order
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
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import CHOLESKY
from hetero_la.studies.factorizations.runs import (
    ResidentRuns,
    Timed,
    free_gpus,
    seconds_in_turns,
)  # fmt: skip
from hetero_la.tiles.arrays.transfer import array_module
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.kernels.gpu.batched.arrays import MOST
from hetero_la.tiles.kernels.gpu.batched.factors import factor_cholesky
from hetero_la.tiles.storage.layout import TileLayout

RIGHT, LEFT, ROWS = "right-looking", "left-looking", "by rows"
PROGRAM, LIBRARY, FUSED = "program", "library", "one kernel"
#: Largest relative difference of two correct factors.
_LIMIT = 1e-10


def left_looking(task: Task) -> tuple[int, ...]:
    """Return the place of a task where each column gets all its updates at once."""
    return task.column, task.index


def by_rows(task: Task) -> tuple[int, ...]:
    """Return the place of a task, of tiles, where each row of tiles is finished at once."""
    rows = [region.start for region in task.updates if region.name == "A"]
    return max(rows, default=task.step), task.index


def right_looking(task: Task) -> tuple[int, ...]:
    """Return the place of a task in the builder's order, step by step."""
    return (task.index,)


#: Variants: their order, the size of their tasks, and the place of a task.
VARIANTS: tuple[tuple[str, Granularity, Callable[[Task], tuple[int, ...]]], ...] = (
    (RIGHT, "column", right_looking), (LEFT, "column", left_looking),
    (RIGHT, "tile", right_looking), (LEFT, "tile", left_looking), (ROWS, "tile", by_rows),
)  # fmt: skip


def order_of(graph: TaskGraph, place: Callable[[Task], tuple[int, ...]]) -> list[int]:
    """Return the tasks of a graph in the order of their places.

    Examples
    --------
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> graph = cholesky_tasks(TileLayout(6, 6, 2))
    >>> [graph.tasks[index].kind for index in order_of(graph, left_looking)][3:7]
    ['herk', 'potrf', 'trtri_n', 'trmm_rc']
    """
    return [task.index for task in sorted(graph.tasks, key=place)]


def _in_order(runs: ResidentRuns, graph: TaskGraph, order: list[int], reference: Any) -> float:
    """Return the seconds of a graph's tasks in an order; raise if the factor is wrong."""
    a = _fresh(runs)
    with runs.device.activate():
        run = partial(run_in_order, graph, order, a, runs.device, KernelOptions())
        seconds = seconds_of(run)
    _check(a, reference)
    return seconds


def _fresh(runs: ResidentRuns) -> Any:
    """Return a new copy of the matrix."""
    a, _ = runs.storage(runs.plan()).home(runs.device, runs.n)
    return a


def _check(found: Any, reference: Any) -> None:
    """Raise unless the lower triangle is that of the reference."""
    xp = array_module(found)
    difference = abs(xp.tril(found) - reference).max() / abs(reference).max()
    if not float(difference) < _LIMIT:
        raise AssertionError(f"factors are off by {float(difference):.1e} of the largest entry")


def _by_library(runs: ResidentRuns, reference: Any) -> float:
    """Return the seconds of LAPACK or cuSOLVER, in place; raise if the factor is wrong."""
    a = _fresh(runs)
    if runs.gpu:
        seconds = CHOLESKY.cusolver(a)
    else:
        factor = partial(scipy.linalg.cholesky, lower=True, overwrite_a=True, check_finite=False)
        seconds = seconds_of(lambda: factor(a))
    _check(a, reference)
    return seconds


def _in_one_kernel(runs: ResidentRuns, reference: Any) -> float:
    """Return the seconds of the kernel for stacks; raise if the factor is wrong."""
    import cupy

    a, made = _fresh(runs), []

    def complete() -> None:
        made.append(factor_cholesky(a[None]).factors[0])
        cupy.cuda.Device().synchronize()

    seconds = seconds_of(complete)
    _check(made[0], reference)
    return seconds


def _reference(runs: ResidentRuns) -> Any:
    """Return the factor that all others are compared with."""
    a = _fresh(runs)
    if isinstance(a, np.ndarray):
        return np.linalg.cholesky(a)
    import cupy

    return cupy.linalg.cholesky(a)


def measure(run: StudyRun) -> Iterator[Row]:
    """Time all variants in turns, on the CPU and on a GPU."""
    places = {"CPU": False}
    if run.has_gpus(1, "variants on a GPU"):
        places["GPU"] = True
    for place, gpu in places.items():
        for n in run.sizes[place]:
            run.report(f"{place}, n = {n}")
            nb = min(run.sizes[f"{place} tile"], n // 4)
            runs = ResidentRuns(CHOLESKY, n, gpu)
            plan, reference = runs.plan(nb=nb), _reference(runs)
            timed: dict[tuple[str, str], Timed] = {}
            for name, granularity, key in VARIANTS:
                graph = cholesky_tasks(TileLayout(n, n, nb), granularity)
                order = order_of(graph, key)
                timed[name, granularity] = partial(_in_order, runs, graph, order, reference)
            check = partial(_check, reference=reference)
            # Random matrices depend on tiles: those of the plan by default, as in `_fresh`.
            program = partial(runs.seconds, plan, matrix_of=runs.plan(), check=check)
            timed[PROGRAM, "wide"] = program
            timed[LIBRARY, ""] = partial(_by_library, runs, reference)
            if gpu and n <= MOST:
                timed[FUSED, ""] = partial(_in_one_kernel, runs, reference)
            yield from _rows(run, place, n, timed)
            del timed, reference
            free_gpus(int(gpu))


def _rows(run: StudyRun, place: str, n: int, timed: dict[tuple[str, str], Timed]) -> Iterator[Row]:
    taken = seconds_in_turns({str(key): call for key, call in timed.items()}, run.sizes["turns"])
    for variant, tasks in timed:
        found = spread(taken[str((variant, tasks))])
        yield {
            "table": "variants", "place": place, "n": n, "variant": variant, "tasks": tasks or None,
            **found, "flop/s": CHOLESKY.flops(n) / found["seconds"],
        }  # fmt: skip


def find(rows: Rows) -> list[str]:
    """Say how far apart the variants are at the largest order, and of the one kernel at its own."""
    found = []
    for place in sorted(values_of(rows, "place"), key=lambda place: place != "GPU"):
        shown = rows_of(rows, "variants", place=place)
        found.append(
            f"On the {place} {_beside(shown, (RIGHT, 'column'), 'right-looking by columns')}"
        )
        if any(row["variant"] == FUSED for row in shown):
            found.append(f"On the {place} {_beside(shown, (FUSED, None), 'one kernel')}")
    return found


def _beside(rows: Rows, base: tuple[str, str | None], name: str) -> str:
    """Compare all with one of them at the largest order that it has, with the range of its own."""
    (*_, own) = sorted(
        rows_of(rows, "variants", variant=base[0], tasks=base[1]), key=lambda row: row["n"]
    )
    text = ", ".join(
        f"{_name(row)} {row['seconds'] / own['seconds']:.2f}"
        for row in rows_of(rows, "variants", n=own["n"])
        if row is not own
    )
    least, most = (own[end] / own["seconds"] for end in ("least", "most"))
    return (
        f"at n = {own['n']}, times over those of {name} (which vary from {least:.2f} to "
        f"{most:.2f}): {text}."
    )


def _name(row: Row) -> str:
    of_graph = row["variant"] in (RIGHT, LEFT, ROWS)
    return f"{row['variant']} ({row['tasks']}s)" if of_graph else str(row["variant"])


def draw(figure: Any, rows: Rows) -> None:
    """Draw the rates over the order, for each place."""
    places = values_of(rows, "place")
    for axes, place in zip(panels(figure, len(places)), places, strict=True):
        shown = rows_of(rows, "variants", place=place)
        series = dict.fromkeys((row["variant"], row.get("tasks")) for row in shown)
        for i, (variant, tasks) in enumerate(series):
            of_line = [r for r in shown if (r["variant"], r.get("tasks")) == (variant, tasks)]
            rates = [{**row, "Gflop/s": row["flop/s"] / 1e9} for row in of_line]
            label = f"{variant}, {tasks}s" if variant in (RIGHT, LEFT, ROWS) else variant
            line(axes, rates, "n", "Gflop/s", label, i)
        finish(axes, f"Cholesky, {place}", "order n", "Gflop/s")


STUDY = Study(
    name="cholesky_variants",
    question="Does it matter in which order the tasks of Cholesky are done?",
    source="GPU-only LU and Cholesky, 2018",
    original="left-looking and right-looking variants within 10 % of each other",
    tables=(
        StudyTable(
            "variants", "one graph in several orders",
            {"place": WORD, "n": number(), "variant": WORD, "tasks": WORD, **SECONDS,
             "flop/s": rate("flop/s")},
        ),
    ),
    sizes={
        "CPU": [512, 1024, 2048], "CPU tile": 128,
        "GPU": [128, 256, 512, 1024, 2048, 4096, 8192, 16384], "GPU tile": 1024, "turns": 5,
    },
    quick={"CPU": [128, 192], "CPU tile": 32, "GPU": [256, 1024], "GPU tile": 256, "turns": 1},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
