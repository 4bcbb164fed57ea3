"""Solution of A X = B with given factors of A, which an earlier run has left, as a task graph.

The factors stand in the tile columns of A, and are only read; B stands to their right.
A product with a column of tiles comes before or after each triangular solve:

    down       B[k, j] <- L[k, k]^-1 B[k, j],   B[i, j] <- B[i, j] - A[i, k] B[k, j]    i > k
    up         B[k, j] <- U[k, k]^-1 B[k, j],   B[i, j] <- B[i, j] - A[i, k] B[k, j]    i < k
    up^H       B[k, j] <- B[k, j] - A[i, k]^H B[i, j],   B[k, j] <- L[k, k]^-H B[k, j]  i > k
    down^H     B[k, j] <- B[k, j] - A[i, k]^H B[i, j],   B[k, j] <- U[k, k]^-H B[k, j]  i < k

For QR, T[k] of the block reflectors is given as well, and V is in A as LAPACK packs it:

    Q^H B      gemqrt_c   B[k:, j] <- Q[k]^H B[k:, j]    k = 0, ..., kt-1
    Q B        gemqrt_n   B[k:, j] <- Q[k] B[k:, j]      k = kt-1, ..., 0
"""

from __future__ import annotations

from typing import Literal

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.tiles.storage.layout import TileLayout


class _Substitution:
    """Builder of a graph of one or two substitutions."""

    def __init__(self, layout: TileLayout, granularity: Literal["column", "tile"]) -> None:
        self.g = TaskGraph(layout, granularity)
        self.A = self.g.matrix("A")
        self.layout, self.step = layout, 0
        self.right = layout.nt, layout.nt + layout.rt

    def sweep(self, kernel: str, *, down: bool, adjoint: bool = False) -> None:
        """Solve with one triangle, by `kernel` on its diagonal tiles."""
        kt = self.layout.kt
        for k in range(kt) if down else range(kt - 1, -1, -1):
            # With the adjoint of a triangle, the rows that it would update are read instead.
            other = slice(0, k) if down == adjoint else slice(k + 1, self.layout.mt)
            for j in self.g.column_blocks(*self.right):
                if adjoint:
                    self._product(k, j, other, adjoint)
                self._add(kernel, j, reads=[self.A[k, k]], updates=[self.A[k, j]])
                if not adjoint:
                    self._product(k, j, other, adjoint)
            self.step += 1

    def reflect(self, *, adjoint: bool) -> None:
        """Multiply by Q or Q^H, with given T of the block reflectors."""
        kt, order = self.layout.kt, [self.layout.diagonal(k) for k in range(self.layout.kt)]
        T = self.g.per_step("T", lambda k: (order[k], order[k]))
        self.g.given = frozenset(("T", k) for k in range(kt))
        for k in range(kt) if adjoint else range(kt - 1, -1, -1):
            for j in self.g.column_blocks(*self.right):
                self._add(
                    "gemqrt_c" if adjoint else "gemqrt_n", j,
                    reads=[self.A[k:, k], T[k]], updates=[self.A[k:, j]],
                )  # fmt: skip
            self.step += 1

    def _product(self, k: int, j: int, rows: slice, adjoint: bool) -> None:
        A = self.A
        for i in self.g.row_blocks(rows.start, rows.stop):
            if adjoint:
                self._add("gemm_cn", j, reads=[A[i, k], A[i, j]], updates=[A[k, j]])
            else:
                self._add("gemm", j, reads=[A[i, k], A[k, j]], updates=[A[i, j]])

    def _add(self, kind: str, j: int, **accesses: list[Region]) -> None:
        self.g.add(kind, step=self.step, column=j, **accesses)


def lu_substitution_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite B, its rows permuted, with X: L U X = B.

    Examples
    --------
    >>> [task.kind for task in lu_substitution_tasks(TileLayout(4, 4, 2, nrhs=1)).tasks]
    ['trsm_l1', 'gemm', 'trsm_l1', 'trsm', 'gemm', 'trsm']
    """
    s = _Substitution(layout, granularity)
    s.sweep("trsm_l1", down=True)
    s.sweep("trsm", down=False)
    return s.g


def lu_adjoint_substitution_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite B with X, its rows permuted: (L U)^H X = B.

    Examples
    --------
    >>> [task.kind for task in lu_adjoint_substitution_tasks(TileLayout(4, 4, 2, nrhs=1)).tasks]
    ['trsm_uc', 'gemm_cn', 'trsm_uc', 'trsm_lc1', 'gemm_cn', 'trsm_lc1']
    """
    s = _Substitution(layout, granularity)
    s.sweep("trsm_uc", down=True, adjoint=True)
    s.sweep("trsm_lc1", down=False, adjoint=True)
    return s.g


def cholesky_substitution_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite B with X: L L^H X = B.

    Examples
    --------
    >>> [task.kind for task in cholesky_substitution_tasks(TileLayout(4, 4, 2, nrhs=1)).tasks]
    ['trsm_l', 'gemm', 'trsm_l', 'trsm_lc', 'gemm_cn', 'trsm_lc']
    """
    s = _Substitution(layout, granularity)
    s.sweep("trsm_l", down=True)
    s.sweep("trsm_lc", down=False, adjoint=True)
    return s.g


def qr_multiply_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite B with Q B; ``T[k]`` is given.

    Examples
    --------
    >>> [task.kind for task in qr_multiply_tasks(TileLayout(5, 4, 2, nrhs=1)).tasks]
    ['gemqrt_n', 'gemqrt_n']
    """
    s = _Substitution(layout, granularity)
    s.reflect(adjoint=False)
    return s.g


def qr_multiply_adjoint_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite B with Q^H B; ``T[k]`` is given.

    Examples
    --------
    >>> [task.kind for task in qr_multiply_adjoint_tasks(TileLayout(5, 4, 2, nrhs=1)).tasks]
    ['gemqrt_c', 'gemqrt_c']
    """
    s = _Substitution(layout, granularity)
    s.reflect(adjoint=True)
    return s.g


def qr_solve_tasks(
    layout: TileLayout, granularity: Literal["column", "tile"] = "column"
) -> TaskGraph:
    """Build the tasks that overwrite the first n rows of B with R^-1 Q^H B; ``T[k]`` is given.

    Examples
    --------
    >>> [task.kind for task in qr_solve_tasks(TileLayout(5, 4, 2, nrhs=1)).tasks]
    ['gemqrt_c', 'gemqrt_c', 'trsm', 'gemm', 'trsm']
    """
    s = _Substitution(layout, granularity)
    s.reflect(adjoint=True)
    s.sweep("trsm", down=False)
    return s.g
