"""Runs without one of their optimizations, to measure what each is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from typing import Any

from hetero_la.planning.decisions import Decisions
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import assemble
from hetero_la.tiles.kernels.cpu.blas import triangular
from hetero_la.tiles.kernels.device import DeviceKind, Queue
from hetero_la.tiles.kernels.gpu.common import ceil_div, source
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.kernels.gpu.queue import block
from hetero_la.tiles.kernels.registry import implementation, implements
from hetero_la.tiles.kernels.spec import Triangular


class SingleQueueGpu(GpuDevice):
    """A GPU whose calls run one after the other."""

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index, name)
        self._queues = dict.fromkeys(Queue, self._queues[Queue.UPDATE])


def with_left_swaps_at_every_step(plan: Plan) -> Plan:
    """Return a plan of LU whose finished columns get the swaps of every step at once, as LAPACK's.

    Examples
    --------
    >>> import hetero_la
    >>> plan = hetero_la.plan("lu", (400, 400), nb=100)
    >>> eager = with_left_swaps_at_every_step(plan)
    >>> [sum(task.kind == "laswp" for task in p.graph.tasks) for p in (plan, eager)]
    [3, 6]
    """
    layout = replace(plan.layout, parts=plan.layout.kt)
    decided = {field.name: getattr(plan, field.name) for field in fields(Decisions)}
    return assemble(Decisions(**decided | {"layout": layout}))


@contextmanager
def _replaced(kind: DeviceKind, **kernels: Callable[..., None]) -> Iterator[None]:
    """Replace kernels of a device kind, by name."""
    ours = {name: implementation(name, kind) for name in kernels}
    for name, kernel in kernels.items():
        implements(name, kind)(kernel)
    try:
        yield
    finally:
        for name, kernel in ours.items():
            implements(name, kind)(kernel)


def swaps_one_by_one() -> AbstractContextManager[None]:
    """Let GPUs swap rows one pair after the other, not by their net permutation."""

    def swap(q: Any, ipiv: Any, net: Any, a: Any, options: Any) -> None:
        A, columns = block(a), a.shape[1]
        q.launch(
            q.function("swap_serial", source("columns", A.dtype)), (ceil_div(columns, 128),), 128,
            A.pointer, A.ld, columns, ipiv.data.ptr, len(ipiv), 0,
        )  # fmt: skip

    return _replaced("gpu", swap=swap)


def solves_by_trsm(kind: DeviceKind) -> AbstractContextManager[None]:
    """Let LU solve with L by the trsm of cuBLAS, or of the host's BLAS, and find no inverse."""
    if kind == "cpu":
        return _replaced("cpu", trtri=lambda a, w, options: None, trmm=_trsm_of_blas)
    return _replaced("gpu", trtri=lambda q, a, w, options: None, trmm=_trsm_of_cublas)


def _trsm_of_blas(a: Any, w: Any, b: Any, options: Any) -> None:
    triangular("trsm", b"LLNU", a[: len(b)], b)


def _trsm_of_cublas(q: Any, a: Any, w: Any, b: Any, options: Any) -> None:
    q.trsm(Triangular("l", "n", True), block(a), block(b), *b.shape)
