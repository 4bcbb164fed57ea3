"""Calls of a worker's program by the tasks that they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hetero_la.scheduler.graph.tasks import ALL, OWN, TaskBlock
from hetero_la.scheduler.program.messages import MessageKey

#: Calls of a block: first column -> last column, and place in the program.
BlockCalls = dict[int, tuple[int, int]]


@dataclass(slots=True)
class CommonDependences:
    """Dependences that all calls for a block of tasks share.

    Attributes
    ----------
    block : TaskBlock or None
        The block.
    places : set of int
        Places of instructions that must have ended before each call.
    own : list of BlockCalls
        Calls of blocks on which they depend column by column.
    loads : bool
        Whether they depend on the loads of their columns.
    used : set of MessageKey
        Messages that they read in their buffers.
    awaits
        As of `Instruction`.
    """

    block: TaskBlock | None = None
    places: set[int] = field(default_factory=set)
    own: list[BlockCalls] = field(default_factory=list)
    loads: bool = False
    used: set[MessageKey] = field(default_factory=set)
    awaits: tuple[tuple[MessageKey, int], ...] = ()


class CallIndex:
    """Index of the calls of a program by their blocks of tasks.

    Examples
    --------
    >>> calls = CallIndex()
    >>> calls.add(0, [1, 3], 10)
    >>> calls.add(0, [5], 11)
    >>> block = TaskBlock(1, 3, "gemm", 0, 1, 6, (), (), ())
    >>> block.after = ((0, OWN), (0, 5))
    >>> common = CommonDependences(block)
    >>> calls.set_predecessors(common)
    >>> common.places, [between(own, 3, 3) for own in common.own]
    ({11}, [[10]])
    """

    def __init__(self) -> None:
        self._calls: dict[int, BlockCalls] = {}

    def add(self, number: int, columns: Sequence[int], place: int) -> None:
        """Note that the call at `place` does a block's tasks of these columns, ascending."""
        self._calls.setdefault(number, {})[columns[0]] = columns[-1], place

    def set_predecessors(self, common: CommonDependences) -> None:
        """Fill in the calls on which those for a block depend."""
        if common.block is None:
            return
        for number, which in common.block.after:
            there = self._calls.get(number)
            if there is None:
                continue
            if which == OWN:
                common.own.append(there)
            elif which == ALL:
                common.places.update([place for _, place in there.values()])
            else:
                common.places.update(between(there, which, which))


def between(calls: BlockCalls, first: int, last: int) -> Sequence[int]:
    """Return the places of a block's calls for a worker's columns from `first` to `last`."""
    found = calls.get(first)
    if found is not None and found[0] >= last:
        return (found[1],)
    return [place for start, (stop, place) in calls.items() if start <= last and first <= stop]
