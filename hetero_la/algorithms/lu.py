"""LU factorization with partial pivoting, P A = L U, right-looking, as a task graph.

A is m x n, in mt x nt tiles (`TileLayout`), followed by the tile columns of right-hand
sides, if there are any.  Step k:

    getrf    A[k:, k]  = Pk^T L[k:, k] U[k, k]        panel; swaps in ipiv[k]
    netperm  net[k]    = rows moved by Pk
    trtri    W[k]      = L[k, k]^-1
    swap     A[k:, j] <- Pk A[k:, j]                  j > k
    trmm     A[k, j]  <- W[k] A[k, j]                 U[k, j]: the triangular solve
    gemm     A[i, j]  <- A[i, j] - A[i, k] A[k, j]    i, j > k: trailing matrix

In two-level blocking (`TileLayout.block`) this is done to the columns of the panel's own block,
K, whose finished ones are swapped, too.  The columns beyond get it after the block's last panel,
for all of its panels at once:

    gemm_block  A[i, j]  <- A[i, j] - A[i, K] A[K, j]    i, j beyond the block

A finished column of L gets the swaps of all later steps at once:

    compose  perm[k-1] = perm[k] o Pk                 k = kt-1, ..., 1
    laswp    A[j+1:, j] <- A[j+1:, j][perm[j]]        (from the end of its block on)

Where the steps are in parts (`TileLayout.parts`), it gets those of the rest of its own part, and
then those of each later part, at the end of that part.  The part's rows are final then.

In A X = B the right-hand sides are updated with the trailing matrix, so that the elimination
leaves L^-1 P B there; U^-1 is applied after that, from the last row of tiles up
(`right_hand_sides`).

Sources: the blocked algorithm is LAPACK's getrf; the solve by multiplication with
an inverse is MAGMA's (and Volkov and Demmel's, SC 2008); two levels are Volkov and Demmel's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetero_la.algorithms.checked_solves import LU_FORMS, check, keep
from hetero_la.algorithms.right_hand_sides import set_identity, substitute
from hetero_la.algorithms.routine import LARGE, Routine, Tiling
from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.task_graph import Granularity, TaskGraph
from hetero_la.scheduler.graph.tasks import Matrix, PerStep
from hetero_la.tiles.storage.layout import TileLayout

#: Result of a run for a determinant: the diagonal of U, by steps.
DIAGONAL = "diagonal"


def lu_tasks(
    layout: TileLayout, granularity: Granularity = "column", *, identity: bool = False
) -> GraphBuilder:
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
    g = GraphBuilder(layout, granularity)
    A = g.matrix("A")
    if identity:
        set_identity(g, A)
    eliminate(g, A, layout.nt + layout.rt)
    return g


def swap_finished(
    g: GraphBuilder, A: Matrix, ipiv: PerStep, perm: PerStep, first: int, last: int
) -> None:
    """Add the swaps of steps ``first:last`` in the columns that were finished before them."""
    for k in range(last - 1, max(first, 1) - 1, -1):
        g.compose(ipiv[k], perm[k] if k < last - 1 else None, perm[k - 1])
    for j in range(last - 1):
        begin = max(first, g.layout.block(j)[1])
        if begin < last:
            g.laswp(perm[begin - 1], A[begin:, j])


def eliminate(g: GraphBuilder, A: Matrix, columns: int) -> tuple[PerStep, PerStep]:
    """Add the tasks of all steps on so many tile columns; return ``ipiv`` and ``perm``."""
    layout, done = g.layout, 0
    ipiv = g.per_step("ipiv", lambda at: (at.order,), np.int32, result=True)
    info = g.per_step("info", lambda at: (1,), np.int32, result=True)
    net = g.per_step("net", lambda at: (2, 2 * at.order), np.int32)
    W = g.per_step("W", lambda at: (at.order, at.order))
    perm = g.per_step("perm", lambda at: (at.below,), np.int32)

    def update(first: int, end: int, start: int, stop: int) -> None:
        """Do the steps of panels ``first:end`` on tile columns ``start:stop``."""
        for j in g.column_blocks(start, stop):
            for k in range(first, end):
                g.swap(ipiv[k], net[k], A[k:, j])
            for k in range(first, end):
                g.trmm(A[k, k], W[k], A[k, j])
                for i in g.row_blocks(k + 1, end):
                    g.gemm(A[i, k], A[k, j], A[i, j])
            for i in g.row_blocks(end):
                g.subtract_product([A[i, k] for k in range(first, end)], A[first:end, j], A[i, j])

    for k in range(layout.kt):
        first, end = layout.block(k)
        with g.step(k):
            g.getrf(A[k:, k], ipiv[k], info[k])
            if k + 1 < columns:
                g.netperm(ipiv[k], net[k])
                g.trtri(A[k, k], W[k])
            for j in range(first, k):
                g.swap(ipiv[k], net[k], A[k:, j])
            update(k, k + 1, k + 1, end)
            if k + 1 == end:
                update(first, end, end, columns)
        if k + 1 in layout.part_ends:
            with g.step(k + 1):
                swap_finished(g, A, ipiv, perm, done, k + 1)
            done = k + 1
    return ipiv, perm


def solve_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
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
    g = lu_tasks(layout, granularity)
    substitute(g, g.matrix("A"), "trsm", first=layout.kt)
    return g


def determinant_tasks(layout: TileLayout) -> TaskGraph:
    """Build the tasks of `lu_tasks`, with the diagonal of U as a result.

    Examples
    --------
    >>> [task.kind for task in determinant_tasks(TileLayout(2, 2, 2)).tasks]
    ['getrf', 'diagonal']
    """
    g = lu_tasks(layout)
    A = g.matrix("A")
    diagonal = g.per_step(DIAGONAL, lambda at: (at.order,), result=True)
    for k in range(layout.kt):
        with g.step(layout.kt, column=k):
            g.diagonal(A[k, k], diagonal[k])
    return g


def checked_solve_tasks(layout: TileLayout) -> TaskGraph:
    """Build the tasks of `solve_tasks`, of the norms of A and A^-1, and of refinement.

    Examples
    --------
    >>> graph = checked_solve_tasks(TileLayout(2, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks][:7]
    ['sums', 'copy', 'copy', 'getrf', 'compose', 'gather', 'trsv_l1']
    """
    g = GraphBuilder(layout)
    A = g.matrix("A")
    given = keep(g, A)
    ipiv, perm = eliminate(g, A, layout.nt)
    order = g.per_step("order", lambda at: (layout.m,), np.int32)
    with g.step(layout.kt):
        g.compose(ipiv[0], perm[0] if layout.kt > 1 else None, order[0])
    check(g, A, LU_FORMS, given, order[0])
    return g


def inverse_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite A with L and U, and n columns to its right with A^-1.

    Examples
    --------
    >>> graph = inverse_tasks(TileLayout(2, 2, 2, nrhs=2))
    >>> [task.kind for task in graph.tasks]
    ['laset_1', 'getrf', 'netperm', 'trtri', 'swap', 'trmm', 'trsm']
    """
    g = lu_tasks(layout, granularity, identity=True)
    substitute(g, g.matrix("A"), "trsm", first=layout.kt)
    return g


def substitution_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite B, its rows permuted, with X, with given factors: L U X = B.

    Examples
    --------
    >>> [task.kind for task in substitution_tasks(TileLayout(4, 4, 2, nrhs=1)).tasks]
    ['trsm_l1', 'gemm', 'trsm_l1', 'trsm', 'gemm', 'trsm']
    """
    g = GraphBuilder(layout, granularity)
    substitute(g, g.matrix("A"), "trsm_l1")
    substitute(g, g.matrix("A"), "trsm", first=layout.kt)
    return g


def adjoint_substitution_tasks(
    layout: TileLayout, granularity: Granularity = "column"
) -> TaskGraph:
    """Build the tasks that overwrite B with X, its rows permuted, with given L U: (L U)^H X = B.

    Examples
    --------
    >>> [task.kind for task in adjoint_substitution_tasks(TileLayout(4, 4, 2, nrhs=1)).tasks]
    ['trsm_uc', 'gemm_cn', 'trsm_uc', 'trsm_lc1', 'gemm_cn', 'trsm_lc1']
    """
    g = GraphBuilder(layout, granularity)
    substitute(g, g.matrix("A"), "trsm_uc")
    substitute(g, g.matrix("A"), "trsm_lc1", first=layout.kt)
    return g


def _flops(m: int, n: int, nrhs: int) -> float:
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3


LU = Routine(
    tasks=lu_tasks,
    checked_tasks=determinant_tasks,
    command="lu",
    options=("pivot", "precision"),
    summary="factor a matrix: P A = L U",
    flops=_flops,
    factors=("lu", "piv"),
    trouble="singular",
    ratio="lu_ratio",
    reference="lu_factor",
    library="lu",
    lapack_longest=0.75,  # LU alone loses time by tasks about the order where that is predicted
    two_levels=True,
    parts=8,
    # Few, wide panels: one thread enqueues for all GPUs.
    gpu_tiles=(
        Tiling(65536, 1536, 2, resident=True),
        Tiling(8192, 1024), Tiling(4096, 512), Tiling(0, 256),
    ),
    one_gpu_tiles=(
        LARGE, Tiling(32768, 1024, 2), Tiling(24576, 768, 2), Tiling(4096, 512), Tiling(0, 256),
    ),
)  # fmt: skip
_SOLVE = replace(
    LU,
    tasks=solve_tasks,
    command="solve",
    options=("assume_a", "upper", "pivot", "precision"),
    summary="solve A X = B",
    flops=lambda m, n, nrhs: _flops(m, n, 0) + 2 * n**2 * nrhs,
    square=True,
    factors=(),
    ratio="solve_ratio",
    reference="",
    library="lu_and_solve",
    lapack_longest=0.5,
    parts=1,
    checked_tasks=checked_solve_tasks,
)
_LU_SOLVE = Routine(
    tasks=substitution_tasks, flops=lambda m, n, nrhs: 2 * n**2 * nrhs, square=True, factored=True
)

ROUTINES = {
    "lu": LU,
    "solve": _SOLVE,
    "inverse": replace(
        _SOLVE, tasks=inverse_tasks, flops=lambda m, n, nrhs: 2 * n**3, command="", makes=True,
        library="lu_and_invert", lapack_share=3 / 4, lapack_longest=2.0,  # it is many calls
    ),
    "lu_solve": _LU_SOLVE,
    "lu_solve_adjoint": replace(
        _LU_SOLVE, tasks=adjoint_substitution_tasks, called="adjoint lu_solve"
    ),
}  # fmt: skip
