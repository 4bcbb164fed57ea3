"""How a matrix is cut into tiles."""

from __future__ import annotations

from dataclasses import dataclass


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
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

    Examples
    --------
    >>> layout = TileLayout(10, 7, 4, nrhs=1)
    >>> layout.mt, layout.nt, layout.kt, layout.rt
    (3, 2, 2, 1)
    >>> layout.columns(1), layout.columns(2), layout.rows(2)
    ((4, 7), (7, 8), (8, 10))
    """

    m: int
    n: int
    nb: int
    nrhs: int = 0

    @property
    def mt(self) -> int:
        """Tile rows."""
        return _ceil_div(self.m, self.nb)

    @property
    def nt(self) -> int:
        """Tile columns of the matrix."""
        return _ceil_div(self.n, self.nb)

    @property
    def kt(self) -> int:
        """Steps of a factorization: the smaller of ``mt`` and ``nt``."""
        return min(self.mt, self.nt)

    @property
    def rt(self) -> int:
        """Tile columns of the right-hand sides."""
        return _ceil_div(self.nrhs, self.nb)

    @property
    def width(self) -> int:
        """All columns, right-hand sides included, in elements."""
        return self.n + self.nrhs

    def row(self, i: int) -> int:
        """First element row of tile row `i`; ``row(mt)`` is ``m``."""
        return min(i * self.nb, self.m)

    def rows(self, i: int) -> tuple[int, int]:
        """Element rows ``[start, stop)`` of tile row `i`."""
        return self.row(i), self.row(i + 1)

    def columns(self, j: int) -> tuple[int, int]:
        """Element columns ``[start, stop)`` of tile column `j`."""
        if j < self.nt:
            return j * self.nb, min((j + 1) * self.nb, self.n)
        start = self.n + (j - self.nt) * self.nb
        return start, min(start + self.nb, self.width)

    def column_width(self, j: int) -> int:
        """Columns of tile column `j`, in elements."""
        start, stop = self.columns(j)
        return stop - start

    def diagonal(self, k: int) -> int:
        """Order of the triangular factor in diagonal tile `k`."""
        return min(self.row(k + 1), self.columns(k)[1]) - k * self.nb
