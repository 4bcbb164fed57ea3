"""Right-hand sides that a run computes itself: columns of the identity."""

from __future__ import annotations

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Matrix


def set_identity(g: TaskGraph, A: Matrix, step: int = 0) -> None:
    """Add tasks that write columns of the identity to the right-hand sides' tile columns.

    These must be cut as the matrix's rows are: with the same tile sizes, and without a tail.
    """
    if g.layout.tail != 1:
        raise ValueError(
            f"an identity needs columns cut as the rows are: no tail of {g.layout.tail} tiles"
        )
    for t in range(g.layout.rt):
        j = g.layout.nt + t
        if t:
            g.add("laset_0", step=step, column=j, writes=[A[:t, j]])
        g.add("laset_1", step=step, column=j, writes=[A[t:, j]])
