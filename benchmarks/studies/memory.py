"""Latencies of memories, and the sizes of caches and of their lines, by pointer chases.

One thread follows pointers through an array.  While the places that it visits fit into a cache, a
step takes that cache's latency; where the latency rises, the size before is the capacity.  With
places as far apart as pages are long, it is the capacity of the cache of page addresses (TLB).

Words of local memory that a thread sees side by side are 128 bytes apart: those of the 32 threads
of its warp lie between them.  The bytes here are those that a ring spans in memory, so that of the
4096 words which the source has a thread spans half a megabyte.

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
from hetero_la.studies.common.columns import BYTES, SECONDS, WORD, number, percent
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
SHARED, LOCAL = "shared memory", "local memory"
_GATHERS = "gathers on the CPU"
_PAGES = "pages of addresses"
_LOADS = {CACHED: "ca", SECOND: "cg"}
SOURCES = tuple(cuda_source("chase", f"CACHE={letters}") for letters in _LOADS.values())
#: Who fetches a line for the loads.
_FETCHERS = {CACHED: "the first cache", SECOND: "the second cache"}
#: Bytes of a pointer; of a word in shared and local memory, and between two of one thread there.
_WORD, _SHORT, _APART = 8, 4, 128
#: Words of shared and of local memory, PLACES of the source.
_PLACES = 4096
#: Steps of a chase.
_STEPS = 2**13
#: Bytes of the shortest piece that a cache fetches.
_SECTOR = 32
#: A latency that is larger by this factor is of another level, and one within this is the same.
_RISE, _SAME = 1.25, 1.08
#: Sizes at which strides are varied: more than the first cache and less than the second; and so
#: many times the second.
_WITHIN_SECOND, _BEYOND_SECOND = 4 * 2**20, 4


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


def line_length(strides: Sequence[int], latencies: Sequence[float]) -> int | None:
    """Return the stride from which on every load is of another line; None if all take as long.

    Examples
    --------
    >>> line_length([8, 16, 32, 64, 128], [60, 110, 200, 201, 199])
    32
    >>> line_length([8, 16, 32, 64, 128], [200, 201, 199, 200, 200])
    """
    last = statistics.median(latencies[-2:])
    if last < _RISE * latencies[0]:
        return None
    # At half the length every second load still hits, and takes far less than the others.
    return next(s for s, found in zip(strides, latencies, strict=True) if found >= 0.9 * last)


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


def _around(run: StudyRun, function: Any, size: int, stride: int, first: int | None = None) -> Row:
    """Return size, stride and latency of chases around a ring of pointers, whose end is checked.

    Before them it follows the pointers for `first` steps: once around, unless that is more than
    the second cache has sectors, which are all in use by then.  Each chase goes on where the one
    before has ended, so that it finds in caches only what stays there for a whole round.
    """
    import cupy

    pointers, places = ring(size, stride, cupy)
    end, clocks = cupy.zeros(1, np.int64), cupy.zeros((run.sizes["chases"], 2), np.int64)
    first = first or min(places, attribute("L2CacheSize") // _SECTOR)
    launch(function, 1, 1, pointers, first, _STEPS, len(clocks), end, clocks)
    expected = (first + len(clocks) * _STEPS) % places * (stride // _WORD)
    if int(end[0]) != expected:
        raise AssertionError(f"the chases ended at {int(end[0])}, not at {expected}")
    cycles, nanoseconds = (clocks.get() / _STEPS).T
    taken = spread((1e-9 * nanoseconds).tolist())
    return {"bytes": size, "stride": stride, "cycles": float(np.median(cycles)), **taken}


def _chases(run: StudyRun) -> Iterator[Row]:
    """Yield all chases: each kind of load over size and stride, and in pages."""
    import cupy

    most = cupy.cuda.Device().mem_info[0] // 2
    beyond = _BEYOND_SECOND * attribute("L2CacheSize")
    for space, source in zip(_LOADS, SOURCES, strict=True):
        function = kernel(source, "chase_global")
        for stride in run.sizes["strides"]:
            for size in run.sizes["sizes"]:
                if 8 * stride <= size <= most:
                    run.report(f"{space}: {in_bytes(size)}, one place in {in_bytes(stride)}")
                    found = _around(run, function, size, stride)
                    yield {"table": "latency", "space": space, **found}
        # Past the first cache, lines come from memory: no place is visited twice.
        size, first = (_WITHIN_SECOND, None) if space == CACHED else (beyond, _STEPS)
        for stride in (8, 16, 32, 64, 128, 256, 512):
            found = _around(run, function, size, stride, first)
            yield {"table": "lines", "space": space, **found}
    # Past the first cache, which may know data by addresses that no page has to be looked up for.
    function = kernel(SOURCES[1], "chase_global")
    for stride in (2**k for k in range(14, 24)):
        if (size := run.sizes["pages"] * stride) <= most:
            yield {"table": "pages", **_around(run, function, size, stride)}


def _chases_by_thread(run: StudyRun) -> Iterator[Row]:
    """Yield chases in shared memory, and over the size in local memory."""
    for space, apart in ((SHARED, _SHORT), (LOCAL, _APART)):
        function = kernel(SOURCES[0], f"chase_{space.split()[0]}")
        for places in run.sizes["words"] if space == LOCAL else [_PLACES]:
            found = _around(run, function, places * _WORD, _WORD)
            yield {
                "table": "latency", "space": space, **found, "bytes": places * apart,
                "stride": apart,
            }  # fmt: skip


def _gathers(run: StudyRun) -> Iterator[Row]:
    """Yield seconds of an element of a random gather on the CPU, over the size of the array."""
    count = run.sizes["gathered"]
    rng = np.random.default_rng(0)
    out = np.empty(count)
    for size in run.sizes["arrays"]:
        run.report(f"gathers of {in_bytes(size)}")
        array = np.arange(size / _WORD)
        places = rng.integers(0, len(array), count)
        taken = samples(partial(np.take, array, places, out=out, mode="clip"))
        np.testing.assert_array_equal(out, places)
        found = spread([seconds / count for seconds in taken])
        yield {"table": "gather", "bytes": size, **found}


def measure(run: StudyRun) -> Iterator[Row]:
    """Time gathers on the CPU and chases on a GPU, and read off what they show."""
    rows = list(_gathers(run))
    if run.has_gpus(1, "pointer chases, which NumPy cannot make"):
        rows += [*_chases(run), *_chases_by_thread(run)]
    rows += list(read_off(rows))
    yield from rows
    if run.gpus:
        yield beside_what_is_said(rows, attribute("L2CacheSize"))


def beside_what_is_said(rows: Rows, nbytes: int) -> Row:
    """Return how much of a second cache of so many bytes the chases have seen."""
    found = rows_of(rows, "levels", space=SECOND)
    finest = values_of(found, "stride")[:1]
    capacities = [row["capacity"] for row in found if row["stride"] in finest and row["capacity"]]
    seen = max(capacities, default=None)
    return {
        "table": "said", "what": "second cache", "bytes": nbytes, "seen": seen,
        "of said": None if seen is None else seen / nbytes,
    }  # fmt: skip


def read_off(rows: Rows) -> Iterator[Row]:
    """Yield the levels of memory and the lengths of lines that rows show."""
    series = [(_GATHERS, None, rows_of(rows, "gather"))]
    for space in (*_LOADS, LOCAL):
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
    steps = [(space, rows_of(rows, "lines", space=space)) for space in _LOADS]
    for space, shown in (*steps, (_PAGES, rows_of(rows, "pages"))):
        strides, seconds = ([row[key] for row in shown] for key in ("stride", "seconds"))
        if len(shown) > 2 and (length := line_length(strides, seconds)):
            yield {"table": "lengths", "space": space, "bytes": length}


def find(rows: Rows) -> list[str]:
    """Say which levels there are, and how long their lines are."""
    found = []
    for space in (CACHED, SECOND, LOCAL, _GATHERS):
        of_space = rows_of(rows, "levels", space=space)
        for stride in values_of(of_space, "stride")[:1]:
            texts = _capacities(rows_of(of_space, "levels", stride=stride))
            found.append(f"{space[0].upper()}{space[1:]}: {texts}.")
    found += [
        f"{percent(row['of said'])} of the {in_bytes(row['bytes'])} that CUDA says the "
        f"{row['what']} has are seen by one thread."
        for row in rows_of(rows, "said")
        if row["seen"]
    ]
    addresses = rows_of(rows, "levels", space=SECOND)
    for stride in values_of(addresses, "stride")[1:][-1:]:
        texts = _capacities(rows_of(addresses, "levels", stride=stride))
        found.append(f"With one place in {in_bytes(stride)}, {SECOND}: {texts}.")
    for row in rows_of(rows, "lengths"):
        size = in_bytes(row["bytes"])
        if row["space"] == _PAGES:
            found.append(f"Addresses are looked up by pages of {size}.")
        else:
            fetcher = _FETCHERS[row["space"]]
            found.append(f"{fetcher[0].upper()}{fetcher[1:]} fetches {size} at a time.")
    return found or ["Gathers show no steps here: the sizes are too few."]


def _capacities(found: Rows) -> str:
    """Return levels as text."""
    return ", ".join(
        f"{in_seconds(row['latency'])} "
        + ("beyond" if row["capacity"] is None else f"up to {in_bytes(row['capacity'])}")
        for row in found
    )


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
        line(axes, rows_of(rows, "latency", space=LOCAL), "bytes", "cycles", LOCAL, 4)
        for row in rows_of(rows, "latency", space=SHARED):
            axes.axhline(row["cycles"], color=style(5)["color"], lw=1, label=SHARED)
        finish(axes, f"loads {space}", "bytes of the array", "cycles", logarithmic="x")
    if spaces:
        for i, space in enumerate(spaces):
            shown = rows_of(rows, "lines", space=space)
            label = f"lines of {_FETCHERS[space]}"
            line(others[-1], shown, "stride", "cycles", label, i)
        finish(others[-1], "over the stride", "stride, bytes", "cycles", logarithmic="x")


_SIZES = sorted(int(2**k * f) for k in range(12, 36) for f in (1, 1.5))
_WORDS = [size // _APART for size in _SIZES if size <= _PLACES * _APART]

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
        StudyTable("said", "what CUDA says, and the capacity that the chases have seen",
                   {"what": WORD, "bytes": BYTES, "seen": BYTES, "of said": percent}),
        StudyTable(
            "latency", "steps of a pointer chase, and the bytes of memory that its ring spans",
            {"space": WORD, "bytes": BYTES, "stride": BYTES, "cycles": number(), **SECONDS},
        ),
        StudyTable(
            "lines", "over the stride: from the second cache, and, past the first, from memory",
            {"space": WORD, "bytes": BYTES, "stride": BYTES, "cycles": number(), **SECONDS},
        ),
        StudyTable("pages", "over the stride, of so few places that the second cache holds them",
                   {"bytes": BYTES, "stride": BYTES, "cycles": number(), **SECONDS}),
        StudyTable("gather", "an element of a random gather on the CPU",
                   {"bytes": BYTES, **SECONDS}),
    ),
    sizes={
        "sizes": _SIZES, "strides": [128, 4096, 2**16, 2**21], "chases": 5, "pages": 4096,
        "words": _WORDS, "arrays": [2**k for k in range(12, 29)], "gathered": 2**16,
    },
    quick={
        "sizes": [2**14, 2**16, 2**24], "strides": [128], "chases": 2, "pages": 64,
        "words": [64, 256, 4096], "arrays": [2**13, 2**15, 2**24], "gathered": 2**13,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
