"""Cholesky factorization A = L L^H, right-looking, and solution of A X = B, as task graphs.

Of the n x n Hermitian positive definite A only the lower triangle is read and written;
the tile columns of right-hand sides B, if there are any, stand to its right.  Step k:

    potrf      A[k, k]  = L[k, k] L[k, k]^H               panel
    trtri_n    W[k]     = L[k, k]^-1
    trmm_rc    A[i, k] <- A[i, k] W[k]^H                  i > k: L[i, k]
    herk       A[j:, j] <- A[j:, j] - A[j:, k] A[j, k]^H  j > k: lower block triangle only
               (or tile by tile: herk for i = j, gemm_nc below it)
    trmm_n     B[k, j] <- W[k] B[k, j]                    Y = L^-1 B
    gemm       B[i, j] <- B[i, j] - A[i, k] B[k, j]       i > k

and then, from the last row of tiles up:

    gemm_cn    B[k, j] <- B[k, j] - A[i, k]^H B[i, j]     i > k
    trsm_lc    B[k, j] <- L[k, k]^-H B[k, j]              X[k, j]

Sources: the blocked algorithm is LAPACK's potrf; panels by multiplication with an
inverse are MAGMA's.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hetero_la.algorithms.identity import set_identity
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.tiles.storage.layout import TileLayout


def cholesky_tasks(
    layout: TileLayout,
    granularity: Literal["column", "tile"] = "column",
    *,
    identity: bool = False,
) -> TaskGraph:
    """Build the tasks that overwrite the lower triangle of A with L, and B with L^-1 B.

    Parameters
    ----------
    layout : TileLayout
        The n x n matrix, and right-hand sides, if any.
    granularity : {"column", "tile"}, optional
        Size of a task below the diagonal: one column of tiles, or one tile.
    identity : bool, optional
        Whether to write columns of the identity to the right-hand sides first.

    Returns
    -------
    TaskGraph
        The graph; its result is the per-step ``info[k]``, LAPACK's, relative to the panel.

    Examples
    --------
    >>> graph = cholesky_tasks(TileLayout(4, 4, 2))
    >>> [task.kind for task in graph.tasks]
    ['potrf', 'trtri_n', 'trmm_rc', 'herk', 'potrf']
    """
    g = TaskGraph(layout, granularity)
    A = g.matrix("A")
    if identity:
        set_identity(g, A)
    info = g.per_step("info", lambda k: (1,), np.int32, result=True)
    W = g.per_step("W", lambda k: (layout.diagonal(k), layout.diagonal(k)))
    for k in range(layout.kt):
        g.add("potrf", step=k, column=k, updates=[A[k, k]], writes=[info[k]])
        if k + 1 < layout.nt + layout.rt:
            g.add("trtri_n", step=k, column=k, reads=[A[k, k]], writes=[W[k]])
        for i in g.row_blocks(k + 1):
            g.add("trmm_rc", step=k, column=k, reads=[A[k, k], W[k]], updates=[A[i, k]])
        for j in g.column_blocks(k + 1, layout.nt):
            top, *below = g.row_blocks(j)
            g.add("herk", step=k, column=j, reads=[A[top, k]], updates=[A[top, j]])
            for i in below:
                g.add("gemm_nc", step=k, column=j, reads=[A[i, k], A[j, k]], updates=[A[i, j]])
        for j in g.column_blocks(layout.nt, layout.nt + layout.rt):
            g.add("trmm_n", step=k, column=j, reads=[A[k, k], W[k]], updates=[A[k, j]])
            for i in g.row_blocks(k + 1):
                g.add("gemm", step=k, column=j, reads=[A[i, k], A[k, j]], updates=[A[i, j]])
    return g


def solve_positive_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite the lower triangle of A with L, and B with X.

    Examples
    --------
    >>> graph = solve_positive_tasks(TileLayout(2, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks]
    ['potrf', 'trtri_n', 'trmm_n', 'trsm_lc']
    """
    return _substitute(cholesky_tasks(layout, granularity))


def inverse_positive_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite A's lower triangle with L, and the right-hand sides with A^-1.

    Examples
    --------
    >>> graph = inverse_positive_tasks(TileLayout(2, 2, 2, nrhs=2))
    >>> [task.kind for task in graph.tasks]
    ['laset_1', 'potrf', 'trtri_n', 'trmm_n', 'trsm_lc']
    """
    return _substitute(cholesky_tasks(layout, granularity, identity=True))


def _substitute(g: TaskGraph) -> TaskGraph:
    """Add tasks that overwrite B with L^-H B."""
    layout, A = g.layout, g.matrix("A")
    for k in range(layout.kt - 1, -1, -1):
        step = 2 * layout.kt - 1 - k
        for j in g.column_blocks(layout.nt, layout.nt + layout.rt):
            for i in g.row_blocks(k + 1):
                g.add("gemm_cn", step=step, column=j, reads=[A[i, k], A[i, j]], updates=[A[k, j]])
            g.add("trsm_lc", step=step, column=j, reads=[A[k, k]], updates=[A[k, j]])
    return g
