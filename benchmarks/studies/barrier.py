"""How long a barrier between blocks takes, beside the launch of another kernel.

A kernel that goes on after a barrier keeps what it has in registers and shared memory; the end of
a launch is a barrier, too, but for that.  Every kind is checked before it is timed: no block may
see another that has not arrived.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD
from hetero_la.studies.common.cuda import (
    attribute,
    capability,
    cuda_source,
    kernel,
    launch,
    multiprocessors,
)  # fmt: skip
from hetero_la.studies.common.plots import finish, line, panels
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)  # fmt: skip
from hetero_la.studies.common.timing import gpu_clock, host_clock, samples, spread
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.kernels.gpu.sources import Source

KINDS = {"counter, as cooperative groups": 0, "flags": 1, "words with numbers, ours": 2}
CLUSTERS = (2, 4, 8)
_CLUSTER, _LAUNCH, _GRAPH = "cluster", "a launch each", "a launch each, in a graph"
_THREADS = 128
#: Launches of a graph.
_LAUNCHES = 100
EMPTY = cuda_source("empty")


def _source(kind: int, checked: bool, cluster: int = 0) -> Source:
    defines = [f"KIND={kind}", f"CHECKED={int(checked)}"]
    defines += ["REAL=double"] * (kind == 2) + [f"CLUSTER={cluster}"] * bool(cluster)
    return cuda_source("barrier", *defines)


SOURCES = tuple(
    [_source(kind, checked) for kind in KINDS.values() for checked in (True, False)]
    + [_source(3, checked, cluster) for cluster in CLUSTERS for checked in (True, False)]
)


class Barriers:
    """Launches of one kind of barrier, whose rounds have growing numbers."""

    def __init__(self, kind: int, blocks: int, cluster: int = 0) -> None:
        import cupy

        self._blocks, self._cooperative, self._next = blocks, not cluster, 1
        self._checked, self._plain = (
            kernel(_source(kind, checked, cluster), "barriers") for checked in (True, False)
        )
        self._memory = cupy.zeros(8 * blocks + 64, cupy.uint32)
        self._marks, self._wrong = cupy.zeros(2 * blocks, cupy.uint32), cupy.zeros(1, cupy.uint32)

    def run(self, rounds: int, *, checked: bool = False) -> None:
        """Enqueue a kernel with so many barriers."""
        launch(
            self._checked if checked else self._plain, self._blocks, _THREADS, self._memory,
            self._next, rounds, self._marks, self._wrong, cooperative=self._cooperative,
        )  # fmt: skip
        self._next += rounds

    def check(self, rounds: int) -> None:
        """Raise unless every block has found all others at every barrier."""
        self.run(rounds, checked=True)
        if wrong := int(self._wrong[0]):
            raise AssertionError(f"{wrong} times a block was ahead of another")


def _on_gpu(run: StudyRun) -> Iterator[Row]:
    """Yield times of a barrier of each kind, over the number of blocks."""
    most, rounds = multiprocessors(), run.sizes["rounds"]
    counts = sorted({*(2**k for k in range(10) if 2**k < most), most})
    barriers = [(kind, number, blocks, 0) for kind, number in KINDS.items() for blocks in counts]
    if not attribute("CooperativeLaunch"):
        run.leave_out("barriers of a grid: the GPU has no cooperative launches")
        barriers = []
    if capability() >= 90:
        barriers += [(_CLUSTER, 3, cluster, cluster) for cluster in CLUSTERS]
    else:
        run.leave_out("barriers of clusters: the GPU has none")
    for kind, number, blocks, cluster in barriers:
        run.report(f"{kind}, {blocks} blocks")
        those = Barriers(number, blocks, cluster)
        those.check(min(rounds, 200))
        taken = [t / rounds for t in samples(partial(those.run, rounds), gpu_clock)]
        yield {"table": "barriers", "kind": kind, "blocks": blocks, **spread(taken)}
    for blocks in counts:
        for kind, taken in _launches(blocks).items():
            yield {"table": "barriers", "kind": kind, "blocks": blocks, **spread(taken)}


def _launches(blocks: int) -> dict[str, list[float]]:
    """Return samples of the time from one empty kernel to the next."""
    import cupy

    function = kernel(EMPTY, "empty")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        alone = samples(lambda: launch(function, blocks, _THREADS), gpu_clock)
        stream.begin_capture()
        for _ in range(_LAUNCHES):
            launch(function, blocks, _THREADS)
        graph = stream.end_capture()
        together = [t / _LAUNCHES for t in samples(graph.launch, gpu_clock)]
    return {_LAUNCH: alone, _GRAPH: together}


def _on_cpu(rounds: int) -> Iterator[Row]:
    """Yield times of a barrier between threads of Python."""
    for threads in (2, 4):
        barrier = threading.Barrier(threads)
        with ThreadPoolExecutor(threads - 1) as pool:
            meeting = partial(_meet, pool, barrier, rounds)
            taken = [t / rounds for t in samples(meeting, host_clock, count=5)]
        yield {"table": "barriers", "kind": "threads of Python", "blocks": threads, **spread(taken)}


def _meet(pool: ThreadPoolExecutor, barrier: threading.Barrier, rounds: int) -> None:
    """Let all threads of a pool and this one meet so many times."""

    def wait() -> None:
        for _ in range(rounds):
            barrier.wait()

    others = [pool.submit(wait) for _ in range(barrier.parties - 1)]
    wait()
    for other in others:
        other.result()


def measure(run: StudyRun) -> Iterator[Row]:
    """Time barriers by kind and number of those who meet."""
    yield from _on_cpu(run.sizes["meetings"])
    if run.has_gpus(1, "barriers between blocks"):
        yield from _on_gpu(run)


def find(rows: Rows) -> list[str]:
    """Say what barriers of all blocks take, and how many times a launch that is."""
    blocks = max((row["blocks"] for row in rows if row["kind"] in (*KINDS, _LAUNCH)), default=0)
    full = {row["kind"]: row["seconds"] for row in rows if row["blocks"] == blocks}
    found = []
    if kinds := [kind for kind in KINDS if kind in full]:
        texts = [f"{in_seconds(full[kind])} ({kind})" for kind in kinds]
        best = min(full[kind] for kind in kinds)
        found.append(
            f"A barrier of {blocks} blocks takes {', '.join(texts)}; the launch of another kernel "
            f"takes {full[_LAUNCH] / best:.1f} times the least of them, in a graph "
            f"{full[_GRAPH] / best:.1f} times."
        )
    for row in rows_of(rows, "barriers", kind=_CLUSTER)[-1:]:
        taken = in_seconds(row["seconds"])
        found.append(f"The barrier of a cluster of {row['blocks']} blocks takes {taken}.")
    for row in rows_of(rows, "barriers", kind="threads of Python")[:1]:
        found.append(f"Two threads of Python meet in {in_seconds(row['seconds'])}.")
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw times over the number of blocks."""
    (axes,) = panels(figure, 1)
    figure.set_size_inches(6, 4)
    for i, kind in enumerate(values_of(rows, "kind")):
        line(axes, rows_of(rows, "barriers", kind=kind), "blocks", "seconds", kind, i)
    finish(axes, "one barrier", "blocks, or threads", "seconds")


STUDY = Study(
    name="barrier",
    question="How long does a barrier between blocks take, and is it cheaper than a launch?",
    source="Volkov and Demmel 2008, 3.8",
    original="1.3 to 2.0 µs, 1.5 to 5.4 times cheaper than a launch",
    tables=(
        StudyTable("barriers", "one barrier", {"kind": WORD, "blocks": str, **SECONDS}),
    ),
    sizes={"rounds": 2000, "meetings": 500},
    quick={"rounds": 200, "meetings": 50},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
