"""How a matrix is cut into tiles."""

from __future__ import annotations

import functools
from dataclasses import dataclass


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class TileLayout:
    """An ``m`` x ``n`` matrix in ``nb`` x ``nb`` tiles, the last ones ragged.

    ``nrhs`` columns of right-hand sides may stand to the right of the matrix,
    in tile columns of their own: tile columns ``0 .. nt-1`` hold the matrix,
    ``nt .. nt+rt-1`` the right-hand sides.

    Parameters
    ----------
    m, n : int
        Rows and columns of the matrix, in elements.
    nb : int
        Tile size, in elements.
    nrhs : int, optional
        Columns of right-hand sides.
    tail : int, optional
        How many tiles the last one stands for, down and across, of a square matrix: near
        its end a factorization may do better with one large tile.

    Examples
    --------
    >>> layout = TileLayout(10, 7, 4, nrhs=1)
    >>> layout.mt, layout.nt, layout.kt, layout.rt
    (3, 2, 2, 1)
    >>> layout.columns(1), layout.columns(2), layout.rows(2)
    ((4, 7), (7, 8), (8, 10))
    >>> [TileLayout(10, 10, 2, tail=3).rows(i) for i in range(3)]
    [(0, 2), (2, 4), (4, 10)]
    """

    m: int
    n: int
    nb: int
    nrhs: int = 0
    tail: int = 1

    def __post_init__(self) -> None:
        if self.tail > 1 and self.m != self.n:
            raise ValueError(f"a tail needs a square matrix, not one of {self.m} x {self.n}")

    def _tiles(self, size: int) -> int:
        return max(_ceil_div(size, self.nb) - self.tail + 1, min(size, 1))

    def _start(self, tile: int, size: int) -> int:
        """First element of a tile, or `size` past the last one."""
        return tile * self.nb if not tile or (tile + self.tail - 1) * self.nb < size else size

    @functools.cached_property
    def mt(self) -> int:
        """Tile rows."""
        return self._tiles(self.m)

    @functools.cached_property
    def nt(self) -> int:
        """Tile columns of the matrix."""
        return self._tiles(self.n)

    @functools.cached_property
    def kt(self) -> int:
        """Steps of a factorization: the smaller of ``mt`` and ``nt``."""
        return min(self.mt, self.nt)

    @functools.cached_property
    def rt(self) -> int:
        """Tile columns of the right-hand sides."""
        return _ceil_div(self.nrhs, self.nb)

    @functools.cached_property
    def width(self) -> int:
        """All columns, right-hand sides included, in elements."""
        return self.n + self.nrhs

    @functools.cached_property
    def row_starts(self) -> list[int]:
        """``row(i)`` of all tile rows, and ``m``."""
        return [self.row(i) for i in range(self.mt + 1)]

    @functools.cached_property
    def column_widths(self) -> list[int]:
        """``column_width(j)`` of all tile columns, those of right-hand sides included."""
        return [self.column_width(j) for j in range(self.nt + self.rt)]

    def row(self, i: int) -> int:
        """First element row of tile row `i`; ``row(mt)`` is ``m``."""
        return self._start(i, self.m)

    def rows(self, i: int) -> tuple[int, int]:
        """Element rows ``[start, stop)`` of tile row `i`."""
        return self.row(i), self.row(i + 1)

    def columns(self, j: int) -> tuple[int, int]:
        """Element columns ``[start, stop)`` of tile column `j`."""
        if j < self.nt:
            return j * self.nb, self._start(j + 1, self.n)
        start = self.n + (j - self.nt) * self.nb
        return start, min(start + self.nb, self.width)

    def column_width(self, j: int) -> int:
        """Columns of tile column `j`, in elements."""
        start, stop = self.columns(j)
        return stop - start

    def diagonal(self, k: int) -> int:
        """Order of the triangular factor in diagonal tile `k`."""
        return min(self.row(k + 1), self.columns(k)[1]) - k * self.nb
