"""Tasks on adjacent columns of a worker's shard, which become one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hetero_la.scheduler.graph.tasks import TaskBlock
from hetero_la.scheduler.placement.lookahead import Priority


class BlockColumns(NamedTuple):
    """Tasks of one block on some of its tile columns, in ascending order."""

    block: TaskBlock
    columns: Sequence[int]


@dataclass(slots=True)
class ColumnRun:
    """Tasks that are done by one call.

    Attributes
    ----------
    key : tuple of int
        Priority of the first.
    parts : list of BlockColumns
        Blocks that differ in nothing but their columns; almost always, there is one.
    """

    key: Priority
    parts: list[BlockColumns]

    @property
    def step(self) -> int:
        """Step of all its tasks."""
        return self.key[2]

    @property
    def trailing(self) -> bool:
        """True if it is neither a panel nor an update that one of the next panels waits for."""
        return bool(self.key[1])

    def indices(self) -> list[int]:
        """Return its tasks' places in the builder's order."""
        return [block.index(column) for block, columns in self.parts for column in columns]
