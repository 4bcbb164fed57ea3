"""Place in a worker's program of the last write of each tile of its columns."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.graph.tasks import Region, resolve


class FinalRows(NamedTuple):
    """Rows of a tile column that are final once the instruction at `place` has ended."""

    place: int
    column: int
    start: int
    stop: int


class LastWrites:
    """Last write of each tile of a worker's columns, while its program is written.

    Parameters
    ----------
    columns : sequence of int
        The worker's tile columns, in the order of its shard.
    mt : int
        Tile rows.
    ends : iterable of int
        Ends of the parts of the rows that are complete one after the other.

    Examples
    --------
    >>> writes = LastWrites([0, 2], 3, [3])
    >>> for place, start in enumerate((0, 0, 2)):
    ...     writes.add([0, 2], Region("A", 0, start, 3), place)
    >>> [(p.place, p.start, p.stop) for p in writes.finished(2, (0, 3))]
    [(1, 0, 2), (2, 2, 3)]
    """

    def __init__(self, columns: Sequence[int], mt: int, ends: Iterable[int]) -> None:
        self._row = {column: row for row, column in enumerate(columns)}
        self._places = np.full((len(columns), mt), -1)
        self._ends = ends

    def add(self, columns: Sequence[int], region: Region, place: int) -> None:
        """Note that `place` writes the region, relative to each of these adjacent columns."""
        first = self._row.get(columns[0])
        if first is None:  # another worker's column, computed here
            return
        if region.sloped:
            for row, column in enumerate(columns, first):
                start, stop = resolve(region.start, column), resolve(region.stop, column)
                self._places[row, start:stop] = place
        else:
            self._places[first : first + len(columns), region.start : region.stop] = place

    def finished(self, column: int, rows: tuple[int, int]) -> Iterator[FinalRows]:
        """Yield parts of these rows, each with the place by which it is final.

        Of each part of the steps those written last stand apart from those above and below;
        neighbours that are final with the same call are one.
        """
        first, end = rows
        if first == end:
            return
        places = self._places[self._row[column]]
        inner = [edge for edge in self._ends if first < edge < end]
        edges = {first, *inner, end}
        for start, stop in itertools.pairwise([first, *inner, end]):
            latest = start + np.flatnonzero(places[start:stop] == places[start:stop].max())
            edges |= {int(latest[0]), int(latest[-1]) + 1}
        parts = itertools.pairwise(sorted(edges))
        final = [(int(places[start:stop].max()), start, stop) for start, stop in parts]
        for place, same in itertools.groupby(final, key=operator.itemgetter(0)):
            (_, start, stop), *others = same
            yield FinalRows(place, column, start, others[-1][2] if others else stop)
