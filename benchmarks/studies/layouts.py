"""Row-major or column-major: rows that are swapped, matrices that are turned, padded columns.

A step of LU swaps rows.  Three ways move the same ones: pair after pair in a column-major matrix,
as LAPACK does; by their net permutation, so that each row that moves is read and written once; and
by that in a row-major matrix, where a row is one piece.  A matrix in the other order has to be
turned first.  Where columns are powers of two apart they share places of caches; some rows of
padding between them end that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hetero_la
from hetero_la.cli.main import main
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.run.inline import run_inline
from hetero_la.scheduler.run.runner import Runner
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
from hetero_la.studies.common.timing import Call, samples, spread
from hetero_la.studies.factorizations import ablation
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import LU
from hetero_la.studies.factorizations.runs import ResidentRuns, clock_of, seconds_in_turns
from hetero_la.tiles.arrays.counted import in_units
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Device, KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.pivots import permutation
from hetero_la.tiles.storage.shard import ArrayStorage

PAIRS, NET, ROW_MAJOR = "pair after pair", "net permutation", "net permutation, row-major"
COPIED, TURNED = "copied", "turned"
_OPTIONS = KernelOptions()


class ArraysPlace:
    """A device, and NumPy or CuPy for its arrays."""

    def __init__(self, gpu: bool) -> None:
        self.name = "GPU" if gpu else "CPU"
        self.device: Device = GpuDevice(0, "caller") if gpu else CpuDevice("caller")
        self.xp: Any = np
        if gpu:
            import cupy

            self.xp = cupy
        self.clock = clock_of(self.device)

    def call(self, kernel: str, *arrays: Any) -> None:
        """Call a kernel on the queue of updates."""
        self.device.call(kernel, Queue.UPDATE, arrays, _OPTIONS)

    def random(self, rows: int, columns: int, padding: int = 0, order: str = "F") -> Any:
        """Make a random matrix, with so many rows of padding below it."""
        rng = np.random.default_rng(0)
        made = self.xp.empty((rows + padding, columns), "float64", order=order)
        made[...] = self.xp.asarray(rng.standard_normal(made.shape))
        self.wait()
        return made[:rows]

    def wait(self) -> None:
        """Wait until all that was enqueued has run, on any stream."""
        if self.xp is not np:
            self.xp.cuda.Device().synchronize()


def _swaps(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield rates of the ways to swap rows; of each, the bytes of rows that move count."""
    width = run.sizes["swaps"]
    rng = np.random.default_rng(1)
    for n in run.sizes[f"{place.name} orders"]:
        run.report(f"swaps, {place.name}, n = {n}")
        pivots = np.array([rng.integers(i, n) for i in range(width)], np.int32)
        ipiv, net = place.xp.asarray(pivots), place.xp.empty((2, 2 * width), "int32", order="F")
        place.wait()
        place.call("netperm", ipiv, net)
        place.wait()
        moves = net.get() if hasattr(net, "get") else net
        to, whence = moves[:, moves[0] >= 0]
        to, whence = place.xp.asarray(to), place.xp.asarray(whence)
        place.wait()
        a, rows = place.random(n, n), place.random(n, n, order="C")
        _check_swaps(place, a, rows, (pivots, ipiv, net, to, whence))
        serial = ablation.swaps_one_by_one() if place.name == "GPU" else nullcontext()
        swap = partial(place.call, "swap", ipiv, net, a)
        moved = 2 * len(to) * n * a.itemsize
        with serial:
            yield _swap_row(place, PAIRS, n, swap, moved)
        net_swap = swap if place.name == "GPU" else partial(_gather, a, to, whence)
        yield _swap_row(place, NET, n, net_swap, moved)
        yield _swap_row(place, ROW_MAJOR, n, partial(_gather, rows, to, whence), moved)


def _gather(a: Any, to: Any, whence: Any) -> None:
    a[to] = a[whence]


def _check_swaps(place: ArraysPlace, a: Any, rows: Any, given: tuple[Any, ...]) -> None:
    """Raise unless the kernel and the net permutation swap rows as LAPACK's loop does."""
    pivots, ipiv, net, to, whence = given
    given_rows = a.copy()
    wanted = a[place.xp.asarray(permutation(pivots, len(a)))]
    for matrix, swap in ((a, partial(place.call, "swap", ipiv, net, a)),
                         (rows, partial(_gather, rows, to, whence))):  # fmt: skip
        matrix[...] = given_rows
        place.wait()
        swap()
        place.wait()
        if not bool((matrix == wanted).all()):
            raise AssertionError("rows are not where they belong")


def _swap_row(place: ArraysPlace, way: str, n: int, swap: Call, moved: int) -> Row:
    found = spread(samples(swap, place.clock))
    rate_of = moved / found["seconds"]
    return {"table": "swaps", "place": place.name, "way": way, "n": n, **found, "bytes/s": rate_of}


def _turning(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield rates of a copy, and of one that turns a row-major matrix."""
    for n in run.sizes[f"{place.name} orders"]:
        run.report(f"turning, {place.name}, n = {n}")
        target = place.xp.empty((n, n), "float64", order="F")
        for way, order in ((COPIED, "F"), (TURNED, "C")):
            source = place.random(n, n, order=order)
            copy = partial(place.device.copy, target, source, Queue.UPDATE)
            found = spread(samples(copy, place.clock))
            if not bool((target == source).all()):
                raise AssertionError(f"a matrix that is {way} is another one")
            yield {
                "table": "turning", "place": place.name, "way": way, "n": n, **found,
                "bytes/s": 2 * source.nbytes / found["seconds"],
            }  # fmt: skip


def _padding(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield times of swaps, an update and a whole LU, over the padding of columns."""
    n, width = run.sizes[f"{place.name} padded"], run.sizes["swaps"]
    runs = ResidentRuns(LU, n, place.name == "GPU")
    plan, timed = runs.plan(), {}
    for padding in run.sizes["padding"]:
        a = place.random(n, n, padding)
        panel, row = place.random(n, width, padding), place.random(width, n, padding)
        gemm = partial(place.call, "gemm", panel, row, a)
        timed["update", padding] = partial(place.clock, gemm, 1)
        timed["LU", padding] = partial(_lu, place, runs, plan, (a, a.copy(order="F")))
    run.report(f"padding, {place.name}, n = {n}")
    taken = seconds_in_turns({str(key): call for key, call in timed.items()}, run.sizes["turns"])
    for what, padding in timed:
        found = spread(taken[str((what, padding))])
        yield {
            "table": "padding", "place": place.name, "what": what, "n": n, "padding": padding,
            **found,
        }  # fmt: skip


def _lu(place: ArraysPlace, runs: ResidentRuns, plan: Plan, given: tuple[Any, Any]) -> float:
    """Return the seconds of a plan's run in a padded matrix, which gets the entries of another."""
    a, entries = given
    a[...] = entries
    place.wait()
    job, storage = plan.job(), ArrayStorage(a, a)
    with runs.device.activate():
        return seconds_of(lambda: run_inline(Runner(job, 0, runs.device, storage)))


def _inputs(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield times of `lu_factor` for matrices of both orders, in turns."""
    for n in run.sizes[f"{place.name} orders"]:
        run.report(f"lu_factor, {place.name}, n = {n}")
        timed: dict[str, Callable[[], float]] = {}
        for name, order in (("column-major", "F"), ("row-major", "C")):
            a = place.random(n, n, order=order)
            timed[name] = partial(seconds_of, partial(_complete_lu, place, a))
        for name, taken in seconds_in_turns(timed, run.sizes["turns"]).items():
            yield {
                "table": "inputs", "place": place.name, "order": name, "n": n, **spread(taken)
            }  # fmt: skip


def _complete_lu(place: ArraysPlace, a: Any) -> None:
    hetero_la.lu_factor(a, check_finite=False)
    place.wait()


def measure(run: StudyRun) -> Iterator[Row]:
    """Measure swaps, turning, padding and whole factorizations, on the CPU and on a GPU."""
    gpus = [False, True] if run.has_gpus(1, "the same on a GPU") else [False]
    for gpu in gpus:
        place = ArraysPlace(gpu)
        with place.device.activate():
            for part in (_swaps, _turning, _padding, _inputs):
                yield from part(run, place)


def find(rows: Rows) -> list[str]:
    """Say what net and row-major swaps gain, what turning costs, and what padding does."""
    found = []
    for place in sorted(values_of(rows, "place"), key=lambda place: place != "GPU"):
        n = max(row["n"] for row in rows_of(rows, "swaps", place=place))
        swaps, turns = (
            {row["way"]: row["bytes/s"] for row in rows_of(rows, table, place=place, n=n)}
            for table in ("swaps", "turning")
        )
        inputs = {
            row["order"]: row["seconds"] for row in rows_of(rows, "inputs", place=place, n=n)
        }  # fmt: skip
        found += [
            f"On the {place} at n = {n}, swaps move {in_units(swaps[PAIRS], 'B/s')} pair after "
            f"pair, {in_units(swaps[NET], 'B/s')} by their net permutation, and "
            f"{in_units(swaps[ROW_MAJOR], 'B/s')} in a row-major matrix.",
            f"Turning a matrix on the {place} reaches {turns[TURNED] / turns[COPIED]:.0%} of a "
            f"copy; lu_factor of a row-major matrix takes "
            f"{inputs['row-major'] / inputs['column-major']:.2f} times as long as of a "
            "column-major one.",
        ]
        for what in ("update", "LU"):
            shown = rows_of(rows, "padding", place=place, what=what)
            best = min(shown, key=lambda row: row["seconds"])
            (plain,) = rows_of(shown, "padding", padding=0)
            found.append(
                f"{what} on the {place}: {best['padding']} rows of padding are best, "
                f"{plain['seconds'] / best['seconds'] - 1:+.1%} over none."
            )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates of swaps and turning, times over the padding, and of both orders."""
    swaps, turning, padding, inputs = panels(figure, 4)
    for axes, table in ((swaps, "swaps"), (turning, "turning")):
        for i, (place, way) in enumerate(_series(rows, table, "way")):
            shown = rows_of(rows, table, place=place, way=way)
            drawn = [{**row, "GB/s": row["bytes/s"] / 1e9} for row in shown]
            line(axes, drawn, "n", "GB/s", f"{way}, {place}", i)
        finish(axes, table, "order n", "GB/s")
    for i, (place, what) in enumerate(_series(rows, "padding", "what")):
        shown = rows_of(rows, "padding", place=place, what=what)
        base = shown[0]["seconds"]
        drawn = [{**row, "ratio": row["seconds"] / base} for row in shown]
        line(padding, drawn, "padding", "ratio", f"{what}, {place}", i)
    finish(padding, "columns with padding", "rows of padding", "time / without", logarithmic="")
    for i, (place, order) in enumerate(_series(rows, "inputs", "order")):
        shown = rows_of(rows, "inputs", place=place, order=order)
        line(inputs, shown, "n", "seconds", f"{order}, {place}", i)
    finish(inputs, "lu_factor", "order n", "seconds")


def _series(rows: Rows, table: str, entry: str) -> list[tuple[str, str]]:
    """Return the pairs of a place and an entry's value that a table has."""
    return list(dict.fromkeys((row["place"], row[entry]) for row in rows_of(rows, table)))


_RATE: dict[str, Any] = {
    "place": WORD, "way": WORD, "n": number(), **SECONDS, "bytes/s": rate("B/s")
}  # fmt: skip

STUDY = Study(
    name="layouts",
    question="Row-major or column-major, padded or not: what does the order in memory cost LU?",
    source="Volkov and Demmel 2008, 5; GPU-only LU and Cholesky, 2018",
    original="row-major storage made LU about twice as fast; swaps of all rows of a panel at once "
    "2.4 to 4.9 times",
    tables=(
        StudyTable("swaps", "rows of a step swapped; bytes of rows that move", _RATE),
        StudyTable("turning", "copies of a matrix, from column-major and from row-major", _RATE),
        StudyTable(
            "padding", "over the padding of columns",
            {"place": WORD, "what": WORD, "n": number(), "padding": str, **SECONDS},
        ),
        StudyTable(
            "inputs", "lu_factor of matrices of both orders",
            {"place": WORD, "order": WORD, "n": number(), **SECONDS},
        ),
    ),
    sizes={
        "CPU orders": [512, 1024, 2048], "GPU orders": [1024, 2048, 4096, 8192, 16384],
        "swaps": 256, "CPU padded": 2048, "GPU padded": 8192,
        "padding": [0, 8, 16, 32, 64, 96, 128], "turns": 5,
    },
    quick={
        "CPU orders": [128, 256], "GPU orders": [512, 1024], "swaps": 32, "CPU padded": 256,
        "GPU padded": 1024, "padding": [0, 8, 64], "turns": 1,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
