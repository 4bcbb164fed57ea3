"""Bandwidth of copies in memory: by words, alignment and stride, and of rows in random order.

Rates count the bytes that are wanted, read and written; what is fetched beside them is lost.
Copies of rows in another order are LU's row swaps, of a column-major and of a row-major matrix.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, percent, rate
from hetero_la.studies.common.cuda import (
    bandwidth_of_pins,
    cuda_source,
    kernel,
    launch,
    multiprocessors,
)  # fmt: skip
from hetero_la.studies.common.plots import bars, finish, line, panels
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)  # fmt: skip
from hetero_la.studies.common.timing import Call, gpu_clock, host_clock, samples, spread
from hetero_la.tiles.arrays.counted import in_units

#: CUDA's words and NumPy's, by their bytes.
WORDS = {4: ("float", "f4"), 8: ("float2", "f8"), 16: ("float4", "c16")}
SOURCES = tuple(cuda_source("copies", f"WORD={name}") for name, _ in WORDS.values())
#: Threads of a block, and blocks of a multiprocessor.
_THREADS, _EACH = 256, 8
ALIGNED, MISALIGNED, STRIDED = "aligned", "off by a word", "strided"
#: Words before the first one that is copied.
_BEFORE = {ALIGNED: 0, MISALIGNED: 1}
#: What a copy is, and a call that makes it with its result and what that must be.
Copy = tuple[str, Call, Any, np.ndarray]


def _numbers(count: int, bytes_each: int) -> np.ndarray:
    """Return different words, of which none is NaN."""
    dtype = WORDS[bytes_each][1]
    return np.arange(count).astype(dtype)


def _permuted(m: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(m)


def cpu_copies(nbytes: int, strides: list[int]) -> Iterator[tuple[int, int, Copy]]:
    """Yield the copies that NumPy makes: bytes of a word, stride, copy."""
    for bytes_each in WORDS:
        n = nbytes // bytes_each
        a = _numbers(n + 1, bytes_each)
        out = np.zeros(n, a.dtype)
        for what, first in _BEFORE.items():
            part = a[first : n + first]
            yield bytes_each, 1, (what, partial(np.copyto, out, part), out, part)
    for stride in strides:
        a = _numbers(nbytes // 8, 8).reshape(-1, stride)
        out = np.empty((stride, len(a)))
        yield 8, stride, (STRIDED, partial(np.copyto, out, a.T), out, a.T)
    m = int((nbytes / 8) ** 0.5)
    order, a = _permuted(m), _numbers(m * m, 8).reshape(m, m)
    out = np.empty_like(a)
    yield 8, 1, (
        "rows, row-major", lambda: np.take(a, order, axis=0, out=out, mode="clip"), out, a[order],
    )  # fmt: skip
    b, by_column = np.asfortranarray(a), np.empty((m, m))
    # Rows of a column-major matrix are columns of its transpose.
    yield 8, 1, (
        "rows, column-major",
        lambda: np.take(b.T, order, axis=1, out=by_column, mode="clip"), by_column, a[order].T,
    )  # fmt: skip


def grid(along_x: int, along_y: int) -> tuple[int, int]:
    """Return the blocks along either dimension, as many as fill the GPU."""
    blocks = _EACH * multiprocessors()
    across = min(blocks, -(-along_x // _THREADS))
    return across, min(along_y, -(-blocks // across))


def gpu_copies(nbytes: int, strides: list[int]) -> Iterator[tuple[int, int, Copy]]:
    """Yield the same by kernels."""
    import cupy

    def started(bytes_each: int, name: str, shape: tuple[int, int], *arguments: Any) -> Call:
        function = kernel(cuda_source("copies", f"WORD={WORDS[bytes_each][0]}"), name)
        return lambda: launch(function, grid(*shape), _THREADS, *arguments)

    for bytes_each in WORDS:
        n = nbytes // bytes_each
        host = _numbers(n + 1, bytes_each)
        a, out = cupy.asarray(host), cupy.zeros(n + 1, host.dtype)
        for what, first in _BEFORE.items():
            part, target = a[first : n + first], out[:n]
            call = started(bytes_each, "copy", (n, 1), part, target, n)
            yield bytes_each, 1, (what, call, target, host[first : n + first])
        for stride in strides:
            rows = n // stride
            call = started(bytes_each, "copy_strided", (rows, stride), a, out, rows, stride)
            wanted = host[:n].reshape(-1, stride).T.ravel()
            yield bytes_each, stride, (STRIDED, call, out[:n], wanted)
    m = int((nbytes / 8) ** 0.5)
    order, host = _permuted(m), _numbers(m * m, 8).reshape(m, m)
    a, out, device_order = cupy.asarray(host), cupy.empty((m, m)), cupy.asarray(order)
    call = started(8, "rows_of_rows", (m, m), a, out, device_order, m, m)
    yield 8, 1, ("rows, row-major", call, out, host[order])
    # The same memory is the transpose in column-major order, whose rows are host's columns.
    call = started(8, "rows_of_columns", (m, m), a, out, device_order, m, m)
    yield 8, 1, ("rows, column-major", call, out, host[:, order])


def measure(run: StudyRun) -> Iterator[Row]:
    """Time copies on the CPU and on a GPU, after a check of each."""
    places: dict[str, Callable[..., Iterator[tuple[int, int, Copy]]]] = {"CPU": cpu_copies}
    if run.has_gpus(1, "copies in a GPU's memory"):
        places["GPU"] = gpu_copies
    for place, copies in places.items():
        clock = gpu_clock if place == "GPU" else host_clock
        nbytes = run.sizes["bytes"][place]
        rows = []
        for bytes_each, stride, (what, call, result, wanted) in copies(
            nbytes, run.sizes["strides"]
        ):
            run.report(f"{place}: {what}, words of {bytes_each} bytes, stride {stride}")
            call()
            found = result if place == "CPU" else result.get()
            np.testing.assert_array_equal(found, wanted)
            taken = spread(samples(call, clock))
            rows.append({
                "table": "copies", "place": place, "what": what, "word": bytes_each,
                "stride": stride, **taken, "bytes/s": 2 * wanted.nbytes / taken["seconds"],
            })  # fmt: skip
        yield from beside_limits(rows, bandwidth_of_pins() if place == "GPU" else None)


def beside_limits(rows: Rows, pins: float | None) -> Iterator[Row]:
    """Yield copies beside the best of them, and beside the memory's pins if their rate is known."""
    best = max(row["bytes/s"] for row in rows)
    for row in rows:
        yield row | {"of best": row["bytes/s"] / best, "of pins": pins and row["bytes/s"] / pins}
    if pins:
        yield {"table": "pins", "place": rows[0]["place"], "bytes/s": pins}


def find(rows: Rows) -> list[str]:
    """Say what copies reach, and what is left of it at least by each kind of them."""
    found = []
    for place in reversed(values_of(rows_of(rows, "copies"), "place")):
        shown = rows_of(rows, "copies", place=place)
        best = max(shown, key=lambda row: row["bytes/s"])
        limit, share = ("the pins", "of pins") if best["of pins"] else ("that rate", "of best")
        reached = f", {percent(best['of pins'])} of the pins" if best["of pins"] else ""
        least = {
            what: min(row[share] for row in rows_of(shown, "copies", what=what))
            for what in values_of(shown, "what")
        }
        texts = [f"{what} {percent(fraction)}" for what, fraction in least.items()]
        found.append(
            f"On the {place} copies reach {in_units(best['bytes/s'], 'B/s')} ({best['what']}, "
            f"words of {best['word']} bytes{reached}). The slowest of each kind have, of {limit}: "
            f"{'; '.join(texts)}."
        )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates over stride by words, and of the other copies as bars."""
    strided, others = panels(figure, 2)
    series = [(p, w) for p in ("CPU", "GPU") for w in WORDS]
    for i, (place, bytes_each) in enumerate(series):
        shown = rows_of(rows, "copies", what=STRIDED, place=place, word=bytes_each)
        drawn = [{**row, "GB/s": row["bytes/s"] / 1e9} for row in shown]
        if drawn:
            line(strided, drawn, "stride", "GB/s", f"{place}, {bytes_each} bytes", i)
    finish(strided, "strided reads", "stride, words", "GB/s")
    copies = [row for row in rows_of(rows, "copies") if row["what"] != STRIDED]
    labels = [f"{row['place']}, {row['what']}, {row['word']} bytes" for row in copies]
    colours = [["CPU", "GPU"].index(row["place"]) for row in copies]
    bars(others, labels, [row["bytes/s"] / 1e9 for row in copies], colours, logarithmic=True)
    finish(others, "other copies", "GB/s", "", logarithmic="")


STUDY = Study(
    name="bandwidth",
    question="How much of a memory's bandwidth do copies get, aligned or not, strided, by rows?",
    source="Volkov and Demmel 2008, 3.5",
    original="83 to 89 % of the pins aligned, 9 to 51 % not",
    tables=(
        StudyTable(
            "copies", "bytes that are wanted, read and written",
            {"place": WORD, "what": WORD, "word": str, "stride": str, **SECONDS,
             "bytes/s": rate("B/s"), "of best": percent, "of pins": percent},
        ),
        StudyTable("pins", "the memory's clock by its width, as CUDA says",
                   {"place": WORD, "bytes/s": rate("B/s")}),
    ),
    sizes={
        "bytes": {"CPU": 2**28, "GPU": 2**28}, "strides": [1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096],
    },
    quick={"bytes": {"CPU": 2**20, "GPU": 2**24}, "strides": [1, 8, 64]},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
