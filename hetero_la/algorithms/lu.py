"""LU factorization with partial pivoting, P A = L U, right-looking, as a task graph.

A is m x n, in mt x nt tiles (`TileLayout`), followed by the tile columns of right-hand
sides, if there are any.  Step k:

    getrf    A[k:, k]  = Pk^T L[k:, k] U[k, k]        panel; swaps in ipiv[k]
    netperm  net[k]    = rows moved by Pk
    trtri    W[k]      = L[k, k]^-1
    swap     A[k:, j] <- Pk A[k:, j]                  j > k
    trmm     A[k, j]  <- W[k] A[k, j]                 U[k, j]: the triangular solve
    gemm     A[i, j]  <- A[i, j] - A[i, k] A[k, j]    i, j > k: trailing matrix

A finished column of L gets the swaps of all later steps at once:

    compose  perm[k-1] = perm[k] o Pk                 k = kt-1, ..., 1
    laswp    A[j+1:, j] <- A[j+1:, j][perm[j]]

Sources: the blocked algorithm is LAPACK's getrf; the solve by multiplication with
an inverse is MAGMA's (and Volkov and Demmel's, SC 2008).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hetero_la.algorithms.identity import set_identity
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Matrix, PerStep
from hetero_la.tiles.storage.layout import TileLayout


def lu_tasks(
    layout: TileLayout,
    granularity: Literal["column", "tile"] = "column",
    *,
    identity: bool = False,
) -> TaskGraph:
    """Build the tasks that overwrite A with L and U, in a valid sequential order.

    Parameters
    ----------
    layout : TileLayout
        The m x n matrix, any m and n.
    granularity : {"column", "tile"}, optional
        Size of a GEMM task: one column of tiles, or one tile.
    identity : bool, optional
        Whether to write columns of the identity to the right-hand sides first.

    Returns
    -------
    TaskGraph
        The graph; its results are the per-step vectors ``ipiv[k]`` (0-based swaps relative to
        the first row of tile row k) and ``info[k]`` (LAPACK's, relative to the panel).

    Examples
    --------
    >>> graph = lu_tasks(TileLayout(4, 4, 2))
    >>> [task.kind for task in graph.tasks]
    ['getrf', 'netperm', 'trtri', 'swap', 'trmm', 'gemm', 'getrf', 'compose', 'laswp']
    """
    g = TaskGraph(layout, granularity)
    A = g.matrix("A")
    if identity:
        set_identity(g, A)
    ipiv = eliminate(g, A)
    perm = g.per_step("perm", lambda k: (layout.m - layout.row(k + 1),), np.int32)
    for k in range(layout.kt - 1, 0, -1):
        after = [perm[k]] if k < layout.kt - 1 else []
        g.add(
            "compose", step=layout.kt, column=layout.kt - 1,
            reads=[ipiv[k], *after], writes=[perm[k - 1]],
        )  # fmt: skip
    for j in range(layout.kt - 1):
        g.add("laswp", step=layout.kt, column=j, reads=[perm[j]], updates=[A[j + 1 :, j]])
    return g


def eliminate(g: TaskGraph, A: Matrix) -> PerStep:
    """Add the tasks of all steps, without swaps in finished columns; return ``ipiv``."""
    layout = g.layout
    ipiv = g.per_step("ipiv", lambda k: (layout.diagonal(k),), np.int32, result=True)
    info = g.per_step("info", lambda k: (1,), np.int32, result=True)
    net = g.per_step("net", lambda k: (2, 2 * layout.diagonal(k)), np.int32)
    W = g.per_step("W", lambda k: (layout.diagonal(k), layout.diagonal(k)))
    columns = layout.nt + layout.rt
    for k in range(layout.kt):
        g.add("getrf", step=k, column=k, updates=[A[k:, k]], writes=[ipiv[k], info[k]])
        if k + 1 < columns:
            g.add("netperm", step=k, column=k, reads=[ipiv[k]], writes=[net[k]])
            g.add("trtri", step=k, column=k, reads=[A[k, k]], writes=[W[k]])
        for j in g.column_blocks(k + 1, columns):
            g.add("swap", step=k, column=j, reads=[ipiv[k], net[k]], updates=[A[k:, j]])
            g.add("trmm", step=k, column=j, reads=[A[k, k], W[k]], updates=[A[k, j]])
            for i in g.row_blocks(k + 1):
                g.add("gemm", step=k, column=j, reads=[A[i, k], A[k, j]], updates=[A[i, j]])
    return ipiv
