"""Table of routines: builder, operation count, tile sizes, and the kernels of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hetero_la.algorithms.cholesky import (
    cholesky_tasks,
    inverse_positive_tasks,
    solve_positive_tasks,
)
from hetero_la.algorithms.lu import lu_tasks
from hetero_la.algorithms.qr import (
    explicit_q_tasks,
    lstsq_tasks,
    minimum_norm_tasks,
    qr_tasks,
)
from hetero_la.algorithms.solve import inverse_tasks, solve_tasks
from hetero_la.algorithms.step_kernels import (
    CHOLESKY_STEP,
    LU_STEP,
    QR_STEP,
    SOLVE_POSITIVE_STEP,
    SOLVE_STEP,
)
from hetero_la.algorithms.substitution import (
    cholesky_substitution_tasks,
    lu_adjoint_substitution_tasks,
    lu_substitution_tasks,
    qr_multiply_adjoint_tasks,
    qr_multiply_tasks,
    qr_solve_tasks,
)
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.predict.estimate import Step
from hetero_la.tiles.storage.tile_sizes import TileSizes, tile_sizes


class Tiling(NamedTuple):
    """Tile size and look-ahead of matrices of at least an order, the smaller of m and n.

    Tiles are half as large where at most `fine` rows of the trailing matrix are left.
    """

    order: int
    nb: int
    lookahead: int = 1
    fine: int = 0

    def sizes(self, order: int) -> TileSizes:
        """Return the tile sizes of a matrix.

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
#: For a large matrix on one GPU, large tiles pay until a panel takes longer than an update.
_LARGE = Tiling(24576, 1024, 2, fine=16384)


@dataclass(frozen=True)
class Routine:
    """A routine: its builder, operation count, tile sizes and shapes.

    Attributes
    ----------
    tasks : callable
        Builder of its graph, from a layout and optionally a granularity.
    flops : callable
        Real operations for m, n, nrhs, as LAPACK counts them.
    step : Step
        Kernels of a step, for quick estimates.
    square, tall : bool
        Whether it needs m = n, or m >= n.
    gpu_tiles : tuple of Tiling
        Tile sizes on several GPUs, for the largest matrices first.
    one_gpu_tiles : tuple of Tiling
        Tile sizes on one GPU, which gains more from large products since no other GPU waits
        for its panels.  Those with `fine` are for matrices that are on the GPU.
    gpu_tail : int
        Number of last tiles that are factored as one, on GPUs.
    keeps : tuple of str
        Per-step values that routines on its factors need, besides the matrix.
    factored : bool
        Whether its input is factors; a step then has fewer kernels than `step`.
    transposed : bool
        Whether the functions that use it read the transpose of a NumPy array by default.
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
        """Raise ValueError for a matrix of a shape that the routine does not support."""
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
    lu_tasks, _lu_flops, LU_STEP,
    one_gpu_tiles=(
        _LARGE, Tiling(32768, 1024, 2), Tiling(24576, 768, 2), Tiling(4096, 512), Tiling(0, 256),
    ),
)  # fmt: skip
_CHOLESKY = Routine(
    cholesky_tasks, lambda m, n, nrhs: n**3 / 3 + n**2 * nrhs, CHOLESKY_STEP, square=True,
    gpu_tiles=(Tiling(0, 1024),), one_gpu_tiles=(Tiling(0, 1024),), gpu_tail=4,
    transposed=True,
)  # fmt: skip
_QR_TILES = (_LARGE._replace(order=32768, lookahead=1), *_TILES)
_QR = Routine(
    qr_tasks, lambda m, n, nrhs: _qr_flops(m, n, 0) + (4 * m * n - 2 * n**2) * nrhs, QR_STEP,
    one_gpu_tiles=_QR_TILES, keeps=("T",),
)  # fmt: skip
_LSTSQ = Routine(
    lstsq_tasks, lambda m, n, nrhs: _qr_flops(m, n, 0) + (4 * m * n - n**2) * nrhs, QR_STEP,
    one_gpu_tiles=_QR_TILES, tall=True,
)  # fmt: skip

_LU_SOLVE = Routine(
    lu_substitution_tasks, lambda m, n, nrhs: 2 * n**2 * nrhs, LU_STEP, square=True,
    factored=True,
)  # fmt: skip

_QR_MULTIPLY = Routine(
    qr_multiply_tasks,
    lambda m, n, nrhs: (4 * m * min(m, n) - 2 * min(m, n) ** 2) * nrhs,
    QR_STEP,
    factored=True,
)

#: Routines by name, as `plan` takes them.
ROUTINES = {
    "lu": _LU,
    "solve": replace(
        _LU,
        tasks=solve_tasks,
        step=SOLVE_STEP,
        square=True,
        flops=lambda m, n, nrhs: _lu_flops(m, n, 0) + 2 * n**2 * nrhs,
    ),
    "inverse": replace(
        _LU, tasks=inverse_tasks, step=SOLVE_STEP, square=True, flops=lambda m, n, nrhs: 2 * n**3
    ),
    "cholesky": _CHOLESKY,
    "solve_positive": replace(
        _CHOLESKY,
        tasks=solve_positive_tasks,
        step=SOLVE_POSITIVE_STEP,
        flops=lambda m, n, nrhs: n**3 / 3 + 2 * n**2 * nrhs,
    ),
    "inverse_positive": replace(
        _CHOLESKY,
        tasks=inverse_positive_tasks,
        step=SOLVE_POSITIVE_STEP,
        flops=lambda m, n, nrhs: n**3,
        gpu_tail=1,
    ),  # the identity's tile columns are the matrix's tile rows
    "qr": _QR,
    "explicit_q": replace(_QR, tasks=explicit_q_tasks, flops=_q_flops),
    "lstsq": _LSTSQ,
    "minimum_norm": replace(_LSTSQ, tasks=minimum_norm_tasks),
    "lu_solve": _LU_SOLVE,
    "lu_solve_adjoint": replace(_LU_SOLVE, tasks=lu_adjoint_substitution_tasks),
    "qr_multiply": _QR_MULTIPLY,
    "qr_multiply_adjoint": replace(_QR_MULTIPLY, tasks=qr_multiply_adjoint_tasks),
    "qr_solve": replace(
        _QR_MULTIPLY,
        tasks=qr_solve_tasks,
        tall=True,
        flops=lambda m, n, nrhs: (4 * m * n - n**2) * nrhs,
    ),
    "cho_solve": replace(_LU_SOLVE, tasks=cholesky_substitution_tasks),
}


def panel_kernel(routine: str) -> str:
    """Return the kernel that factors a routine's panels.

    Examples
    --------
    >>> panel_kernel("solve"), panel_kernel("lstsq")
    ('getrf', 'geqrf')
    """
    ((kind, _), *_) = ROUTINES[routine].step.panel(1, 1)
    return kind
