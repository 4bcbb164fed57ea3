"""Tile columns of one worker, and those of them on which a call works."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from hetero_la.tiles.storage.layout import TileLayout


class OwnColumns:
    """Tile columns of a matrix that one worker owns.

    Parameters
    ----------
    columns : sequence of int
        Its tile columns, ascending.
    layout : TileLayout
        How the matrix is cut.

    Examples
    --------
    >>> own = OwnColumns([0, 2, 3, 6], TileLayout(70, 65, 10))
    >>> own.between(2, 6), own.width(2, 6), own.stretches(2, 6)
    ([2, 3, 6], 25, ((2, 3), (6, 6)))
    """

    def __init__(self, columns: Sequence[int], layout: TileLayout) -> None:
        self._columns = columns
        widths = layout.column_widths
        self._edges = [0, *accumulate([widths[column] for column in columns])]

    def _places(self, first: int, last: int) -> tuple[int, int]:
        return bisect_left(self._columns, first), bisect_right(self._columns, last)

    def between(self, first: int, last: int) -> Sequence[int]:
        """Return the owned columns from `first` to `last`."""
        start, stop = self._places(first, last)
        return self._columns[start:stop]

    def width(self, first: int, last: int) -> int | None:
        """Return the element columns of those from `first` to `last`; None if there are none."""
        start, stop = self._places(first, last)
        return self._edges[stop] - self._edges[start] or None

    def stretches(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """Return first and last of each group of neighbours; () if there is but one group."""
        columns = self.between(first, last)
        if len(columns) == last - first + 1:
            return ()
        cuts = [place for place, (one, next_) in enumerate(pairwise(columns), 1) if next_ > one + 1]
        groups = pairwise([0, *cuts, len(columns)])
        return tuple([(columns[start], columns[stop - 1]) for start, stop in groups])
