"""Solution of A X = B by LU, as one task graph that includes the right-hand sides.

B stands to the right of A in tile columns of its own, so that the elimination of
`hetero_la.algorithms.lu` leaves L^-1 P B there.  Then, from the last row of tiles up:

    trsm    B[k, j] <- U[k, k]^-1 B[k, j]             X[k, j]
    gemm    B[i, j] <- B[i, j] - U[i, k] X[k, j]      i < k
"""

from __future__ import annotations

from typing import Literal

from hetero_la.algorithms.lu import lu_tasks
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.tiles.storage.layout import TileLayout


def solve_tasks(layout: TileLayout, granularity: Literal["column", "tile"] = "column") -> TaskGraph:
    """Build the tasks that overwrite A with L and U, and B with X.

    Parameters
    ----------
    layout : TileLayout
        The n x n matrix and its right-hand sides.
    granularity : {"column", "tile"}, optional
        Size of a GEMM task: one column of tiles, or one tile.

    Examples
    --------
    >>> graph = solve_tasks(TileLayout(2, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks]
    ['getrf', 'netperm', 'trtri', 'swap', 'trmm', 'trsm']
    """
    return _substitute(lu_tasks(layout, granularity))


def inverse_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite A with L and U, and n columns to its right with A^-1.

    Examples
    --------
    >>> graph = inverse_tasks(TileLayout(2, 2, 2, nrhs=2))
    >>> [task.kind for task in graph.tasks]
    ['laset_1', 'getrf', 'netperm', 'trtri', 'swap', 'trmm', 'trsm']
    """
    return _substitute(lu_tasks(layout, granularity, identity=True))


def _substitute(g: TaskGraph) -> TaskGraph:
    """Add tasks that overwrite B with U^-1 B."""
    layout, A = g.layout, g.matrix("A")
    for k in range(layout.kt - 1, -1, -1):
        step = 2 * layout.kt - 1 - k
        for j in g.column_blocks(layout.nt, layout.nt + layout.rt):
            g.add("trsm", step=step, column=j, reads=[A[k, k]], updates=[A[k, j]])
            for i in g.row_blocks(0, k):
                g.add("gemm", step=step, column=j, reads=[A[i, k], A[k, j]], updates=[A[i, j]])
    return g
