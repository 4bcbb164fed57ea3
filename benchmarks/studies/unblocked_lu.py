"""LU without pivoting, a column at a time: what loops, branches, vectors and launches are worth.

Every step reads and writes the trailing matrix once, so that it is bandwidth, of a cache if the
matrix fits, and the start of each step that count.  The variants are

two kernels         a launch divides the column, the next one updates the trailing matrix
fused               one launch does both: updates divide by the pivot themselves
fused, whole grid   the same, over the whole matrix, with a branch for what has nothing to do
fused, persistent   one cooperative launch, with a barrier behind each step
fused, from Python  a call of CuPy for each launch; those of the others are replayed from a graph

each on 1, 2 or 4 rows at a time in a thread.  Without arithmetic they only load and store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.cuda import (
    attribute,
    cuda_source,
    kernel,
    launch,
    multiprocessors,
)  # fmt: skip
from hetero_la.studies.common.plots import finish, line, panels
from hetero_la.studies.common.reference import lu_by_columns
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
)  # fmt: skip
from hetero_la.studies.common.timing import Call, gpu_clock, samples, spread
from hetero_la.testing.matrices import generate
from hetero_la.tiles.arrays.counted import in_units
from hetero_la.tiles.kernels.gpu.sources import Source

TWO, FUSED, WHOLE, PERSISTENT, CALLS = (
    "two kernels", "fused", "fused, whole grid", "fused, persistent", "fused, from Python",
)  # fmt: skip
DTYPE = "float32"
WIDTHS = (1, 2, 4)
_THREADS = 128
_LIMIT = 1e-4


class Variant(NamedTuple):
    """A way to do it, the rows that a thread does at once, and whether it computes."""

    way: str
    width: int
    arithmetic: bool = True

    @property
    def source(self) -> Source:
        """What it is compiled from."""
        defines = f"REAL=float WIDTH={self.width} ARITHMETIC={int(self.arithmetic)}"
        return cuda_source("unblocked_lu", *defines.split())


VARIANTS = (
    *(Variant(way, width) for way in (TWO, FUSED) for width in WIDTHS),
    Variant(WHOLE, 4), Variant(PERSISTENT, 4), Variant(CALLS, 4), Variant(FUSED, 4, False),
)  # fmt: skip
SOURCES = tuple(dict.fromkeys(variant.source for variant in VARIANTS))


def moved_bytes(n: int) -> int:
    """Return the bytes of all trailing matrices, read and written.

    Examples
    --------
    >>> moved_bytes(3)
    40
    """
    return sum(2 * k * k for k in range(n)) * np.dtype(DTYPE).itemsize


class OnGpu:
    """A matrix on the current GPU, column-major with rows in fours, and calls that factor it."""

    def __init__(self, a: np.ndarray) -> None:
        import cupy

        self.n, self.rows = len(a), -(-len(a) // 4) * 4
        self._original = cupy.zeros((self.n, self.rows), DTYPE)
        self._original[:, : self.n] = cupy.asarray(a.T)
        self._a = cupy.empty_like(self._original)
        self._counter = cupy.zeros(1, cupy.uint32)

    def reset(self) -> None:
        """Enqueue a copy of the matrix as it was."""
        self._a[...] = self._original

    def result(self) -> np.ndarray:
        """Return what is there now."""
        found: np.ndarray = self._a.get()[:, : self.n].T
        return found

    def call(self, variant: Variant) -> Call:
        """Return what enqueues the factorization."""
        if variant.way == PERSISTENT:
            return partial(self._persistent, variant)
        if variant.way == CALLS:
            return partial(self._steps, variant)
        import cupy

        self._steps(variant)
        stream = cupy.cuda.get_current_stream()
        stream.begin_capture()
        self._steps(variant)
        call: Call = stream.end_capture().launch
        return call

    def _steps(self, variant: Variant) -> None:
        for k in range(self.n):
            if variant.way == TWO:
                if k < self.n - 1:
                    self._launch(variant, "scale", k, k + 1, 1)
                    self._launch(variant, "update", k, k + 1, self.n - k - 1)
            elif variant.way == WHOLE:
                self._launch(variant, "fused_whole", k, 0, self.n)
            else:
                self._launch(variant, "fused", k, k, self.n - max(k - 1, 0))

    def _launch(self, variant: Variant, name: str, k: int, top: int, columns: int) -> None:
        across = -(-(self.rows - top) // (variant.width * _THREADS)) + bool(top % variant.width)
        launch(
            kernel(variant.source, name), (across, columns), _THREADS,
            self._a, self.rows, self.n, k,
        )  # fmt: skip

    def _persistent(self, variant: Variant) -> None:
        launch(
            kernel(variant.source, "persistent"), 2 * multiprocessors(), _THREADS,
            self._a, self.rows, self.n, self._counter, cooperative=True,
        )  # fmt: skip


def _on_gpu(run: StudyRun) -> Iterator[Row]:
    """Yield times of all variants, and of cuSOLVER, over the order."""
    import cupy
    import cupyx.scipy.linalg

    variants = [v for v in VARIANTS if v.way != PERSISTENT or attribute("CooperativeLaunch")]
    if len(variants) < len(VARIANTS):
        run.leave_out("persistent: the GPU has no cooperative launches")
    with cupy.cuda.Stream(non_blocking=True):
        for n in run.sizes["orders"]:
            a = generate("dominant", n, dtype=DTYPE)
            wanted, matrix = lu_by_columns(a.astype(np.float64)), OnGpu(a)
            for variant in variants:
                run.report(f"{variant.way}, {variant.width} rows, n = {n}")
                call = matrix.call(variant)
                if variant.arithmetic:
                    matrix.reset()
                    call()
                    _check(matrix.result(), wanted)
                taken = [_timed(matrix.reset, call) for _ in range(run.sizes["runs"])]
                yield _row("GPU", variant.way, variant, n, taken)
            on_device = cupy.asarray(a, order="F")
            library = samples(partial(cupyx.scipy.linalg.lu_factor, on_device), gpu_clock)
            yield _row("GPU", "cuSOLVER, with pivoting", None, n, library)


def _timed(reset: Call, call: Call) -> float:
    reset()
    return gpu_clock(call, 1)


def _check(found: np.ndarray, wanted: np.ndarray) -> None:
    """Raise unless factors are what NumPy's are, relative to the largest of them."""
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    if not error < _LIMIT:
        raise AssertionError(f"L and U are off by {error:.1e} of their largest entry")


def _row(place: str, way: str, variant: Variant | None, n: int, taken: list[float]) -> Row:
    found = spread(taken)
    row = {"table": "times", "place": place, "way": way, "n": n, **found}
    if variant is None:
        return row
    launches = {TWO: 2 * n - 2, PERSISTENT: 1}.get(way, n)
    return row | {
        "rows": variant.width, "arithmetic": "yes" if variant.arithmetic else "no",
        "launches": launches, "bytes/s": moved_bytes(n) / found["seconds"],
    }  # fmt: skip


def _on_cpu(run: StudyRun) -> Iterator[Row]:
    """Yield times of a loop over columns in NumPy, and of LAPACK, over the order."""
    for n in run.sizes["orders"]:
        run.report(f"CPU, n = {n}")
        a = generate("dominant", n, dtype=DTYPE)
        _check(lu_by_columns(a), lu_by_columns(a.astype(np.float64)))
        ways: dict[str, Callable[..., Any]] = {
            "NumPy, a column at a time": lu_by_columns,
            "LAPACK, with pivoting": partial(scipy.linalg.lu_factor, check_finite=False),
        }
        for way, function in ways.items():
            taken = samples(partial(function, a), count=run.sizes["runs"])
            yield _row("CPU", way, None, n, taken)


def measure(run: StudyRun) -> Iterator[Row]:
    """Time the variants on a GPU, and what there is on the CPU, over the order."""
    yield from _on_cpu(run)
    if run.has_gpus(1, "kernels that factor a column at a time"):
        yield from _on_gpu(run)


def find(rows: Rows) -> list[str]:
    """Say what fusing and vectors are worth, and from which order on the GPU is ahead."""
    n = max(row["n"] for row in rows)
    seconds = {
        (row["way"], row.get("rows"), row.get("arithmetic")): row["seconds"]
        for row in rows_of(rows, "times", n=n)
    }
    numpy_s = seconds["NumPy, a column at a time", None, None]
    lapack = seconds["LAPACK, with pivoting", None, None]
    found = [f"LAPACK is {numpy_s / lapack:.0f} times as fast as a loop of NumPy at n = {n}."]
    if (FUSED, 4, "yes") in seconds:
        plain, best = seconds[TWO, 1, "yes"], seconds[FUSED, 4, "yes"]
        speed = in_units(moved_bytes(n) / best, "B/s")
        calls, once = (seconds.get((way, 4, "yes"), best) for way in (CALLS, PERSISTENT))
        found = [
            f"At n = {n}, fused and with 4 rows at a time it is {plain / best:.2f} times as fast "
            f"as with two kernels and one row, and moves {speed}; without arithmetic it would "
            f"take {percent(seconds[FUSED, 4, 'no'] / best)} of the time.",
            f"With a call from Python for each step it takes {calls / best:.2f} times as long as "
            f"from a graph, and as one persistent launch {once / best:.2f} times.",
            *found,
        ]  # fmt: skip
    return found + _crossover(rows)


def _crossover(rows: Rows) -> list[str]:
    """Say from which order on the best kernel is faster than LAPACK."""
    best: dict[str, dict[int, float]] = {"GPU": {}, "CPU": {}}
    for row in rows:
        if row.get("arithmetic", "yes") == "yes" and "cuSOLVER" not in row["way"]:
            known = best[row["place"]]
            known[row["n"]] = min(known.get(row["n"], np.inf), row["seconds"])
    ahead = [n for n, taken in best["GPU"].items() if taken < best["CPU"][n]]
    if not best["GPU"]:
        return []
    where = f"from n = {min(ahead)} on" if ahead else f"nowhere up to n = {max(best['GPU'])}"
    return [f"The best kernel is faster than LAPACK on the CPU {where}."]


def draw(figure: Any, rows: Rows) -> None:
    """Draw times over the order, and the rates at which the variants move bytes."""
    on_gpu = rows_of(rows, "times", place="GPU")
    panel, *rates = panels(figure, 2 if on_gpu else 1)
    series = dict.fromkeys((r["way"], r.get("rows"), r.get("arithmetic")) for r in rows)
    for i, (way, width, arithmetic) in enumerate(series):
        shown = [
            row
            for row in rows
            if (row["way"], row.get("rows"), row.get("arithmetic")) == (way, width, arithmetic)
        ]
        label = way if width is None else f"{way}, {width} rows"
        label += ", no arithmetic" if arithmetic == "no" else ""
        how = {"ls": "-" if i < 7 else "--"}
        line(panel, shown, "n", "seconds", label, i, **how)
        if rates and width is not None:
            drawn = [{**row, "GB/s": row["bytes/s"] / 1e9} for row in shown]
            line(rates[0], drawn, "n", "GB/s", "", i, **how)
    finish(panel, f"LU without pivoting, {DTYPE}", "order n", "seconds")
    if rates:
        finish(rates[0], "bytes of the trailing matrices", "order n", "GB/s")


STUDY = Study(
    name="unblocked_lu",
    question="What are fused loops, vectors and fewer launches worth, where bandwidth is all?",
    source="Ino et al., LU on the programmable GPU",
    original="fused and vectorized 3.2 times; 73 to 75 % of the cache's bandwidth; faster than the "
    "CPU from n = 512 on",
    tables=(
        StudyTable(
            "times", "LU without pivoting",
            {"place": WORD, "way": WORD, "rows": str, "arithmetic": WORD, "n": number(),
             "launches": str, **SECONDS, "bytes/s": rate("B/s")},
        ),
    ),
    sizes={"orders": [128, 256, 512, 1024, 2048], "runs": 7},
    quick={"orders": [64, 128], "runs": 2},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
