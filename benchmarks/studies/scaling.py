"""How factorizations scale: one matrix on more and more workers, and larger matrices on more.

Strong scaling: the matrix is the same, and the speed-up is the time of one worker over that of
several.  Weak scaling: the memory of each worker is, so that n grows as the root of their number;
the efficiency is the rate of several over that of one, and over their number.

Workers are threads of this process, which hand panels over by reference or from GPU to GPU, or
processes with a GPU or a core each, which exchange them by NCCL or shared memory.  In both, the
columns are with the workers beforehand, and the factors stay there.  In both, the time begins
before the run is planned: processes run lazily, and a lazy call plans by itself.  Threads factor in
place; processes keep the matrix, as a lazy call must, and write the factors to new arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import hetero_la
from hetero_la.cli.main import main
from hetero_la.planning.plan import Plan
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.plots import finish, line, panels
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
from hetero_la.studies.factorizations import processes
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.runs import ClusterRuns, Timed, free_gpus
from hetero_la.tiles.arrays.counted import in_units
from hetero_la.tiles.kernels.cpu.device import usable_cores

THREADS, PROCESSES = "threads", "processes"
#: Blocks of columns of each process.
_BLOCKS = 4
#: Seconds of a run that needs no warm-up.
_LONG = 2.0
#: Orders of weak scaling are multiples of it.
_ROUND = 64

#: Prepares a factorization of an order; returns what runs it.
Prepare = Callable[[Factorization, int], Timed]


def weak_order(n: int, workers: int) -> int:
    """Return the order at which each worker has as much of the matrix as one has at order n.

    Examples
    --------
    >>> [weak_order(1024, workers) for workers in (1, 2, 4)]
    [1024, 1472, 2048]
    """
    return round(n * workers**0.5 / _ROUND) * _ROUND


@contextmanager
def _threads(workers: int, gpus: bool) -> Iterator[Prepare]:
    """Start workers that are threads; yield what prepares their runs."""
    size: dict[str, Any] = {"gpus": workers, "cpus": 0} if gpus else {"cpus": workers, "gpus": 0}

    def prepare(problem: Factorization, n: int) -> Timed:
        free_gpus(workers * gpus)
        return partial(_planned, ClusterRuns(cluster, problem, n))

    with hetero_la.Cluster(**size, blas_threads=1) as cluster:
        yield prepare


def _planned(runs: ClusterRuns) -> float:
    """Return the seconds to plan a run, and to run it."""
    plans: list[Plan] = []
    planning = seconds_of(lambda: plans.append(runs.plan()))
    return planning + runs.seconds(plans[0])


@contextmanager
def _processes(workers: int, gpus: bool) -> Iterator[Prepare]:
    """Start workers that are processes; yield what prepares their runs."""

    def prepare(problem: Factorization, n: int) -> Timed:
        processes.wait_until_gone(client)
        client.run(processes.free_memory)
        blocks = processes.blocks(client, problem.routine, n, _BLOCKS * workers)
        return partial(processes.lazily, client, problem.routine, blocks)

    with processes.processes(workers, gpus=gpus) as client:
        yield prepare


_WAYS = {THREADS: _threads, PROCESSES: _processes}


def _counts(run: StudyRun, gpus: bool) -> list[int]:
    """Return the numbers of workers that there are; say which are left out."""
    there = run.gpus if gpus else usable_cores()
    wanted = run.sizes["workers"]
    for count in wanted:
        if gpus:
            run.has_gpus(count, f"{count} GPUs")
        elif count > there:
            run.leave_out(f"{count} CPU workers: there are {there} cores")
    return [count for count in wanted if count <= there]


def measure(run: StudyRun) -> Iterator[Row]:
    """Time strong and weak scaling, of threads and of processes, of GPUs or of cores."""
    gpus = run.has_gpus(1, "GPUs of one process, and of several")
    place = "GPU" if gpus else "CPU"
    base: dict[tuple[str, ...], float] = {}
    for way, start in _WAYS.items():
        for workers in _counts(run, gpus):
            with start(workers, gpus) as prepare:
                for mode, problem, n in _cases(run, place, workers):
                    what = f"{problem.routine}, {workers} {way}, n = {n}"
                    run.report(f"{what}, {mode}")
                    try:
                        taken = _taken(prepare(problem, n), run.sizes["runs"])
                    except MemoryError as error:
                        run.leave_out(f"{what}: {error}")
                        continue
                    row = _row(mode, place, way, problem, n, workers, taken)
                    key = way, mode, problem.routine, str(n if mode == "strong" else "")
                    if workers == 1:
                        base[key] = row["flop/s"]
                    yield row | _against(row, base.get(key), workers)


def _taken(timed: Timed, runs: int) -> list[float]:
    """Return the seconds of so many runs; a first one that is short is warm-up and not counted."""
    first = timed()
    taken = [timed() for _ in range(runs - 1)]
    return [*taken, timed() if first < _LONG else first]


def _cases(run: StudyRun, place: str, workers: int) -> Iterator[tuple[str, Factorization, int]]:
    for problem in map(FACTORIZATIONS.__getitem__, run.sizes["routines"]):
        for n in run.sizes[f"strong, {place}"]:
            yield "strong", problem, n
        yield "weak", problem, weak_order(run.sizes[f"weak, {place}"], workers)


def _row(
    mode: str, place: str, way: str, problem: Factorization, n: int, workers: int,
    taken: list[float],
) -> Row:  # fmt: skip
    found = spread(taken)
    return {
        "table": mode, "place": place, "way": way, "routine": problem.routine, "n": n,
        "workers": workers, **found, "flop/s": problem.flops(n) / found["seconds"],
    }  # fmt: skip


def _against(row: Row, one: float | None, workers: int) -> dict[str, float]:
    """Return a row's speed-up over the rate of one worker, if it is known, and its efficiency."""
    if one is None:
        return {}
    return {"speed-up": row["flop/s"] / one, "efficiency": row["flop/s"] / one / workers}


def find(rows: Rows) -> list[str]:
    """Say what the largest number of workers gains, at the largest order."""
    most = max(values_of(rows, "workers"))
    return [
        _of_way(rows, way, routine, most)
        for way in values_of(rows, "way")
        for routine in values_of(rows, "routine")
    ]


def _of_way(rows: Rows, way: str, routine: str, most: int) -> str:
    these = {"way": way, "routine": routine, "workers": most}
    compared = [row for row in rows_of(rows, "strong", **these) if "speed-up" in row]
    strong = max(compared, key=lambda row: row["n"])
    weak = next(iter(rows_of(rows, "weak", **these)), {})
    place, speed = (
        "GPU" if strong["place"] == "GPU" else "core",
        in_units(strong["flop/s"], "flop/s"),
    )
    if most == 1:
        return (
            f"{routine} by {way}: one {place} has {speed} at n = {strong['n']}; there is no other."
        )
    there = f"{routine} by {way}: {most} {place}s have {speed} at n = {strong['n']}"
    if "efficiency" not in weak:
        return f"{there}, {strong['speed-up']:.2f} times as much as one."
    return (
        f"{there}, {strong['speed-up']:.2f} times as much as one, and are "
        f"{percent(weak['efficiency'])} efficient at n = {weak['n']}, with as much memory for each."
    )


def draw(figure: Any, rows: Rows) -> None:
    """Draw the speed-up and the efficiency over the number of workers, for each routine."""
    routines = values_of(rows, "routine")
    drawn = iter(panels(figure, 2 * len(routines), across=len(routines)))
    for mode, entry in (("strong", "speed-up"), ("weak", "efficiency")):
        for routine in routines:
            axes, shown = next(drawn), rows_of(rows, mode, routine=routine)
            series = [(way, n) for way in values_of(rows, "way") for n in values_of(shown, "n")]
            if mode == "weak":
                series = [(way, None) for way in values_of(rows, "way")]
            for i, (way, n) in enumerate(series):
                of_line = rows_of(shown, mode, way=way, **({"n": n} if n else {}))
                of_line = [row for row in of_line if entry in row]
                line(axes, of_line, "workers", entry, f"{way}, n = {n}" if n else way, i)
            counts = values_of(rows, "workers")
            ideal = counts if mode == "strong" else [1.0] * len(counts)
            axes.plot(counts, ideal, color="black", lw=0.8, ls="--", label="ideal")
            finish(axes, f"{routine}, {mode} scaling", "workers", entry, logarithmic="x")
            axes.set_xticks(counts, labels=[str(count) for count in counts])
            axes.set_ylim(bottom=0)


_COLUMNS: dict[str, Show] = {
    "routine": WORD, "way": WORD, "place": WORD, "n": number(), "workers": str, **SECONDS,
    "flop/s": rate("flop/s"),
}  # fmt: skip

STUDY = Study(
    name="scaling",
    question="How much faster are several GPUs, and how much larger can matrices be?",
    source="Volkov and Demmel 2008, Figure 9",
    original="two GPUs are 1.74 times as fast as one",
    tables=(
        StudyTable("strong", "one matrix", {**_COLUMNS, "speed-up": number()}),
        StudyTable(
            "weak", "as much memory for each worker", {**_COLUMNS, "efficiency": percent}
        ),
    ),
    sizes={
        "routines": ["lu", "cholesky", "qr"], "workers": [1, 2, 4, 8],
        "strong, GPU": [16384, 32768, 65536], "weak, GPU": 16384,
        "strong, CPU": [1024, 2048], "weak, CPU": 1024, "runs": 3,
    },
    quick={
        "routines": ["lu"], "workers": [1, 2], "strong, GPU": [2048], "weak, GPU": 2048,
        "strong, CPU": [192], "weak, CPU": 192, "runs": 1,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
