"""Order of tasks on a matrix of which only some columns are in memory at a time."""

from __future__ import annotations

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import TaskBlock
from hetero_la.scheduler.placement.column_groups import ColumnGroups
from hetero_la.scheduler.placement.lookahead import Order

#: More passes than an algorithm needs: LU needs two, for its left swaps.
_MOST_PASSES = 8


class StreamedOrder(Order):
    """Left-looking order by groups of columns: all that can be done to one, then to the next.

    A group is visited once, in the order of the columns, unless some of its tasks depend on groups
    to its right, as the left swaps of LU do: these are done in another pass over all groups.
    Inside a visit, the order is that of `Order`.

    Parameters
    ----------
    graph, depth
        See `Order`.
    groups : ColumnGroups
        The groups.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> from hetero_la.scheduler.placement.distribution import Distribution
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> layout = TileLayout(40, 40, 10)
    >>> groups = ColumnGroups.fill(layout, Distribution.cyclic(4, [1.0]), [20])
    >>> order = StreamedOrder(lu_tasks(layout), 1, groups)
    >>> [order.visit(step, column) for step, column in ((0, 0), (0, 3), (3, 3), (4, 0))]
    [0, 1, 1, 2]
    """

    def __init__(self, graph: TaskGraph, depth: int, groups: ColumnGroups) -> None:
        assert not graph.layout.blocked, "columns in turn have one level"
        super().__init__(graph, depth)
        self.groups = groups
        self._span = depth + max((block.step for block in graph.blocks), default=0) + 2
        self._passes = self._derive_passes(graph)

    def visit(self, step: int, column: int) -> int:
        """Return the number of the visit in which a step's work on a column is done."""
        passed = self._passes.get((step, column), 0)
        return passed * self.groups.count + self.groups.group[column]

    def start(self, step: int, column: int) -> int:
        """Return a number of steps by which a visit follows those before it."""
        return self.visit(step, column) * self._span

    def phase(self, step: int, column: int) -> tuple[int, int]:
        """Return what `Order.phase` does, the phases of a visit after those of all before."""
        due, deferred = super().phase(step, column)
        return self.start(step, column) + due, deferred

    def is_next(self, step: int, column: int) -> bool:
        """Return whether a column's first urgent task waits for this deferrable work."""
        if column >= self._kt:
            return False
        return self.phase(step, column) == (self.start(step, column) + self._due[column] - 1, 1)

    def _derive_passes(self, graph: TaskGraph) -> dict[tuple[int, int], int]:
        """Return the pass of each step's work on each column, where it is not the first one."""
        passes: dict[tuple[int, int], int] = {}
        works = [
            (block, column) for block in graph.blocks for column in range(block.start, block.stop)
        ]
        changed = True
        while changed:
            changed = False
            for block, column in works:
                least = self._least_pass(graph, block, column, passes)
                if least > passes.get((block.step, column), 0):
                    if least >= _MOST_PASSES:
                        raise ValueError(
                            f"step {block.step} of column {column} is no work in passes over "
                            "groups of columns: steps of columns wait for each other"
                        )
                    passes[block.step, column] = least
                    changed = True
        return passes

    def _least_pass(
        self, graph: TaskGraph, block: TaskBlock, column: int, passes: dict[tuple[int, int], int]
    ) -> int:
        """Return the first pass in which all that a block's work on a column waits for is done."""
        group, least = self.groups.group, 0
        for number, which in block.after:
            before = graph.blocks[number]
            for other in before.columns(which, column):
                earlier = passes.get((before.step, other), 0)
                least = max(least, earlier + (group[other] > group[column]))
        return least
