"""What it costs to start work that does nothing: on a GPU by each way of launching, and on the CPU.

A launch is *enqueued* when the call has returned, *in a row* is the time from the end of one kernel
to the end of the next, and *synchronized* is a launch with the wait for its end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg.blas

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD
from hetero_la.studies.common.cuda import attribute, cuda_source, kernel, launch
from hetero_la.studies.common.plots import bars, finish, panels, style
from hetero_la.studies.common.study import Row, Rows, Study, StudyRun, StudyTable, rows_of
from hetero_la.studies.common.timing import (
    Call,
    gpu_clock,
    host_clock,
    samples,
    spread,
    synchronous_clock,
)
from hetero_la.tiles.arrays.counted import in_seconds

SOURCES = (cuda_source("empty"),)
#: Launches of a graph.
_GRAPH = 64
#: Seconds of launches in a row that a GPU's queue holds without making the host wait.
_SHORT = 3e-4
_EDGES = np.geomspace(1e-7, 1e-3, 61)


def gpu_ways() -> dict[str, tuple[Call, int]]:
    """Return what launches on the current stream, and how many kernels each call starts."""
    import cupy
    from cupy_backends.cuda.api import driver
    from cupy_backends.cuda.libs import cublas

    stream = cupy.cuda.get_current_stream()
    raw = cupy.RawKernel(SOURCES[0].code, "empty")
    function = kernel(SOURCES[0], "empty")
    x, factor = cupy.ones(1), np.ones(1)
    handle = cupy.cuda.device.get_cublas_handle()
    ways: dict[str, tuple[Call, int]] = {
        "CuPy, RawKernel": (lambda: raw((1,), (32,), ()), 1),
        "CuPy, Function": (lambda: launch(function, 1, 32), 1),
        "driver": (
            lambda: driver.launchKernel(function.ptr, 1, 1, 1, 32, 1, 1, 0, stream.ptr, 0, 0), 1,
        ),
        "cuBLAS, scal of 1": (
            lambda: cublas.dscal(handle, 1, factor.ctypes.data, x.data.ptr, 1), 1,
        ),
    }  # fmt: skip
    if attribute("CooperativeLaunch"):
        ways["cooperative"] = (lambda: launch(function, 1, 32, cooperative=True), 1)
    launch(function, 1, 32)
    stream.begin_capture()
    for _ in range(_GRAPH):
        launch(function, 1, 32)
    graph = stream.end_capture()
    ways[f"graph of {_GRAPH}, each"] = (graph.launch, _GRAPH)
    return ways


def cpu_ways(pool: ThreadPoolExecutor) -> dict[str, Call]:
    """Return the same on a CPU: calls, and work that another thread does."""
    x = np.ones(1)
    return {
        "Python, a function": lambda: None,
        "BLAS, scal of 1": lambda: scipy.linalg.blas.dscal(1.0, x),
        "a thread, and back": lambda: pool.submit(int).result(),
    }


def measure(run: StudyRun) -> Iterator[Row]:
    """Time launches by each way."""
    with ThreadPoolExecutor(1) as pool:
        for way, call in cpu_ways(pool).items():
            run.report(way)
            found = spread(samples(call))
            yield {"table": "times", "place": "CPU", "way": way, "what": "and back", **found}
            yield _histogram("CPU", way, call, run.sizes["calls"])
    if not run.has_gpus(1, "launches of kernels"):
        return
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        for way, (call, kernels) in gpu_ways().items():
            run.report(way)
            clocks: dict[str, tuple[Callable[[Call, int], float], float]] = {
                "enqueued": (host_clock, _SHORT),
                "in a row": (gpu_clock, 5e-3),
                "synchronized": (synchronous_clock, 5e-3),
            }
            for what, (clock, least) in clocks.items():
                stream.synchronize()
                taken = [t / kernels for t in samples(call, clock, least=least)]
                yield {"table": "times", "place": "GPU", "way": way, "what": what, **spread(taken)}
            if kernels == 1:
                waited = _waited(call, stream)
                yield _histogram("GPU", way, waited, run.sizes["calls"])


def _waited(call: Call, stream: Any) -> Call:
    def both() -> None:
        call()
        stream.synchronize()

    return both


def _histogram(place: str, way: str, call: Call, calls: int) -> Row:
    """Return the distribution of the seconds of single calls."""
    taken = np.empty(calls)
    for i in range(calls):
        began = time.perf_counter()
        call()
        taken[i] = time.perf_counter() - began
    counts = np.histogram(np.clip(taken, _EDGES[0], _EDGES[-1]), _EDGES)[0]
    return {
        "table": "histogram", "place": place, "way": way, "half": np.median(taken),
        "99 %": np.quantile(taken, 0.99), "longest": taken.max(), "counts": counts,
    }  # fmt: skip


def find(rows: Rows) -> list[str]:
    """Say what a launch costs."""

    def typical(way: str, what: str) -> str:
        (row,) = rows_of(rows, "times", way=way, what=what)
        return in_seconds(row["seconds"])

    answer = typical("a thread, and back", "and back")
    thread = f"On the CPU, a thread does nothing and answers in {answer}."
    if not rows_of(rows, "times", place="GPU"):
        return [thread]
    enqueued, seen = (typical("CuPy, Function", what) for what in ("enqueued", "synchronized"))
    return [
        f"CuPy enqueues an empty kernel in {enqueued} and sees its end after {seen}; the driver "
        f"alone enqueues it in {typical('driver', 'enqueued')}.",
        f"In a graph, a kernel follows another after "
        f"{typical(f'graph of {_GRAPH}, each', 'in a row')}.",
        thread,
    ]


def draw(figure: Any, rows: Rows) -> None:
    """Draw times by way, and the distributions of synchronized launches."""
    ways, histogram = panels(figure, 2)
    times = rows_of(rows, "times")
    labels = [f"{row['way']}, {row['what']}" for row in times]
    kinds = ["and back", "enqueued", "in a row", "synchronized"]
    colours = [kinds.index(row["what"]) for row in times]
    bars(ways, labels, [1e6 * row["seconds"] for row in times], colours, logarithmic=True)
    for i, row in enumerate(times):
        ways.plot([1e6 * row["least"], 1e6 * row["most"]], [i, i], color="black", lw=1)
    finish(ways, "median, least and most", "µs", "", logarithmic="")
    for i, row in enumerate(rows_of(rows, "histogram")):
        share = np.asarray(row["counts"]) / np.sum(row["counts"])
        how = {"label": row["way"], "color": style(i)["color"], "ls": "-" if i < 7 else "--"}
        histogram.stairs(share, 1e6 * _EDGES, **how)
    histogram.set_xscale("log")
    finish(histogram, "single calls, synchronized", "µs", "share of the calls", logarithmic="")


STUDY = Study(
    name="launch",
    question="What does it cost to start a kernel, and to see its end?",
    source="Volkov and Demmel 2008, 3.1",
    original="3 to 7 µs asynchronous, 10 to 14 µs synchronized",
    tables=(
        StudyTable(
            "times", "seconds of a launch",
            {"place": WORD, "way": WORD, "what": WORD, **SECONDS},
        ),
        StudyTable(
            "histogram", "single calls, with the wait for their end",
            {"place": WORD, "way": WORD, "half": in_seconds, "99 %": in_seconds,
             "longest": in_seconds},
        ),
    ),
    sizes={"calls": 5000},
    quick={"calls": 300},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
