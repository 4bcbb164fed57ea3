"""Row-major or column-major: rows that are swapped, matrices that are transposed, padded columns.

A step of LU swaps rows.  Three ways move the same ones: pair after pair in a column-major matrix,
as LAPACK does; by their net permutation, so that each row that moves is read and written once; and
by that in a row-major matrix, where a row is one piece.  A matrix in the other order has to be
transposed first.  What that is worth depends on the share of LU's time that its swaps have.  Where
columns are powers of two apart they share places of caches; some rows of padding between them end
that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hetero_la
from hetero_la.cli.main import main
from hetero_la.execution.timeline import TracedRun
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.scheduler.run.inline import run_inline
from hetero_la.scheduler.run.runner import Runner
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate, signed
from hetero_la.studies.common.cuda import bandwidth_of_pins, cuda_source, kernel, launch
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
from hetero_la.studies.factorizations.runs import (
    ResidentRuns,
    cores_alone,
    free_gpus,
    seconds_in_turns,
)  # fmt: skip
from hetero_la.tiles.arrays.counted import in_units
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Device, KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.kernels.gpu.sources import Source
from hetero_la.tiles.kernels.spec import SPECS, Role
from hetero_la.tiles.storage.pivots import permutation
from hetero_la.tiles.storage.shard import ArrayStorage

PAIRS, NET, ROW_MAJOR = "pair after pair", "net permutation", "net permutation, row-major"
COPIED, TRANSPOSED = "copied", "transposed"
_OPTIONS = KernelOptions()
#: Of the largest entry: how far apart factors may be that are made in another order.
_LIMIT = 1e-6
_SWAPS = 256  #: rows of a step


def _row_swaps(moves: int) -> Source:
    """Return the source of what moves so many rows of a row-major matrix."""
    return cuda_source("swap_rows", f"ENTRIES={-(-moves // 32)}")


SOURCES = (_row_swaps(2 * _SWAPS),)


class ArraysPlace:
    """A device, and NumPy or CuPy for its arrays."""

    def __init__(self, gpu: bool) -> None:
        self.name = "GPU" if gpu else "CPU"
        self.device: Device = GpuDevice(0, "caller") if gpu else CpuDevice("caller")
        self.xp: Any = np
        if gpu:
            import cupy

            self.xp = cupy

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

    def clock(self, call: Call, calls: int) -> float:
        """Return the seconds of calls, on any stream, which it does one after the other."""
        self.wait()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        self.wait()
        return time.perf_counter() - began


class Swaps(NamedTuple):
    """A way to swap rows of a matrix: how often each row is read and written, within what."""

    way: str
    matrix: Any
    call: Call
    passes: int
    within: AbstractContextManager[None]


def _ways(place: ArraysPlace, n: int, pivots: np.ndarray) -> tuple[int, list[Swaps]]:
    """Return how many rows move, and the ways to move them."""
    ipiv = place.xp.asarray(pivots)
    net = place.xp.empty((2, 2 * len(pivots)), "int32", order="F")
    place.wait()
    place.call("netperm", ipiv, net)
    place.wait()
    moves = net.get() if hasattr(net, "get") else net
    moves = moves[:, (moves[0] >= 0) & (moves[0] != moves[1])]
    to, whence = (place.xp.asarray(np.ascontiguousarray(rows)) for rows in moves)
    a, rows = place.random(n, n), place.random(n, n, order="C")
    swap = partial(place.call, "swap", ipiv, net, a)
    if place.name == "CPU":
        # NumPy copies the rows that move, and then these to their places.
        gathers = [partial(_gather, matrix, to, whence) for matrix in (a, rows)]
        return len(to), [
            Swaps(PAIRS, a, swap, 1, nullcontext()),
            Swaps(NET, a, gathers[0], 2, nullcontext()),
            Swaps(ROW_MAJOR, rows, gathers[1], 2, nullcontext()),
        ]
    by_rows = partial(
        launch, kernel(_row_swaps(2 * len(pivots)), "swap_rows"), -(-n // 32), (32, 32),
        rows, n, n, to, whence, len(to),
    )  # fmt: skip
    return len(to), [
        Swaps(PAIRS, a, swap, 1, ablation.swaps_one_by_one()),
        Swaps(NET, a, swap, 1, nullcontext()),
        Swaps(ROW_MAJOR, rows, by_rows, 1, nullcontext()),
    ]


def _gather(a: Any, to: Any, whence: Any) -> None:
    a[to] = a[whence]


def _swaps(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield rates of the ways to swap rows; of each, the bytes of rows that move count."""
    rng = np.random.default_rng(1)
    for n in run.sizes[f"{place.name} orders"]:
        pivots = np.array([rng.integers(i, n) for i in range(run.sizes["swaps"])], np.int32)
        moving, ways = _ways(place, n, pivots)
        for swaps in ways:
            run.report(f"swaps {swaps.way}, {place.name}, n = {n}")
            with swaps.within:
                check_swaps(place, swaps, pivots)
                found = spread(samples(swaps.call, place.clock))
            nbytes = 2 * moving * n * swaps.matrix.itemsize
            yield _moved("swaps", place, swaps.way, n, found, nbytes) | {"passes": swaps.passes}


def check_swaps(place: ArraysPlace, swaps: Swaps, pivots: np.ndarray) -> None:
    """Raise unless a way swaps rows as LAPACK's loop does."""
    wanted = swaps.matrix[place.xp.asarray(permutation(pivots, len(swaps.matrix)))]
    place.wait()
    swaps.call()
    place.wait()
    if not bool((swaps.matrix == wanted).all()):
        raise AssertionError(f"rows are not where they belong: {swaps.way}")


def _moved(
    table: str, place: ArraysPlace, way: str, n: int, found: dict[str, Any], nbytes: int
) -> Row:
    """Return a row for bytes that are read and written."""
    moved = nbytes / found["seconds"]
    pins = None if place.name == "CPU" else moved / bandwidth_of_pins()
    return {
        "table": table, "place": place.name, "way": way, "n": n, **found, "bytes/s": moved,
        "of pins": pins,
    }  # fmt: skip


def _transposing(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield rates of a copy, and of one that turns a row-major matrix."""
    for n in run.sizes[f"{place.name} orders"]:
        run.report(f"transposing, {place.name}, n = {n}")
        target = place.xp.empty((n, n), "float64", order="F")
        for way, order in ((COPIED, "F"), (TRANSPOSED, "C")):
            source = place.random(n, n, order=order)
            copy = partial(place.device.copy, target, source, Queue.UPDATE)
            found = spread(samples(copy, place.clock))
            if not bool((target == source).all()):
                raise AssertionError(f"a matrix that is {way} is another one")
            yield _moved("transposing", place, way, n, found, 2 * source.nbytes)


def swapped(run: TracedRun) -> float:
    """Return the part of a run of one worker that its row swaps take."""
    instructions, spans = run.plan.programs[0].instructions, run.workers[0].spans.tolist()
    seconds = sum(
        stop - start
        for one, (start, stop) in zip(instructions, spans, strict=True)
        if isinstance(one, CallKernel) and SPECS[one.kind].role is Role.EXCHANGE
    )
    return float(seconds / run.seconds)


def _shares(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield the share of LU that its swaps take, by their ways in a column-major matrix."""
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {PAIRS: nullcontext}
    if place.name == "GPU":
        ways = {PAIRS: ablation.swaps_one_by_one, NET: nullcontext}
    for n in run.sizes[f"{place.name} orders"]:
        runs = ResidentRuns(LU, n, place.name == "GPU")
        plan = runs.plan(nb=run.sizes[f"{place.name} tile"])
        for way, within in ways.items():
            run.report(f"LU, {way}, {place.name}, n = {n}")
            with within():
                # The first run is warm-up.
                traced = [runs.timeline(plan) for _ in range(run.sizes["turns"] + 1)][1:]
            middle = sorted(traced, key=lambda one: one.seconds)[len(traced) // 2]
            yield {
                "table": "shares", "place": place.name, "way": way, "n": n,
                **spread([one.seconds for one in traced]), "swaps": swapped(middle),
            }  # fmt: skip
        free_gpus(int(place.name == "GPU"))


def _padding(run: StudyRun, place: ArraysPlace) -> Iterator[Row]:
    """Yield times of swaps, an update and a whole LU, over the padding of columns."""
    n, width = run.sizes[f"{place.name} padded"], run.sizes["swaps"]
    runs = ResidentRuns(LU, n, place.name == "GPU")
    plan, timed = runs.plan(), {}
    factors: dict[int, Any] = {}
    for padding in run.sizes["padding"]:
        a = place.random(n, n, padding)
        panel, row = place.random(n, width, padding), place.random(width, n, padding)
        gemm = partial(place.call, "gemm", panel, row, a)
        entries, wanted = a.copy(order="F"), a - panel @ row
        place.wait()
        place.clock(gemm, 1)
        _agree(f"an update with {padding} rows of padding", a, wanted)
        factors[padding] = a
        timed["update", padding] = partial(place.clock, gemm, 1)
        timed["LU", padding] = partial(_lu, place, runs, plan, (a, entries))
    run.report(f"padding, {place.name}, n = {n}")
    taken = seconds_in_turns({str(key): call for key, call in timed.items()}, run.sizes["turns"])
    for padding, packed in factors.items():
        _agree(f"LU with {padding} rows of padding", packed, next(iter(factors.values())))
    for what, padding in timed:
        found = spread(taken[str((what, padding))])
        yield {
            "table": "padding", "place": place.name, "what": what, "n": n, "padding": padding,
            **found,
        }  # fmt: skip


def _agree(what: str, found: Any, wanted: Any) -> None:
    """Raise unless two results are the same but for rounding."""
    error = float(abs(found - wanted).max() / abs(wanted).max())
    if not error <= _LIMIT:
        raise AssertionError(f"{what} is off by {error:.1e} of its largest entry")


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
    with cores_alone(0 if place.name == "GPU" else run.gpus) as client:
        yield from _both_orders(run, place, client)


def _both_orders(
    run: StudyRun, place: ArraysPlace, client: hetero_la.Cluster | None
) -> Iterator[Row]:
    """Time `lu_factor` of column-major and row-major arrays; compare their factors."""
    for n in run.sizes[f"{place.name} orders"]:
        run.report(f"lu_factor, {place.name}, n = {n}")
        timed: dict[str, Callable[[], float]] = {}
        packed: list[Any] = []
        for name, order in (("column-major", "F"), ("row-major", "C")):
            a = place.random(n, n, order=order)
            packed.append(_complete_lu(place, a, client))
            timed[name] = partial(seconds_of, partial(_complete_lu, place, a, client))
        _agree("LU of a row-major matrix", packed[1], packed[0])
        for name, taken in seconds_in_turns(timed, run.sizes["turns"]).items():
            yield {
                "table": "inputs", "place": place.name, "order": name, "n": n, **spread(taken)
            }  # fmt: skip


def _complete_lu(place: ArraysPlace, a: Any, client: hetero_la.Cluster | None) -> Any:
    """Return L and U, packed, once they are there."""
    packed, _ = hetero_la.lu_factor(a, check_finite=False, client=client)
    place.wait()
    return packed


def measure(run: StudyRun) -> Iterator[Row]:
    """Measure swaps, their share of LU, transposes, padding and both orders, on CPU and GPU."""
    gpus = [False, True] if run.has_gpus(1, "the same on a GPU") else [False]
    for gpu in gpus:
        place = ArraysPlace(gpu)
        with place.device.activate():
            for part in (_swaps, _transposing, _shares, _padding, _inputs):
                yield from part(run, place)


def find(rows: Rows) -> list[str]:
    """Say what net and row-major swaps gain, what transposing costs, and what padding does."""
    found = []
    for place in sorted(values_of(rows, "place"), key=lambda place: place != "GPU"):
        n = max(row["n"] for row in rows_of(rows, "swaps", place=place))
        found += [_of_swaps(rows, place, n), _of_orders(rows, place, n)]
        for what in ("update", "LU"):
            shown = rows_of(rows, "padding", place=place, what=what)
            best = min(shown, key=lambda row: row["seconds"])
            (plain,) = rows_of(shown, "padding", padding=0)
            gain = signed(plain["seconds"] / best["seconds"] - 1)
            clear = best["most"] < plain["least"]
            said = f"{best['padding']} rows of padding gain {gain}"
            found.append(
                f"{what} on the {place}: {said if clear else 'padding gains less than times vary'}."
            )
    return found


def _of_swaps(rows: Rows, place: str, n: int) -> str:
    """Say at which rates rows are swapped, what share of LU that is, and what it would be."""
    moved = {row["way"]: row["bytes/s"] for row in rows_of(rows, "swaps", place=place, n=n)}
    parts = {row["way"]: row["swaps"] for row in rows_of(rows, "shares", place=place, n=n)}
    ours = NET if NET in parts else PAIRS
    would = parts[ours] * moved[ours] / moved[ROW_MAJOR]
    shares = " and ".join(f"{percent(part)} of LU ({way})" for way, part in parts.items())
    return (
        f"On the {place} at n = {n}, swaps move {in_units(moved[PAIRS], 'B/s')} pair after pair, "
        f"{in_units(moved[NET], 'B/s')} by their net permutation, and "
        f"{in_units(moved[ROW_MAJOR], 'B/s')} in a row-major matrix; they take {shares}, and at "
        f"the rate of a row-major matrix would take {percent(would)} of that time."
    )


def _of_orders(rows: Rows, place: str, n: int) -> str:
    """Say what it costs to turn a matrix, alone and before it is factored."""
    turns = {row["way"]: row["bytes/s"] for row in rows_of(rows, "transposing", place=place, n=n)}
    inputs = {row["order"]: row["seconds"] for row in rows_of(rows, "inputs", place=place, n=n)}
    return (
        f"Transposing a matrix on the {place} reaches {percent(turns[TRANSPOSED] / turns[COPIED])} "
        f"of a copy; lu_factor of a row-major matrix takes "
        f"{inputs['row-major'] / inputs['column-major']:.2f} times as long as of a column-major "
        "one."
    )


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates of swaps and transposes, their share of LU, times against padding, both orders."""
    swaps, transposing, shares, padding, inputs = panels(figure, 5)
    for axes, table in ((swaps, "swaps"), (transposing, "transposing")):
        for i, (place, way) in enumerate(_series(rows, table, "way")):
            shown = rows_of(rows, table, place=place, way=way)
            drawn = [{**row, "GB/s": row["bytes/s"] / 1e9} for row in shown]
            line(axes, drawn, "n", "GB/s", f"{way}, {place}", i)
        finish(axes, table, "order n", "GB/s")
    for i, (place, way) in enumerate(_series(rows, "shares", "way")):
        shown = rows_of(rows, "shares", place=place, way=way)
        drawn = [{**row, "%": 100 * row["swaps"]} for row in shown]
        line(shares, drawn, "n", "%", f"{way}, {place}", i)
    finish(shares, "swaps within LU", "order n", "% of its time", logarithmic="x")
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
    "place": WORD, "way": WORD, "n": number(), **SECONDS, "bytes/s": rate("B/s"),
    "of pins": percent,
}  # fmt: skip

STUDY = Study(
    name="layouts",
    question="Row-major or column-major, padded or not: what does the order in memory cost LU?",
    source="Volkov and Demmel 2008, 5; GPU-only LU and Cholesky, 2018",
    original="row-major storage made LU about twice as fast; swaps of all rows of a panel at once "
    "2.4 to 4.9 times",
    tables=(
        StudyTable(
            "swaps", "rows of a step swapped; each that moves counts once, read and written, "
            "however many passes over these rows a way takes", _RATE | {"passes": str},
        ),
        StudyTable("transposing", "copies of a matrix, from column-major and row-major", _RATE),
        StudyTable(
            "shares", "LU of column-major matrices, and the share of its time that swaps take",
            {"place": WORD, "way": WORD, "n": number(), **SECONDS, "swaps": percent},
        ),
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
        "CPU tile": 128, "GPU tile": None,
        "swaps": _SWAPS, "CPU padded": 2048, "GPU padded": 8192,
        "padding": [0, 8, 16, 32, 64, 96, 128], "turns": 5,
    },
    quick={
        "CPU orders": [128, 256], "GPU orders": [512, 1024], "CPU tile": 32, "GPU tile": None,
        "swaps": 32, "CPU padded": 256, "GPU padded": 1024, "padding": [0, 8, 64], "turns": 1,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
