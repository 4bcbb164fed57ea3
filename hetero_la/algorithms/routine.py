"""The declaration of a routine: what it computes, of which matrices, in how many operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hetero_la.scheduler.graph.step_kernels import StepKernels, Tile
from hetero_la.scheduler.graph.task_graph import TaskGraph
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


#: By default.
TILES = (Tiling(49152, 1024), Tiling(8193, 512), Tiling(0, 256))
#: Of one large matrix on one GPU, long products pay until a panel takes longer than an update.
LARGE = Tiling(24576, 1024, 2, fine=16384)


@dataclass(frozen=True, kw_only=True)
class Routine:
    """What a factorization, or what is done with one, is: the one declaration of it.

    Attributes
    ----------
    tasks : callable
        Builder of its graph, from a layout and, if given, a granularity.
    flops : callable
        Real operations for m, n, nrhs, as LAPACK counts them.
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
        Whether it is given factors, and has no panels.
    transposed : bool
        Whether the functions that use it read a NumPy array's transpose by default.
    summary : str
        What it does, in a line.
    factors : tuple of str
        Names of the factors, where these are what is wanted.
    kind : str
        The kind of matrix that it is tested with, where no other is asked for.
    trouble : str
        What a matrix is that it can do nothing, or not all, with.
    ratio : str
        LAPACK's error ratio of it: a function of `hetero_la.testing.residuals`.
    reference : str
        The function of `scipy.linalg` that does the same, where one does.
    """

    tasks: Callable[..., TaskGraph]
    flops: Callable[[int, int, int], float]
    square: bool = False
    tall: bool = False
    gpu_tiles: tuple[Tiling, ...] = TILES
    one_gpu_tiles: tuple[Tiling, ...] = TILES
    gpu_tail: int = 1
    keeps: tuple[str, ...] = ()
    factored: bool = False
    transposed: bool = False
    summary: str = ""
    factors: tuple[str, ...] = ()
    kind: str = "rand"
    trouble: str = ""
    ratio: str = ""
    reference: str = ""

    @property
    def panel_kernel(self) -> str:
        """The kernel that factors its panels; it must not be given factors.

        Examples
        --------
        >>> from hetero_la.algorithms.routines import ROUTINES
        >>> ROUTINES["solve"].panel_kernel, ROUTINES["lstsq"].panel_kernel
        ('getrf', 'geqrf')
        """
        return StepKernels.of(self.tasks).panel(Tile(0, 1, 1, 1, 1))[0].kind

    def require_shape(self, name: str, m: int, n: int) -> None:
        """Raise ValueError for a matrix of a shape that the routine does not take."""
        if self.square and m != n:
            raise ValueError(f"{name} needs a square matrix, not one of shape {(m, n)}")
        if self.tall and m < n:
            raise ValueError(f"{name} needs at least as many rows as columns, not {(m, n)}")
