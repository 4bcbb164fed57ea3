"""Groups of tile columns that are in memory at the same time, where a matrix does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.storage.layout import TileLayout


@dataclass(frozen=True, slots=True, repr=False)
class ColumnGroups:
    """Groups of adjacent tile columns, each of which fits into the workers' shards.

    A worker's columns of a group lie side by side from the beginning of its shard, so that one call
    updates them all.  The next group's columns take their places, each as soon as the one that was
    there is factored and stored.

    Attributes
    ----------
    group : tuple of int
        Number of the group of each tile column, ascending.
    places : tuple of int
        First element column of each tile column in the shard of its owner.
    capacities : tuple of int
        Element columns of each worker's shard; empty if it holds all of its columns.

    Examples
    --------
    >>> columns = Distribution.cyclic(5, [1.0])
    >>> groups = ColumnGroups.fill(TileLayout(50, 50, 10), columns, [40])
    >>> groups.group, groups.places
    ((0, 0, 0, 0, 1), (0, 10, 20, 30, 0))
    """

    group: tuple[int, ...]
    places: tuple[int, ...]
    capacities: tuple[int, ...]

    def __repr__(self) -> str:
        return one_line("ColumnGroups", f"{self.count} of {len(self.group)} tile columns")

    @property
    def count(self) -> int:
        """Number of groups."""
        return self.group[-1] + 1 if self.group else 0

    @classmethod
    def fill(
        cls, layout: TileLayout, distribution: Distribution, capacities: Sequence[int]
    ) -> ColumnGroups:
        """Form groups that are as large as shards of these element columns allow.

        Each shard has room for the widest column.
        """
        ends, group, places = [0] * len(capacities), list[int](), list[int]()
        number = 0
        for column, worker in enumerate(distribution.owners):
            width = layout.column_width(column)
            assert width <= capacities[worker]
            if ends[worker] + width > capacities[worker]:
                number, ends = number + 1, [0] * len(capacities)
            group.append(number)
            places.append(ends[worker])
            ends[worker] += width
        return cls(tuple(group), tuple(places), tuple(capacities))

    @classmethod
    def single(cls, layout: TileLayout) -> ColumnGroups:
        """Form a group of each tile column, all of which are in memory."""
        columns = range(layout.nt + layout.rt)
        return cls(tuple(columns), tuple(layout.column_starts[:-1]), ())

    def neighbours(self, layout: TileLayout, columns: Sequence[int]) -> dict[int, int]:
        """Return a number for each of a worker's columns: the next one's if they lie side by side.

        Examples
        --------
        >>> layout, columns = TileLayout(50, 50, 10), Distribution.cyclic(5, [1.0])
        >>> ColumnGroups.fill(layout, columns, [40]).neighbours(layout, range(5))
        {0: 0, 1: 1, 2: 2, 3: 3, 4: 5}
        """
        numbers: dict[int, int] = {}
        end = number = -1
        for column in columns:
            number += 1 if self.places[column] == end or not numbers else 2
            numbers[column] = number
            end = self.places[column] + layout.column_width(column)
        return numbers
