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

L^-H is applied after that, from the last row of tiles up (`right_hand_sides`).

Sources: the blocked algorithm is LAPACK's potrf; panels by multiplication with an
inverse are MAGMA's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetero_la.algorithms.checked_solves import CHOLESKY_FORMS, check, keep
from hetero_la.algorithms.right_hand_sides import set_identity, substitute
from hetero_la.algorithms.routine import Routine, Tiling
from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.task_graph import Granularity, TaskGraph
from hetero_la.scheduler.graph.tasks import Matrix
from hetero_la.tiles.storage.layout import TileLayout


def cholesky_tasks(
    layout: TileLayout, granularity: Granularity = "column", *, identity: bool = False
) -> GraphBuilder:
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
    g = GraphBuilder(layout, granularity)
    A = g.matrix("A")
    if identity:
        set_identity(g, A)
    factor(g, A, layout.nt + layout.rt)
    return g


def factor(g: GraphBuilder, A: Matrix, columns: int) -> None:
    """Add the tasks of all steps on so many tile columns."""
    layout = g.layout
    info = g.per_step("info", lambda at: (1,), np.int32, result=True)
    W = g.per_step("W", lambda at: (at.order, at.order))
    for k in range(layout.kt):
        with g.step(k):
            g.potrf(A[k, k], info[k])
            if k + 1 < columns:
                g.trtri_n(A[k, k], W[k])
            for i in g.row_blocks(k + 1):
                g.trmm_rc(A[k, k], W[k], A[i, k])
            for j in g.column_blocks(k + 1, layout.nt):
                top, *below = g.row_blocks(j)
                g.herk(A[top, k], A[top, j])
                for i in below:
                    g.gemm_nc(A[i, k], A[j, k], A[i, j])
            for j in g.column_blocks(layout.nt, columns):
                g.trmm_n(A[k, k], W[k], A[k, j])
                for i in g.row_blocks(k + 1):
                    g.gemm(A[i, k], A[k, j], A[i, j])


def solve_positive_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite the lower triangle of A with L, and B with X.

    Examples
    --------
    >>> graph = solve_positive_tasks(TileLayout(2, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks]
    ['potrf', 'trtri_n', 'trmm_n', 'trsm_lc']
    """
    g = cholesky_tasks(layout, granularity)
    substitute(g, g.matrix("A"), "trsm_lc", first=layout.kt)
    return g


def checked_solve_tasks(layout: TileLayout) -> TaskGraph:
    """Build the tasks of `solve_positive_tasks`, of the norms of A and A^-1, and of refinement.

    Examples
    --------
    >>> graph = checked_solve_tasks(TileLayout(2, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks][:6]
    ['sums_h', 'copy', 'copy', 'potrf', 'gather', 'trsv_l']
    """
    g = GraphBuilder(layout)
    A = g.matrix("A")
    given = keep(g, A, hermitian=True)
    factor(g, A, layout.nt)
    check(g, A, CHOLESKY_FORMS, given)
    return g


def inverse_positive_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite A's lower triangle with L, and the right-hand sides with A^-1.

    Examples
    --------
    >>> graph = inverse_positive_tasks(TileLayout(2, 2, 2, nrhs=2))
    >>> [task.kind for task in graph.tasks]
    ['laset_1', 'potrf', 'trtri_n', 'trmm_n', 'trsm_lc']
    """
    g = cholesky_tasks(layout, granularity, identity=True)
    substitute(g, g.matrix("A"), "trsm_lc", first=layout.kt)
    return g


def substitution_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite B with X, with a given factor: L L^H X = B.

    Examples
    --------
    >>> [task.kind for task in substitution_tasks(TileLayout(4, 4, 2, nrhs=1)).tasks]
    ['trsm_l', 'gemm', 'trsm_l', 'trsm_lc', 'gemm_cn', 'trsm_lc']
    """
    g = GraphBuilder(layout, granularity)
    substitute(g, g.matrix("A"), "trsm_l")
    substitute(g, g.matrix("A"), "trsm_lc", first=layout.kt)
    return g


CHOLESKY = Routine(
    tasks=cholesky_tasks,
    command="cholesky",
    options=("upper", "precision"),
    summary="factor a Hermitian positive definite matrix: A = L L^H or U^H U",
    flops=lambda m, n, nrhs: n**3 / 3 + n**2 * nrhs,
    square=True,
    factors=("l",),
    kind="kms",
    trouble="not pos.def.",
    ratio="cholesky_ratio",
    reference="cholesky",
    gpu_tiles=(Tiling(0, 1024),),
    one_gpu_tiles=(Tiling(0, 1024),),
    gpu_tail=4,
    library="cholesky",
    transposed=True,
)
_SOLVE = replace(
    CHOLESKY,
    tasks=solve_positive_tasks,
    called="solve by Cholesky",
    command="solve",
    when=(("assume_a", "pos"),),
    summary="solve A X = B for a Hermitian positive definite A",
    flops=lambda m, n, nrhs: n**3 / 3 + 2 * n**2 * nrhs,
    factors=(),
    ratio="solve_ratio",
    reference="",
    library="cholesky_and_solve",
    checked_tasks=checked_solve_tasks,
)

ROUTINES = {
    "cholesky": CHOLESKY,
    "solve_positive": _SOLVE,
    # The identity's tile columns are the matrix's tile rows: no tail.
    "inverse_positive": replace(
        _SOLVE, tasks=inverse_positive_tasks, flops=lambda m, n, nrhs: n**3, gpu_tail=1,
        makes=True, called="inverse by Cholesky", command="", library="",
    ),
    "cho_solve": Routine(
        tasks=substitution_tasks,
        flops=lambda m, n, nrhs: 2 * n**2 * nrhs,
        square=True,
        factored=True,
    ),
}  # fmt: skip
