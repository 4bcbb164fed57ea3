"""Latencies of memories, and the sizes of caches and of their lines, by pointer chases.

One thread follows pointers through an array.  While the places that it visits fit into a cache, a
step takes that cache's latency; where the latency rises, the size before is the capacity.  With
places as far apart as pages are long, it is the capacity of the cache of page addresses (TLB).

On a CPU, random gathers by NumPy show the steps as well; as they overlap, their times are not
latencies.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import BYTES, SECONDS, WORD, number
from hetero_la.studies.common.cuda import attribute, cuda_source, kernel, launch
from hetero_la.studies.common.plots import finish, line, panels, style
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)
from hetero_la.studies.common.timing import samples, spread
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds

CACHED, SECOND = "through all caches", "past the first cache"
_PAGES = "pages of addresses"
_LOADS = {CACHED: "ca", SECOND: "cg"}
SOURCES = tuple(cuda_source("chase", f"CACHE={letters}") for letters in _LOADS.values())
_WORD = 8
#: Words of shared and of local memory, PLACES of the source.
_PLACES = 4096
#: Steps before those that are timed, at most, and steps that are timed.
_FIRST, _STEPS = 2**19, 2**13
#: A latency that is larger by this factor is of another level, and one within this is the same.
_RISE, _SAME = 1.25, 1.08
#: Size at which strides are varied: more than the first cache, less than the second.
_WITHIN_SECOND = 4 * 2**20


class Level(NamedTuple):
    """A level of memory: the largest array that stays in it, and the latency there."""

    capacity: float
    latency: float


def levels(sizes: Sequence[float], latencies: Sequence[float]) -> list[Level]:
    """Return the levels that latencies over growing sizes show.

    A level consists of at least two sizes with nearly equal latencies; the one that holds the
    largest size has no capacity.

    Examples
    --------
    >>> levels([1, 2, 4, 8, 16, 32, 64], [30, 30, 31, 140, 260, 261, 262])
    [Level(capacity=4, latency=30), Level(capacity=inf, latency=261)]
    """
    found: list[Level] = []
    start = 0
    for end in range(1, len(sizes) + 1):
        first = latencies[start]
        if end < len(sizes) and max(first, latencies[end]) / min(first, latencies[end]) < _SAME:
            continue
        if end - start >= 2:
            capacity = sizes[end - 1] if end < len(sizes) else math.inf
            level = Level(capacity, statistics.median(latencies[start:end]))
            if found and level.latency < _RISE * found[-1].latency:
                found[-1] = Level(level.capacity, found[-1].latency)
            else:
                found.append(level)
        start = end
    return found


def line_length(strides: Sequence[int], latencies: Sequence[float]) -> int:
    """Return the stride from which on every load is of another line.

    Examples
    --------
    >>> line_length([8, 16, 32, 64, 128], [60, 110, 200, 201, 199])
    32
    """
    enough = 0.95 * statistics.median(latencies[-2:])
    return next(s for s, found in zip(strides, latencies, strict=True) if found >= enough)


def ring(size: int, stride: int, xp: Any = np) -> tuple[Any, int]:
    """Return an array of pointers in which a cycle visits every place of a stride, and its length.

    Examples
    --------
    >>> ring(64, 16)
    (array([2, 0, 4, 0, 6, 0, 0, 0]), 4)
    """
    places, step = size // stride, stride // _WORD
    pointers = xp.zeros(size // _WORD, np.int64)
    pointers[: places * step : step] = (xp.arange(1, places + 1) % places) * step
    return pointers, places


def _chase(function: Any, pointers: Any, places: int, stride: int, count: int) -> dict[str, Any]:
    """Return the cycles and seconds of a step, in several chases, of which each is checked."""
    import cupy

    end, clocks = cupy.zeros(1, np.int64), cupy.zeros(2, np.int64)
    first, steps = min(places, _FIRST), _STEPS
    cycles, seconds = [], []
    for _ in range(count):
        launch(function, 1, 1, pointers, first, steps, end, clocks)
        taken = clocks.get()
        expected = (first + steps) % places * (stride // _WORD)
        if int(end[0]) != expected:
            raise AssertionError(f"the chase ended at {int(end[0])}, not at {expected}")
        cycles.append(int(taken[0]) / steps)
        seconds.append(int(taken[1]) / steps * 1e-9)
    return {"cycles": statistics.median(cycles), **spread(seconds)}


def _chases(run: StudyRun) -> Iterator[Row]:
    """Yield all chases: each kind of load over size and stride, pages, shared and local memory."""
    import cupy

    most = cupy.cuda.Device().mem_info[0] // 2
    for space, source in zip(_LOADS, SOURCES, strict=True):
        function = kernel(source, "chase_global")
        for stride in run.sizes["strides"]:
            for size in run.sizes["sizes"]:
                if 8 * stride <= size <= most:
                    run.report(f"{space}: {in_bytes(size)}, one place in {in_bytes(stride)}")
                    found = _around(run, function, size, stride)
                    yield {"table": "latency", "space": space, **found}
        for stride in (8, 16, 32, 64, 128, 256, 512):
            yield {
                "table": "lines", "space": space, **_around(run, function, _WITHIN_SECOND, stride),
            }  # fmt: skip
    function = kernel(SOURCES[0], "chase_global")
    for stride in (2**k for k in range(14, 24)):
        if (size := run.sizes["pages"] * stride) <= most:
            yield {"table": "pages", **_around(run, function, size, stride)}
    for space in ("shared", "local"):
        found = _around(run, kernel(SOURCES[0], f"chase_{space}"), _PLACES * _WORD, _WORD)
        # The kernels copy the pointers as words of half the length.
        size, stride = found["bytes"] // 2, found["stride"] // 2
        yield {"table": "latency", "space": space, **found, "bytes": size, "stride": stride}


def _around(run: StudyRun, function: Any, size: int, stride: int) -> Row:
    """Return size, stride and latency of chases around a ring of pointers."""
    import cupy

    pointers, places = ring(size, stride, cupy)
    found = _chase(function, pointers, places, stride, run.sizes["chases"])
    return {"bytes": size, "stride": stride, **found}


def _gathers(run: StudyRun) -> Iterator[Row]:
    """Yield seconds of an element of a random gather on the CPU, over the size of the array."""
    count = run.sizes["gathered"]
    rng = np.random.default_rng(0)
    out = np.empty(count)
    for size in run.sizes["arrays"]:
        run.report(f"gathers of {in_bytes(size)}")
        array = np.ones(size // _WORD)
        places = rng.integers(0, len(array), count)
        taken = samples(partial(np.take, array, places, out=out, mode="clip"))
        found = spread([seconds / count for seconds in taken])
        yield {"table": "gather", "bytes": size, **found}


def measure(run: StudyRun) -> Iterator[Row]:
    """Time gathers on the CPU and chases on a GPU, and read off what they show."""
    rows = list(_gathers(run))
    if run.has_gpus(1, "pointer chases, which NumPy cannot make"):
        rows += _chases(run)
    yield from rows
    yield from read_off(rows)
    if run.gpus:
        said = {"second cache": attribute("L2CacheSize")}
        yield from ({"table": "said", "what": what, "bytes": size} for what, size in said.items())


def read_off(rows: Rows) -> Iterator[Row]:
    """Yield the levels of memory and the lengths of lines that rows show."""
    series = [("gathers on the CPU", None, rows_of(rows, "gather"))]
    for space in _LOADS:
        of_space = rows_of(rows, "latency", space=space)
        for stride in values_of(of_space, "stride"):
            series.append((space, stride, rows_of(of_space, "latency", stride=stride)))
    for space, stride, shown in series:
        found = levels([row["bytes"] for row in shown], [row["seconds"] for row in shown])
        for level, (capacity, latency) in enumerate(found):
            yield {
                "table": "levels", "space": space, "stride": stride, "level": level + 1,
                "capacity": capacity if math.isfinite(capacity) else None, "latency": latency,
            }  # fmt: skip
    for space in values_of(rows_of(rows, "lines"), "space"):
        lines = rows_of(rows, "lines", space=space)
        length = line_length([row["stride"] for row in lines], [row["seconds"] for row in lines])
        yield {"table": "lengths", "space": space, "bytes": length}
    pages = rows_of(rows, "pages")
    seconds = [row["seconds"] for row in pages]
    if len(pages) > 2 and seconds[-1] > _RISE * seconds[0]:
        length = line_length([row["stride"] for row in pages], seconds)
        yield {"table": "lengths", "space": _PAGES, "bytes": length}


def find(rows: Rows) -> list[str]:
    """Say which levels there are, and how long their lines are."""
    found = []
    for space in (CACHED, SECOND, "gathers on the CPU"):
        finest = values_of(rows_of(rows, "levels", space=space), "stride")[:1]
        shown = [row for row in rows_of(rows, "levels", space=space) if row["stride"] in finest]
        texts = [
            f"{in_seconds(row['latency'])} "
            + ("beyond" if row["capacity"] is None else f"up to {in_bytes(row['capacity'])}")
            for row in shown
        ]  # fmt: skip
        if texts:
            found.append(f"{space[0].upper()}{space[1:]}: {', '.join(texts)}.")
    for row in rows_of(rows, "lengths"):
        size = in_bytes(row["bytes"])
        found.append(
            f"Addresses are looked up by pages of {size}."
            if row["space"] == _PAGES
            else f"Loads {row['space']} fetch {size} at a time."
        )
    return found or ["Gathers show no steps here: the sizes are too few."]


def draw(figure: Any, rows: Rows) -> None:
    """Draw latencies over size, by stride, and over stride."""
    spaces = [space for space in _LOADS if rows_of(rows, "latency", space=space)]
    gathers, *others = panels(figure, 1 + len(spaces) + bool(spaces))
    line(gathers, rows_of(rows, "gather"), "bytes", "seconds", "", 0)
    finish(gathers, "random gathers on the CPU", "bytes of the array", "seconds an element")
    for axes, space in zip(others, spaces, strict=False):
        shown = rows_of(rows, "latency", space=space)
        for i, stride in enumerate(values_of(shown, "stride")):
            chosen = rows_of(shown, "latency", stride=stride)
            line(axes, chosen, "bytes", "cycles", f"one place in {in_bytes(stride)}", i)
        for i, memory in enumerate(("shared", "local")):
            for row in rows_of(rows, "latency", space=memory):
                axes.axhline(row["cycles"], color=style(i + 4)["color"], lw=1, label=memory)
        finish(axes, f"loads {space}", "bytes of the array", "cycles", logarithmic="x")
    if spaces:
        for i, space in enumerate(spaces):
            line(others[-1], rows_of(rows, "lines", space=space), "stride", "cycles", space, i)
        size = in_bytes(_WITHIN_SECOND)
        finish(others[-1], f"an array of {size}", "stride, bytes", "cycles", logarithmic="x")


_SIZES = sorted(int(2**k * f) for k in range(12, 36) for f in (1, 1.5))

STUDY = Study(
    name="memory",
    question="How long does a load take, and how large are the caches?",
    source="Volkov and Demmel 2008, 3.3, Figures 1 and 2",
    original="latencies of 470 to 720 cycles; sizes of caches and TLBs",
    tables=(
        StudyTable(
            "levels", "levels of memory, as the steps of latencies show them",
            {"space": WORD, "stride": str, "level": str, "capacity": BYTES, "latency": in_seconds},
        ),
        StudyTable("lengths", "bytes that a load fetches, and of a page",
                   {"space": WORD, "bytes": BYTES}),
        StudyTable("said", "what CUDA says", {"what": WORD, "bytes": BYTES}),
        StudyTable(
            "latency", "steps of a pointer chase",
            {"space": WORD, "bytes": BYTES, "stride": BYTES, "cycles": number(), **SECONDS},
        ),
        StudyTable("lines", "the same over the stride",
                   {"space": WORD, "stride": BYTES, "cycles": number(), **SECONDS}),
        StudyTable("pages", "over the stride, of so few places that the second cache holds them",
                   {"bytes": BYTES, "stride": BYTES, "cycles": number(), **SECONDS}),
        StudyTable("gather", "an element of a random gather on the CPU",
                   {"bytes": BYTES, **SECONDS}),
    ),
    sizes={
        "sizes": _SIZES, "strides": [128, 4096, 2**16, 2**21], "chases": 5, "pages": 4096,
        "arrays": [2**k for k in range(12, 29)], "gathered": 2**16,
    },
    quick={
        "sizes": [2**14, 2**16, 2**24], "strides": [128], "chases": 2, "pages": 64,
        "arrays": [2**13, 2**15, 2**24], "gathered": 2**13,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
