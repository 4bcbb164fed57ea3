"""Kernel calls of each step of a factorization: `StepKernels` of a matrix cut into tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

from hetero_la.scheduler.graph.step_kernels import Build, Call, StepKernels, Tile
from hetero_la.tiles.storage.layout import TileLayout


class Closing(NamedTuple):
    """Calls after the last step.

    Attributes
    ----------
    chain : list of Call
        Calls of the owner of the last panel alone.
    nbytes : int
        Bytes that it then sends to the other owners.
    columns : list of list of Call
        Calls after that on each tile column, by its owner.
    """

    chain: list[Call]
    nbytes: int
    columns: list[list[Call]]


class StepCalls:
    """Kernel calls of every step.

    Parameters
    ----------
    build : callable
        Builder of the graph, from a layout.
    layout : TileLayout
        The whole matrix, without right-hand sides.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> steps = StepCalls(lu_tasks, TileLayout(10**6, 10**6, 1000))
    >>> steps.panel(0)[0]
    Call(kind='getrf', shapes=[(1000000, 1000), (1000,), (1,)])
    >>> steps.update(400, 401, width=5000)[-1]
    Call(kind='gemm', shapes=[(599000, 1000), (1000, 5000), (599000, 5000)])
    >>> end = StepCalls(lu_tasks, TileLayout(6, 6, 2)).closing("float64")
    >>> [call.kind for call in end.chain], [calls[0].kind for calls in end.columns], end.nbytes
    (['compose', 'compose'], ['laswp', 'laswp'], 24)
    """

    def __init__(self, build: Build, layout: TileLayout) -> None:
        if layout.nrhs:
            raise ValueError(f"there must be no right-hand sides, not {layout.nrhs}")
        self.layout = layout
        self._kernels = StepKernels.of(build)
        #: Whether a kernel call for several tile columns needs neighbours in the matrix.
        self.trapezoid = self._kernels.trapezoid

    def panel(self, k: int) -> list[Call]:
        """Return the calls that factor panel `k`."""
        return self._kernels.panel(Tile.of(self.layout, k))

    def update(self, k: int, j: int, width: int | None = None) -> list[Call]:
        """Return the calls of step `k` on tile column `j`, or on `width` columns from there on."""
        width = self.layout.column_width(j) if width is None else width
        above = self.layout.row(j) - self.layout.row(k + 1)
        return self._kernels.update(Tile.of(self.layout, k), width, above)

    def message_bytes(self, k: int, dtype: Any) -> int:
        """Return the bytes of panel `k` that other workers need for their updates."""
        return self._kernels.message_bytes(Tile.of(self.layout, k), dtype)

    def kept_elements(self, k: int) -> int:
        """Return the elements of per-step values, in the matrix's dtype, that panel `k` makes."""
        return self._kernels.kept_elements(Tile.of(self.layout, k))

    def closing(self, dtype: Any) -> Closing:
        """Return the calls after the last step: row exchanges of LU, triangles of QR."""
        tiles = [Tile.of(self.layout, k) for k in range(self.layout.kt)]
        ends = [self._kernels.closing(tile) for tile in tiles]
        chain = [call for alone, _ in reversed(ends) for call in alone]
        columns = [calls for _, calls in ends]
        while columns and not columns[-1]:
            columns.pop()
        nbytes = sum(self._kernels.closing_bytes(tile, dtype) for tile in tiles)
        return Closing(chain, nbytes, columns)
