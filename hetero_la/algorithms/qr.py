"""QR factorization A = Q R by block reflectors, and products and solves with Q and R.

A is m x n, any m and n, with tile columns C to its right, if there are any.  Step k:

    geqrf      A[k:, k] = Q[k] R[k],  Q[k] = I - V T[k] V^H      V stays in A[k:, k]
    larfb_c    A[k:, j] <- Q[k]^H A[k:, j]                       j > k: trailing matrix

and at the very end R[k] takes the place that it has in LAPACK's packed factors:

    lacpy      A[k, k] <- R[k]

Before that, depending on the routine:

    Q^H C      the columns C are updated with the trailing matrix
    Q C        larfb_n    C[k:, j] <- Q[k] C[k:, j]              k = kt-1, ..., 0
    R^-1 C, R^-H C        see `right_hand_sides`

Later, with the packed factors and T[k], from whose tiles V is read as LAPACK packs it:

    Q^H C      gemqrt_c   C[k:, j] <- Q[k]^H C[k:, j]            k = 0, ..., kt-1
    Q C        gemqrt_n   C[k:, j] <- Q[k] C[k:, j]              k = kt-1, ..., 0

Sources: the blocked algorithm is LAPACK's geqrf; V is kept with its ones and zeros, so
that a block reflector is three products, as in MAGMA.  Least squares and minimum norm
are those of LAPACK's gels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetero_la.algorithms.right_hand_sides import set_identity, substitute
from hetero_la.algorithms.routine import LARGE, TILES, Routine
from hetero_la.scheduler.graph.builder import GraphBuilder
from hetero_la.scheduler.graph.task_graph import Granularity, TaskGraph
from hetero_la.scheduler.graph.tasks import Matrix, PerStep
from hetero_la.tiles.storage.layout import TileLayout


class _QR:
    """Builder of a QR graph, in parts; a reflector's task is always a whole column."""

    def __init__(self, layout: TileLayout, granularity: Granularity) -> None:
        self.g = GraphBuilder(layout, granularity)
        self.A: Matrix = self.g.matrix("A")
        self.tau = self.g.per_step("tau", lambda at: (at.order,), result=True)
        self.method = self.g.per_step("method", lambda at: (1,), np.int32, result=True)
        self.R: PerStep = self.g.per_step("R", lambda at: (at.order, at.order))
        self.T: PerStep = self.g.per_step("T", lambda at: (at.order, at.order))
        self.kt, self.nt = layout.kt, layout.nt
        self.columns = layout.nt + layout.rt
        self.step = layout.kt  # the first step after the factorization

    def factor(self, columns: int) -> None:
        """Factor A; the first `columns` tile columns get Q^H applied."""
        g, A, R, T = self.g, self.A, self.R, self.T
        for k in range(self.kt):
            with g.step(k):
                g.geqrf(A[k:, k], self.tau[k], R[k], T[k], self.method[k])
                for j in g.column_blocks(k + 1, columns):
                    g.larfb_c(A[k:, k], T[k], A[k:, j])

    def multiply(self, *, identity: bool = False) -> None:
        """Overwrite C with Q C; with `identity`, leave out what stays zero."""
        g, A, T = self.g, self.A, self.T
        for step, k in enumerate(range(self.kt - 1, -1, -1), self.step):
            with g.step(step):
                for j in g.column_blocks(self.nt + (k if identity else 0), self.columns):
                    g.larfb_n(A[k:, k], T[k], A[k:, j])
        self.step += self.kt

    def solve(self, kernel: str) -> None:
        """Overwrite the first rows of C with R^-1 C, or with R^-H C."""
        substitute(self.g, self.A, kernel, first=self.step, triangles=self.R)
        self.step += self.kt

    def packed(self) -> TaskGraph:
        """Return the graph, whose result is LAPACK's packed factors."""
        with self.g.step(self.step):
            for k in range(self.kt):
                self.g.lacpy(self.R[k], self.A[k, k])
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
    qr.solve("trsm")
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
    qr.solve("trsm_uc")
    qr.multiply()
    return qr.packed()


def multiply_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite C with Q C; ``T[k]`` is given.

    Examples
    --------
    >>> [task.kind for task in multiply_tasks(TileLayout(5, 4, 2, nrhs=1)).tasks]
    ['gemqrt_n', 'gemqrt_n']
    """
    return _reflect(layout, granularity, "gemqrt_n")


def adjoint_multiply_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite C with Q^H C; ``T[k]`` is given.

    Examples
    --------
    >>> [task.kind for task in adjoint_multiply_tasks(TileLayout(5, 4, 2, nrhs=1)).tasks]
    ['gemqrt_c', 'gemqrt_c']
    """
    return _reflect(layout, granularity, "gemqrt_c")


def substitution_tasks(layout: TileLayout, granularity: Granularity = "column") -> TaskGraph:
    """Build the tasks that overwrite the first n rows of C with R^-1 Q^H C; ``T[k]`` is given.

    Examples
    --------
    >>> [task.kind for task in substitution_tasks(TileLayout(5, 4, 2, nrhs=1)).tasks]
    ['gemqrt_c', 'gemqrt_c', 'trsm', 'gemm', 'trsm']
    """
    g = _reflect(layout, granularity, "gemqrt_c")
    substitute(g, g.matrix("A"), "trsm", first=layout.kt)
    return g


def _reflect(layout: TileLayout, granularity: Granularity, kernel: str) -> GraphBuilder:
    """Build the tasks that multiply C by all block reflectors, whose ``T[k]`` are given."""
    g = GraphBuilder(layout, granularity)
    A, kt = g.matrix("A"), layout.kt
    T = g.per_step("T", lambda at: (at.order, at.order))
    g.given = frozenset(("T", k) for k in range(kt))
    for step, k in enumerate(range(kt) if kernel == "gemqrt_c" else range(kt - 1, -1, -1)):
        with g.step(step):
            for j in g.right_hand_sides():
                getattr(g, kernel)(A[k:, k], T[k], A[k:, j])
    return g


def _flops(m: int, n: int, nrhs: int) -> float:
    k = min(m, n)
    return 2 * max(m, n) * k**2 - 2 * k**3 / 3


def _q_flops(m: int, n: int, nrhs: int) -> float:
    k = min(m, n)
    return _flops(m, n, 0) + 4 * m * nrhs * k - 2 * (m + nrhs) * k**2 + 4 * k**3 / 3


QR = Routine(
    tasks=qr_tasks,
    command="qr",
    options=("mode",),
    summary="factor a matrix: A = Q R",
    flops=lambda m, n, nrhs: _flops(m, n, 0) + (4 * m * n - 2 * n**2) * nrhs,
    factors=("q", "r"),
    ratio="qr_factors_ratio",
    reference="qr",
    one_gpu_tiles=(LARGE._replace(order=32768, lookahead=1), *TILES),
    keeps=("T",),
    library="qr",
    lapack_width=32,
    lapack_types={"f": 0.85, "d": 0.9, "F": 0.5, "D": 0.5},
)
_LSTSQ = replace(
    QR,
    tasks=lstsq_tasks,
    command="lstsq",
    options=("precision",),
    summary="solve A X = B by least squares, for a matrix of full rank",
    flops=lambda m, n, nrhs: _flops(m, n, 0) + (4 * m * n - n**2) * nrhs,
    tall=True,
    factors=(),
    trouble="rank-def",
    ratio="lstsq_ratio",
    reference="lstsq",
    keeps=(),
    library="qr_and_lstsq",
)
_MULTIPLY = Routine(
    tasks=multiply_tasks,
    flops=lambda m, n, nrhs: (4 * m * min(m, n) - 2 * min(m, n) ** 2) * nrhs,
    factored=True,
)

ROUTINES = {
    "qr": QR,
    "explicit_q": replace(
        QR,
        tasks=explicit_q_tasks,
        makes=True,
        called="qr with Q",
        flops=_q_flops,
        factors=(),
        when=(("mode", "economic"), ("mode", "full")),
        ratio="explicit_qr_ratio",
        library="qr_and_q",
    ),
    "lstsq": _LSTSQ,
    "minimum_norm": replace(
        _LSTSQ, tasks=minimum_norm_tasks, of_adjoint=True, called="minimum-norm lstsq", command="",
        library="qr_and_minimum_norm",
    ),
    "qr_multiply": _MULTIPLY,
    "qr_multiply_adjoint": replace(
        _MULTIPLY, tasks=adjoint_multiply_tasks, called="adjoint qr_multiply"
    ),
    "qr_solve": replace(
        _MULTIPLY,
        tasks=substitution_tasks,
        called="lstsq from factors",
        tall=True,
        flops=lambda m, n, nrhs: (4 * m * n - n**2) * nrhs,
    ),
}  # fmt: skip
