"""The GPU code without one of its optimizations, to measure what each is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

from hetero_la.algorithms.lu import eliminate
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import PerStep
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.gpu.common import ceil_div, source
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.kernels.gpu.queue import block
from hetero_la.tiles.kernels.registry import implementation, implements
from hetero_la.tiles.kernels.spec import Triangular
from hetero_la.tiles.storage.layout import TileLayout

#: LU whose finished columns get the swaps of every step at once, as LAPACK's do.
EAGER_LU = "lu, left swaps at every step"


class SingleQueueGpu(GpuDevice):
    """A GPU whose calls run one after the other."""

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index, name)
        self._queues = dict.fromkeys(Queue, self._queues[Queue.UPDATE])


def eager_lu_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """`lu_tasks` without compose and laswp."""
    g = GraphBuilder(layout, granularity)
    A = g.matrix("A")
    ipiv, net = eliminate(g, A), PerStep("net")
    if layout.kt == layout.nt:
        last = layout.kt - 1
        with g.step(last):
            g.netperm(ipiv[last], net[last])
    for k in range(layout.kt):
        with g.step(k):
            for j in range(k):
                g.swap(ipiv[k], net[k], A[k:, j])
    return g


ROUTINES[EAGER_LU] = dataclasses.replace(ROUTINES["lu"], tasks=eager_lu_tasks)


@contextmanager
def _replaced(**kernels: Callable[..., None]) -> Iterator[None]:
    """Replace kernels of the GPU, by name."""
    ours = {name: implementation(name, "gpu") for name in kernels}
    for name, kernel in kernels.items():
        implements(name, "gpu")(kernel)
    try:
        yield
    finally:
        for name, kernel in ours.items():
            implements(name, "gpu")(kernel)


def swaps_one_by_one() -> AbstractContextManager[None]:
    """Swap rows one pair after the other, not by their net permutation."""

    def swap(q: Any, ipiv: Any, net: Any, a: Any, options: Any) -> None:
        A, columns = block(a), a.shape[1]
        q.launch(
            q.function("swap_serial", source("columns", A.dtype)), (ceil_div(columns, 128),), 128,
            A.pointer, A.ld, columns, ipiv.data.ptr, len(ipiv), 0,
        )  # fmt: skip

    return _replaced(swap=swap)


def solves_by_trsm() -> AbstractContextManager[None]:
    """Solve with L by cuBLAS's trsm, and find no inverse."""

    def trtri(q: Any, a: Any, w: Any, options: Any) -> None:
        pass

    def trmm(q: Any, a: Any, w: Any, b: Any, options: Any) -> None:
        q.trsm(Triangular("l", "n", True), block(a), block(b), *b.shape)

    return _replaced(trtri=trtri, trmm=trmm)
