"""LU factorization without pivoting, A = L U, right-looking, as a task graph.

A is m x n, in mt x nt tiles (`TileLayout`), followed by the tile columns of right-hand
sides, if there are any.  Step k:

    getrf_nopiv  A[k:, k]  = L[k:, k] U[k, k]           panel
    growth       growth[k] = max |L[k:, k]|, max |U[:k+1, k]|
    trtri        W[k]      = L[k, k]^-1
    trmm         A[k, j]  <- W[k] A[k, j]               j > k; U[k, j]: the triangular solve
    gemm         A[i, j]  <- A[i, j] - A[i, k] A[k, j]  i, j > k: trailing matrix

Without pivoting the factors may grow without limit: their largest entries, step by step, tell how
accurate they are (`hetero_la.numerics.growth`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hetero_la.algorithms import lu
from hetero_la.algorithms.checked_solves import LU_FORMS, check, keep
from hetero_la.algorithms.right_hand_sides import substitute
from hetero_la.algorithms.routine import Tiling
from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.task_graph import Granularity, TaskGraph
from hetero_la.scheduler.graph.tasks import Matrix
from hetero_la.tiles.storage.layout import TileLayout


def lu_nopivot_tasks(layout: TileLayout, granularity: Granularity = "column") -> GraphBuilder:
    """Build the tasks that overwrite A with L and U, in a valid sequential order.

    Parameters
    ----------
    layout : TileLayout
        The m x n matrix, any m and n.
    granularity : {"column", "tile"}, optional
        Size of a GEMM task: one column of tiles, or one tile.

    Returns
    -------
    TaskGraph
        The graph; its results are the per-step vectors ``info[k]`` (first zero pivot of the
        panel, 1-based, or 0) and ``growth[k]``.

    Examples
    --------
    >>> graph = lu_nopivot_tasks(TileLayout(4, 4, 2))
    >>> [task.kind for task in graph.tasks]
    ['getrf_nopiv', 'growth', 'trtri', 'trmm', 'gemm', 'getrf_nopiv', 'growth']
    """
    g = GraphBuilder(layout, granularity)
    factor(g, g.matrix("A"), layout.nt + layout.rt)
    return g


def factor(g: GraphBuilder, A: Matrix, columns: int) -> None:
    """Add the tasks of all steps on so many tile columns."""
    layout = g.layout
    info = g.per_step("info", lambda at: (1,), np.int32, result=True)
    growth = g.per_step("growth", lambda at: (2,), np.float64, result=True)
    W = g.per_step("W", lambda at: (at.order, at.order))
    for k in range(layout.kt):
        with g.step(k):
            g.getrf_nopiv(A[k:, k], info[k])
            g.growth(A[k:, k], A[:k, k] if k else None, growth[k])
            if k + 1 < columns:
                g.trtri(A[k, k], W[k])
            for j in g.column_blocks(k + 1, columns):
                g.trmm(A[k, k], W[k], A[k, j])
                for i in g.row_blocks(k + 1):
                    g.gemm(A[i, k], A[k, j], A[i, j])


def solve_nopivot_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite A with L and U, and B with X.

    Examples
    --------
    >>> graph = solve_nopivot_tasks(TileLayout(2, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks]
    ['getrf_nopiv', 'growth', 'trtri', 'trmm', 'trsm']
    """
    g = lu_nopivot_tasks(layout, granularity)
    substitute(g, g.matrix("A"), "trsm", first=layout.kt)
    return g


def checked_solve_tasks(layout: TileLayout) -> TaskGraph:
    """Build the tasks of `solve_nopivot_tasks`, of the norms of A and A^-1, and of refinement.

    Examples
    --------
    >>> graph = checked_solve_tasks(TileLayout(2, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks][:6]
    ['sums', 'copy', 'copy', 'getrf_nopiv', 'growth', 'gather']
    """
    g = GraphBuilder(layout)
    A = g.matrix("A")
    given = keep(g, A)
    factor(g, A, layout.nt)
    check(g, A, LU_FORMS, given)
    return g


_UNPIVOTED: dict[str, Any] = {
    "library": "",
    "checked_tasks": None,
    "two_levels": False,
    "parts": 1,
    "when": (("pivot", "none"),),
    "trouble": "growth",
    "kind": "dominant",
    "one_gpu_tiles": (Tiling(32768, 1024), Tiling(2048, 512), Tiling(0, 256)),
}

ROUTINES = {
    "lu_nopivot": replace(
        lu.LU, tasks=lu_nopivot_tasks, called="lu without pivoting",
        summary="factor a matrix: A = L U", **_UNPIVOTED,
    ),
    "solve_nopivot": replace(
        lu.ROUTINES["solve"], tasks=solve_nopivot_tasks, called="solve without pivoting",
        **{**_UNPIVOTED, "checked_tasks": checked_solve_tasks},
    ),
}  # fmt: skip
