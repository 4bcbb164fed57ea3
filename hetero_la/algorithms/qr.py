"""QR factorization A = Q R by block reflectors, and products and solves with Q and R.

A is m x n, any m and n, with tile columns C to its right, if there are any.  Step k:

    geqrf      A[k:, k] = Q[k] R[k],  Q[k] = I - V T[k] V^H      V stays in A[k:, k]
    larfb_c    A[k:, j] <- Q[k]^H A[k:, j]                       j > k: trailing matrix

and at the very end R[k] takes the place that it has in LAPACK's packed factors:

    lacpy      A[k, k] <- R[k]

Before that, depending on the routine:

    Q^H C      the columns C are updated with the trailing matrix
    Q C        larfb_n    C[k:, j] <- Q[k] C[k:, j]              k = kt-1, ..., 0
    R^-1 C     trsm       C[k, j] <- R[k]^-1 C[k, j]             k = kt-1, ..., 0
               gemm       C[i, j] <- C[i, j] - A[i, k] C[k, j]   i < k
    R^-H C     gemm_cn    C[k, j] <- C[k, j] - A[i, k]^H C[i, j] i < k
               trsm_uc    C[k, j] <- R[k]^-H C[k, j]             k = 0, ..., kt-1

Sources: the blocked algorithm is LAPACK's geqrf; V is kept with its ones and zeros, so
that a block reflector is three products, as in MAGMA.  Least squares and minimum norm
are those of LAPACK's gels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hetero_la.algorithms.identity import set_identity
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Matrix, PerStep
from hetero_la.tiles.storage.layout import TileLayout

Granularity = Literal["column", "tile"]


class _QR:
    """Builder of a QR graph, in parts; a reflector's task is always a whole column."""

    def __init__(self, layout: TileLayout, granularity: Granularity) -> None:
        self.g = TaskGraph(layout, granularity)
        self.A: Matrix = self.g.matrix("A")
        order = [layout.diagonal(k) for k in range(layout.kt)] or [0]
        self.tau = self.g.per_step("tau", lambda k: (order[k],), result=True)
        self.method = self.g.per_step("method", lambda k: (1,), np.int32, result=True)
        self.R: PerStep = self.g.per_step("R", lambda k: (order[k], order[k]))
        self.T: PerStep = self.g.per_step("T", lambda k: (order[k], order[k]))
        self.kt, self.nt = layout.kt, layout.nt
        self.columns = layout.nt + layout.rt
        self.step = layout.kt  # the first step after the factorization

    def factor(self, columns: int) -> None:
        """Factor A; the first `columns` tile columns get Q^H applied."""
        g, A, R, T = self.g, self.A, self.R, self.T
        for k in range(self.kt):
            g.add(
                "geqrf", step=k, column=k,
                updates=[A[k:, k]], writes=[self.tau[k], R[k], T[k], self.method[k]],
            )  # fmt: skip
            for j in g.column_blocks(k + 1, columns):
                g.add("larfb_c", step=k, column=j, reads=[A[k:, k], T[k]], updates=[A[k:, j]])

    def multiply(self, *, identity: bool = False) -> None:
        """Overwrite C with Q C; with `identity`, leave out what stays zero."""
        for k in range(self.kt - 1, -1, -1):
            for j in self.g.column_blocks(self.nt + (k if identity else 0), self.columns):
                self.g.add(
                    "larfb_n", step=self.step, column=j,
                    reads=[self.A[k:, k], self.T[k]], updates=[self.A[k:, j]],
                )  # fmt: skip
            self.step += 1

    def solve(self) -> None:
        """Overwrite the first rows of C with R^-1 C."""
        g, A = self.g, self.A
        for k in range(self.kt - 1, -1, -1):
            for j in g.column_blocks(self.nt, self.columns):
                g.add("trsm", step=self.step, column=j, reads=[self.R[k]], updates=[A[k, j]])
                for i in g.row_blocks(0, k):
                    g.add(
                        "gemm", step=self.step, column=j,
                        reads=[A[i, k], A[k, j]], updates=[A[i, j]],
                    )  # fmt: skip
            self.step += 1

    def solve_adjoint(self) -> None:
        """Overwrite the first rows of C with R^-H C."""
        g, A = self.g, self.A
        for k in range(self.kt):
            for j in g.column_blocks(self.nt, self.columns):
                for i in g.row_blocks(0, k):
                    g.add(
                        "gemm_cn", step=self.step, column=j,
                        reads=[A[i, k], A[i, j]], updates=[A[k, j]],
                    )  # fmt: skip
                g.add("trsm_uc", step=self.step, column=j, reads=[self.R[k]], updates=[A[k, j]])
            self.step += 1

    def packed(self) -> TaskGraph:
        """Return the graph, whose result is LAPACK's packed factors."""
        for k in range(self.kt):
            self.g.add("lacpy", step=self.step, column=k, reads=[self.R[k]], updates=[self.A[k, k]])
        return self.g


def qr_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite A with its packed factors, and C with Q^H C.

    Parameters
    ----------
    layout : TileLayout
        The m x n matrix, any m and n, and columns to its right, if any.
    granularity : {"column", "tile"}, optional
        Size of a product with R: one column of tiles, or one tile.

    Returns
    -------
    TaskGraph
        The graph; its results are the per-step vectors ``tau[k]`` and ``method[k]`` (the method
        by which the panel was factored).

    Examples
    --------
    >>> graph = qr_tasks(TileLayout(4, 4, 2))
    >>> [task.kind for task in graph.tasks]
    ['geqrf', 'larfb_c', 'geqrf', 'lacpy', 'lacpy']
    """
    qr = _QR(layout, granularity)
    qr.factor(layout.nt + layout.rt)
    return qr.packed()


def explicit_q_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite A with its packed factors, and C with columns of Q.

    Examples
    --------
    >>> graph = explicit_q_tasks(TileLayout(4, 2, 2, nrhs=4))
    >>> [task.kind for task in graph.tasks]
    ['geqrf', 'laset_1', 'laset_0', 'laset_1', 'larfb_n', 'larfb_n', 'lacpy']
    """
    qr = _QR(layout, granularity)
    qr.factor(layout.nt)
    set_identity(qr.g, qr.A, step=layout.kt)
    qr.multiply(identity=True)
    return qr.packed()


def lstsq_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite C with X, which minimizes ``||C - A X||``, for m >= n.

    The rows of C from n on become those of Q^H C: their norms are the residual's.

    Examples
    --------
    >>> graph = lstsq_tasks(TileLayout(4, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks]
    ['geqrf', 'larfb_c', 'trsm', 'lacpy']
    """
    qr = _QR(layout, granularity)
    qr.factor(layout.nt + layout.rt)
    qr.solve()
    return qr.packed()


def minimum_norm_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite C with the shortest X of ``A^H X = C``, for m >= n.

    The rows of C from n on must be zero.

    Examples
    --------
    >>> graph = minimum_norm_tasks(TileLayout(4, 2, 2, nrhs=1))
    >>> [task.kind for task in graph.tasks]
    ['geqrf', 'trsm_uc', 'larfb_n', 'lacpy']
    """
    qr = _QR(layout, granularity)
    qr.factor(layout.nt)
    qr.solve_adjoint()
    qr.multiply()
    return qr.packed()
