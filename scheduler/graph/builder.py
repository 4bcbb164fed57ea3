"""Task graph that is built by calls of kernels.

    with g.step(k):
        g.getrf(A[k:, k], ipiv[k], info[k])

What a kernel reads, updates and writes is in its record (`hetero_la.tiles.kernels.spec`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.tiles.kernels.spec import SPECS


class GraphBuilder(TaskGraph):
    """A task graph with a method for each kernel, which appends a task to it.

    A task belongs to the tile column that it changes; one that changes per-step values only
    belongs to the panel of its step, or after the last step to the last panel, unless the step
    says to which column.

    Parameters
    ----------
    layout, granularity
        See `TaskGraph`.

    Examples
    --------
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> g = GraphBuilder(TileLayout(4, 4, 2))
    >>> A = g.matrix("A")
    >>> W = g.per_step("W", lambda at: (at.order, at.order))
    >>> with g.step(0):
    ...     g.trtri(A[0, 0], W[0])
    ...     g.trmm(A[0, 0], W[0], A[0, 1])
    >>> [(task.kind, task.column, task.after) for task in g.tasks]
    [('trtri', 0, ()), ('trmm', 1, (0,))]
    """

    _step: int | None = None
    _column: int | None = None

    @contextlib.contextmanager
    def step(self, number: int, column: int | None = None) -> Iterator[None]:
        """Add the tasks of the ``with`` statement's body to a step.

        With `column`, those that change per-step values only belong to that tile column.
        """
        before = self._step, self._column
        self._step, self._column = number, column
        try:
            yield
        finally:
            self._step, self._column = before

    def right_hand_sides(self) -> Iterator[int]:
        """Yield the tile columns to the right of the matrix, as `column_blocks` does."""
        return self.column_blocks(self.layout.nt, self.layout.nt + self.layout.rt)

    def subtract_product(self, A: Sequence[Region], B: Region, C: Region) -> None:
        """Append the task C <- C - A B, A in one part or several, side by side."""
        self._call("gemm" if len(A) == 1 else "gemm_block", (*A, B, C))

    if TYPE_CHECKING:

        def __getattr__(self, kernel: str) -> Callable[..., None]: ...

    def _call(self, kernel: str, regions: tuple[Region | None, ...]) -> None:
        """Append the task of a kernel on regions, in the order of its arrays."""
        if self._step is None:
            raise ValueError(f"{kernel} belongs to a step: call it inside `with graph.step(k)`")
        reads, updates, writes = SPECS[kernel].accesses(regions)
        changed = {r.index for r in updates + writes if r.name not in self.values}
        own = min(self._step, self.layout.kt - 1) if self._column is None else self._column
        (column,) = changed or {own}
        self.add(
            kernel, step=self._step, column=column, reads=reads, updates=updates, writes=writes
        )


def _method(kernel: str) -> Callable[..., None]:
    def append(self: GraphBuilder, *regions: Region | None) -> None:
        self._call(kernel, regions)

    return append


for _kernel in SPECS:
    setattr(GraphBuilder, _kernel, _method(_kernel))
