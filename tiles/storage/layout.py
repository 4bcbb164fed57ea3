"""Partition of a matrix into tiles."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_text, tile_sizes

#: Most tile rows or columns: the start of each is kept in a list.
MOST_TILES = 2**24


def tile_count(size: int, nb: TileSizes) -> int:
    """Return the number of tiles into which `size` elements are cut.

    Examples
    --------
    >>> tile_count(10, 4), tile_count(10, (2, 5, 1)), tile_count(1, (2, 5, 1)), tile_count(0, 4)
    (3, 5, 1, 0)
    """
    *first, last = (nb,) if isinstance(nb, int) else nb
    begun = sum(start < size for start in itertools.accumulate(first, initial=0))
    repeats = -(-(size - sum(first)) // last)
    return begun + max(repeats - 1, 0)


def tile_starts(size: int, nb: TileSizes) -> list[int]:
    """Return the starts of the tiles that cut `size` elements, followed by `size`.

    Examples
    --------
    >>> tile_starts(10, 4), tile_starts(10, (2, 5, 1)), tile_starts(0, 4)
    ([0, 4, 8, 10], [0, 2, 7, 8, 9, 10], [0])
    """
    first = [] if isinstance(nb, int) else list(itertools.accumulate(nb[:-1], initial=0))
    last = nb if isinstance(nb, int) else nb[-1]
    begin = first.pop() if first else 0
    starts = [start for start in first if start < size]
    return [*starts, *range(begin, size, last), size] if size else [0]


@dataclass(frozen=True)
class TileLayout:
    """An ``m`` x ``n`` matrix in tiles, the last ones ragged.

    Tile rows and tile columns are cut alike, so that tile (k, k) begins on the diagonal.
    ``nrhs`` columns of right-hand sides may follow to the right of the matrix, in tile columns
    of their own, which are cut by the same sizes: tile columns ``0 .. nt-1`` hold the matrix,
    ``nt .. nt+rt-1`` the right-hand sides.

    Parameters
    ----------
    m, n : int
        Rows and columns of the matrix, in elements.
    nb : int or tuple of int
        Tile size, in elements; or that of each tile, the last of which repeats.
    nrhs : int, optional
        Columns of right-hand sides.
    tail : int, optional
        Number of tile rows and columns, of a square matrix, that are merged into the last tile:
        near its end a factorization may be faster with one large tile.
    per_block : int, optional
        Number of panels in a block, whose updates of the columns beyond are done as one; blocks
        are in the first half of the steps.
    parts : int, optional
        Number of parts of the tile rows that a factorization completes one after the other, so
        that the first ones are on their way to the host while it goes on.

    Examples
    --------
    >>> layout = TileLayout(10, 7, 4, nrhs=1)
    >>> layout.mt, layout.nt, layout.kt, layout.rt
    (3, 2, 2, 1)
    >>> layout.columns(1), layout.columns(2), layout.rows(2)
    ((4, 7), (7, 8), (8, 10))
    >>> [TileLayout(10, 10, 2, tail=3).rows(i) for i in range(3)]
    [(0, 2), (2, 4), (4, 10)]
    >>> TileLayout(10, 10, (4, 1, 3)).row_starts
    [0, 4, 5, 8, 10]
    >>> [TileLayout(9, 9, 1, per_block=2).block(k) for k in range(6)]
    [(0, 2), (0, 2), (2, 4), (2, 4), (4, 5), (5, 6)]
    """

    m: int
    n: int
    nb: TileSizes
    nrhs: int = 0
    tail: int = 1
    per_block: int = 1
    parts: int = 1

    def __post_init__(self) -> None:
        for size in (self.m, self.n, self.nrhs):
            if (count := tile_count(size, self.nb)) > MOST_TILES:
                raise ValueError(
                    f"nb = {self.nb_text} cuts {size} rows or columns into {count} tiles, and "
                    f"there may be {MOST_TILES}: choose a larger nb"
                )
        if self.tail > 1 and self.m != self.n:
            raise ValueError(f"a tail needs a square matrix, not one of {self.m} x {self.n}")

    def _starts(self, size: int) -> list[int]:
        starts = tile_starts(size, self.nb)
        kept = max(len(starts) - self.tail, min(size, 1))
        return [*starts[:kept], size]

    @functools.cached_property
    def row_starts(self) -> list[int]:
        """``row(i)`` of all tile rows, and ``m``."""
        return self._starts(self.m)

    @functools.cached_property
    def column_starts(self) -> list[int]:
        """First element column of all tile columns, and ``width``."""
        beside = tile_starts(self.nrhs, self.nb)
        return self._starts(self.n) + [self.n + start for start in beside[1:]]

    @functools.cached_property
    def column_widths(self) -> list[int]:
        """``column_width(j)`` of all tile columns, those of right-hand sides included."""
        return [stop - start for start, stop in itertools.pairwise(self.column_starts)]

    @functools.cached_property
    def mt(self) -> int:
        """Number of tile rows."""
        return len(self.row_starts) - 1

    @functools.cached_property
    def nt(self) -> int:
        """Number of tile columns of the matrix."""
        return len(self.column_starts) - 1 - self.rt

    @functools.cached_property
    def kt(self) -> int:
        """Number of steps of a factorization: the smaller of ``mt`` and ``nt``."""
        return min(self.mt, self.nt)

    @functools.cached_property
    def rt(self) -> int:
        """Number of tile columns of the right-hand sides."""
        return len(tile_starts(self.nrhs, self.nb)) - 1

    @functools.cached_property
    def width(self) -> int:
        """Number of columns, right-hand sides included, in elements."""
        return self.n + self.nrhs

    @property
    def nb_text(self) -> str:
        """The tile size, or sizes, as text."""
        return sizes_text(self.nb)

    @property
    def tiles_text(self) -> str:
        """The tile size, or sizes, and that of the last tile if several are merged into it."""
        last = self.column_width(self.nt - 1) if self.tail > 1 and self.nt else 0
        return f"{self.nb_text}, the last of {last}" if last else self.nb_text

    def row(self, i: int) -> int:
        """Return the first element row of tile row `i`; ``m`` past the last one."""
        return self.row_starts[i] if i < self.mt else self.m

    def rows(self, i: int) -> tuple[int, int]:
        """Return the element rows ``[start, stop)`` of tile row `i`."""
        return self.row(i), self.row(i + 1)

    def columns(self, j: int) -> tuple[int, int]:
        """Return the element columns ``[start, stop)`` of tile column `j`."""
        return self.column_starts[j], self.column_starts[j + 1]

    def column_width(self, j: int) -> int:
        """Return the width of tile column `j`, in elements."""
        return self.column_widths[j]

    def diagonal(self, k: int) -> int:
        """Return the order of the triangular factor in diagonal tile `k`; 0 past the last one."""
        if k >= self.kt:
            return 0
        return min(self.row(k + 1), self.columns(k)[1]) - self.row(k)

    def block(self, k: int) -> tuple[int, int]:
        """Return the first and the last + 1 of the panels that are one block with panel `k`."""
        first = k // self.per_block * self.per_block
        return (first, first + self.per_block) if k < self.blocked else (k, k + 1)

    @functools.cached_property
    def blocked(self) -> int:
        """Number of the first panels that are in blocks of several."""
        return self.kt // 2 // self.per_block * self.per_block if self.per_block > 1 else 0

    @functools.cached_property
    def part_ends(self) -> list[int]:
        """Ends of the parts of the steps, and so of the tile rows that are complete with each.

        Examples
        --------
        >>> TileLayout(9, 9, 1, parts=2).part_ends, TileLayout(4, 4, 1, parts=9).part_ends
        ([4, 9], [1, 2, 3, 4])
        """
        ends = {self.kt * part // self.parts for part in range(1, self.parts + 1)} - {0}
        return sorted({self.block(end - 1)[1] for end in ends})

    def inner_size(self, k: int) -> int:
        """Return the columns of the panels with which the trailing matrix is updated at once."""
        first, end = self.block(k)
        return self.column_starts[end] - self.column_starts[first]

    def trailing(self, k: int, first: int | None = None) -> TileLayout:
        """Return the layout of the trailing matrix, from tile row and column `k` on.

        With `first`, tile `k`, which must not be the last one, gets that size.

        Examples
        --------
        >>> layout = TileLayout(12, 9, (4, 3, 2))
        >>> layout.trailing(1).row_starts, layout.trailing(1, first=5).row_starts
        ([0, 3, 5, 7, 8], [0, 5, 7, 9, 10])
        """
        sizes = (self.nb,) if isinstance(self.nb, int) else self.nb
        own, *rest = sizes[min(k, len(sizes) - 1) :]
        rest = rest or [own]
        done, grown = self.row(k), 0 if first is None else first - own
        nb = tile_sizes([own if first is None else first, *rest])
        return replace(self, m=self.m - done + grown, n=self.n - done + grown, nb=nb)
