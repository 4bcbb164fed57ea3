"""The routines: what each computes, in how many operations, and what a step is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hetero_la.algorithms import cholesky, lu, qr
from hetero_la.algorithms.step_kernels import (
    CHOLESKY_STEP,
    LU_STEP,
    QR_STEP,
    SOLVE_POSITIVE_STEP,
    SOLVE_STEP,
)
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.predict.estimate import Step
from hetero_la.tiles.storage.tile_sizes import TileSizes, tile_sizes


class Tiling(NamedTuple):
    """Tile size and look-ahead of matrices from an order, the smaller of m and n, on.

    Tiles are half as large where no more than `fine` rows of the trailing matrix are left.
    """

    order: int
    nb: int
    lookahead: int = 1
    fine: int = 0

    def sizes(self, order: int) -> TileSizes:
        """The tile sizes of a matrix.

        Examples
        --------
        >>> Tiling(0, 64, fine=100).sizes(300), Tiling(0, 64).sizes(300)
        ((64, 64, 64, 64, 32), 64)
        """
        if not self.fine:
            return self.nb
        coarse = -(-max(order - self.fine, 0) // self.nb)
        return tile_sizes([*[self.nb] * coarse, self.nb // 2])


_TILES = (Tiling(49152, 1024), Tiling(8193, 512), Tiling(0, 256))
#: Of one large matrix on one GPU, long products pay until a panel takes longer than an update.
_LARGE = Tiling(24576, 1024, 2, fine=16384)


@dataclass(frozen=True)
class Routine:
    """One routine.

    Attributes
    ----------
    tasks : callable
        Builder of its graph, from a layout and, if given, a granularity.
    flops : callable
        Real operations for m, n, nrhs, as LAPACK counts them.
    step : Step
        A step's kernels, for quick estimates.
    square, tall : bool
        Whether it needs m = n, or m >= n.
    gpu_tiles : tuple of Tiling
        How matrices are cut for GPUs, the largest first.
    one_gpu_tiles : tuple of Tiling
        The same where there is one GPU: without neighbours that wait for its panels, it
        gains more from long products.  What gets finer is for matrices that are on the GPU.
    gpu_tail : int
        How many tiles are factored as one at the end, on GPUs.
    keeps : tuple of str
        Per-step values that later uses of its factors need, besides the matrix.
    factored : bool
        Whether it is given factors: then a step is less than `step`.
    transposed : bool
        Whether the functions that use it read a NumPy array's transpose by default.
    """

    tasks: Callable[..., TaskGraph]
    flops: Callable[[int, int, int], float]
    step: Step
    square: bool = False
    tall: bool = False
    gpu_tiles: tuple[Tiling, ...] = _TILES
    one_gpu_tiles: tuple[Tiling, ...] = _TILES
    gpu_tail: int = 1
    keeps: tuple[str, ...] = ()
    factored: bool = False
    transposed: bool = False

    def require_shape(self, name: str, m: int, n: int) -> None:
        """Raise ValueError for a matrix of a shape that the routine does not take."""
        if self.square and m != n:
            raise ValueError(f"{name} needs a square matrix, not one of shape {(m, n)}")
        if self.tall and m < n:
            raise ValueError(f"{name} needs at least as many rows as columns, not {(m, n)}")


def _lu_flops(m: int, n: int, nrhs: int) -> float:
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3


def _qr_flops(m: int, n: int, nrhs: int) -> float:
    k = min(m, n)
    return 2 * max(m, n) * k**2 - 2 * k**3 / 3


def _q_flops(m: int, n: int, nrhs: int) -> float:
    k = min(m, n)
    return _qr_flops(m, n, 0) + 4 * m * nrhs * k - 2 * (m + nrhs) * k**2 + 4 * k**3 / 3


_LU = Routine(
    lu.lu_tasks, _lu_flops, LU_STEP,
    one_gpu_tiles=(
        _LARGE, Tiling(32768, 1024, 2), Tiling(24576, 768, 2), Tiling(4096, 512), Tiling(0, 256),
    ),
)  # fmt: skip
_CHOLESKY = Routine(
    cholesky.cholesky_tasks, lambda m, n, nrhs: n**3 / 3 + n**2 * nrhs, CHOLESKY_STEP, square=True,
    gpu_tiles=(Tiling(0, 1024),), one_gpu_tiles=(Tiling(0, 1024),), gpu_tail=4,
    transposed=True,
)  # fmt: skip
_QR_TILES = (_LARGE._replace(order=32768, lookahead=1), *_TILES)
_QR = Routine(
    qr.qr_tasks, lambda m, n, nrhs: _qr_flops(m, n, 0) + (4 * m * n - 2 * n**2) * nrhs, QR_STEP,
    one_gpu_tiles=_QR_TILES, keeps=("T",),
)  # fmt: skip
_LSTSQ = Routine(
    qr.lstsq_tasks, lambda m, n, nrhs: _qr_flops(m, n, 0) + (4 * m * n - n**2) * nrhs, QR_STEP,
    one_gpu_tiles=_QR_TILES, tall=True,
)  # fmt: skip

_LU_SOLVE = Routine(
    lu.substitution_tasks, lambda m, n, nrhs: 2 * n**2 * nrhs, LU_STEP, square=True,
    factored=True,
)  # fmt: skip

_QR_MULTIPLY = Routine(
    qr.multiply_tasks,
    lambda m, n, nrhs: (4 * m * min(m, n) - 2 * min(m, n) ** 2) * nrhs,
    QR_STEP,
    factored=True,
)

#: By name: what `plan` takes as its routine.
ROUTINES = {
    "lu": _LU,
    "solve": replace(
        _LU,
        tasks=lu.solve_tasks,
        step=SOLVE_STEP,
        square=True,
        flops=lambda m, n, nrhs: _lu_flops(m, n, 0) + 2 * n**2 * nrhs,
    ),
    "inverse": replace(
        _LU, tasks=lu.inverse_tasks, step=SOLVE_STEP, square=True, flops=lambda m, n, nrhs: 2 * n**3
    ),
    "cholesky": _CHOLESKY,
    "solve_positive": replace(
        _CHOLESKY,
        tasks=cholesky.solve_positive_tasks,
        step=SOLVE_POSITIVE_STEP,
        flops=lambda m, n, nrhs: n**3 / 3 + 2 * n**2 * nrhs,
    ),
    "inverse_positive": replace(
        _CHOLESKY,
        tasks=cholesky.inverse_positive_tasks,
        step=SOLVE_POSITIVE_STEP,
        flops=lambda m, n, nrhs: n**3,
        gpu_tail=1,
    ),  # the identity's tile columns are the matrix's tile rows
    "qr": _QR,
    "explicit_q": replace(_QR, tasks=qr.explicit_q_tasks, flops=_q_flops),
    "lstsq": _LSTSQ,
    "minimum_norm": replace(_LSTSQ, tasks=qr.minimum_norm_tasks),
    "lu_solve": _LU_SOLVE,
    "lu_solve_adjoint": replace(_LU_SOLVE, tasks=lu.adjoint_substitution_tasks),
    "qr_multiply": _QR_MULTIPLY,
    "qr_multiply_adjoint": replace(_QR_MULTIPLY, tasks=qr.adjoint_multiply_tasks),
    "qr_solve": replace(
        _QR_MULTIPLY,
        tasks=qr.substitution_tasks,
        tall=True,
        flops=lambda m, n, nrhs: (4 * m * n - n**2) * nrhs,
    ),
    "cho_solve": replace(_LU_SOLVE, tasks=cholesky.substitution_tasks),
}


def panel_kernel(routine: str) -> str:
    """The kernel that factors a routine's panels.

    Examples
    --------
    >>> panel_kernel("solve"), panel_kernel("lstsq")
    ('getrf', 'geqrf')
    """
    ((kind, _), *_) = ROUTINES[routine].step.panel(1, 1)
    return kind
