"""Tasks on right-hand sides B, to the right of the matrix: triangular solves, identity.

A product with a column of tiles comes after each triangular solve, or, with an adjoint, before:

    L^-1     B[k, j] <- L[k, k]^-1 B[k, j],   B[i, j] <- B[i, j] - A[i, k] B[k, j]    i > k
    U^-1     B[k, j] <- U[k, k]^-1 B[k, j],   B[i, j] <- B[i, j] - A[i, k] B[k, j]    i < k
    L^-H     B[k, j] <- B[k, j] - A[i, k]^H B[i, j],   B[k, j] <- L[k, k]^-H B[k, j]  i > k
    U^-H     B[k, j] <- B[k, j] - A[i, k]^H B[i, j],   B[k, j] <- U[k, k]^-H B[k, j]  i < k
"""

from __future__ import annotations

from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.tasks import Matrix, PerStep
from hetero_la.tiles.kernels.spec import TRIANGULAR


def substitute(
    g: GraphBuilder, A: Matrix, kernel: str, *, first: int = 0, triangles: PerStep | None = None
) -> None:
    """Add the tasks that solve with one triangle of A; they overwrite the right-hand sides.

    Parameters
    ----------
    g : GraphBuilder
        Graph, which gets one step for each diagonal tile.
    A : Matrix
        The matrix that holds the triangle.
    kernel : str
        Kernel that solves with the diagonal tiles: a key of `TRIANGULAR`.
    first : int, optional
        Number of the first step.
    triangles : PerStep, optional
        Triangles of the diagonal tiles, if they are not in `A`.
    """
    form, solve, layout = TRIANGULAR[kernel], getattr(g, kernel), g.layout
    adjoint = form.trans == "c"
    down = (form.triangle == "l") != adjoint
    order = range(layout.kt) if down else range(layout.kt - 1, -1, -1)
    for step, k in enumerate(order, first):
        triangle = A[k, k] if triangles is None else triangles[k]
        others = (k + 1, layout.mt) if form.triangle == "l" else (0, k)
        with g.step(step):
            for j in g.right_hand_sides():
                if not adjoint:
                    solve(triangle, A[k, j])
                for i in g.row_blocks(*others):
                    if adjoint:
                        g.gemm_cn(A[i, k], A[i, j], A[k, j])
                    else:
                        g.gemm(A[i, k], A[k, j], A[i, j])
                if adjoint:
                    solve(triangle, A[k, j])


def set_identity(g: GraphBuilder, A: Matrix, step: int = 0) -> None:
    """Add tasks that write columns of the identity to the right-hand sides' tile columns.

    These must be cut as the matrix's rows are: with the same tile sizes, and without a tail.
    """
    if g.layout.tail != 1:
        raise ValueError(
            f"an identity needs columns cut as the rows are: no tail of {g.layout.tail} tiles"
        )
    with g.step(step):
        for t in range(g.layout.rt):
            j = g.layout.nt + t
            if t:
                g.laset_0(A[:t, j])
            g.laset_1(A[t:, j])
