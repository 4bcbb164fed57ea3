"""Messages that a worker has received, while its program is written, and their buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.column_runs import ColumnRun
from hetero_la.scheduler.program.messages import MessageKey, Traffic, Visit
from hetero_la.tiles.kernels.device import Queue

Keys = Sequence[MessageKey]


class Inbox:
    """Received messages of one worker: where in its program, and their last uses.

    Parameters
    ----------
    graph, traffic
        Graph and messages of the run.
    worker : int
        The receiver.
    owned : collection of int
        Its tile columns.
    visit : callable, optional
        Where only some columns are in memory at a time: as of `derive_traffic`.

    Attributes
    ----------
    received : dict
        Message -> place of its receive in the program.
    returned : set of int
        The worker's own columns that have come back from other workers in messages.
    """

    def __init__(
        self, graph: TaskGraph, traffic: Traffic, worker: int, owned: frozenset[int],
        visit: Visit | None = None,
    ) -> None:  # fmt: skip
        self._values, self._owned, self._visit = graph.values, owned, visit
        #: Per-step values that have memory of their own; all, if later visits need them.
        self._vectors = graph.vectors() if visit is None else set(graph.values)
        self._blocks, self._traffic, self._worker = graph.blocks, traffic, worker
        self.received: dict[MessageKey, int] = {}
        self.returned: set[int] = set()
        #: Column or value -> the parts that have been received, the latest first.
        self._holders: dict[tuple[str, int], list[tuple[Region, MessageKey]]] = {}
        self._last_use: dict[MessageKey, dict[Queue, int]] = {}

    def needs(self, runs: Iterable[ColumnRun]) -> list[tuple[Keys, Keys]]:
        """Return for each run the messages that it needs, and those it reads in their buffers."""
        nothing: tuple[Keys, Keys] = (), ()
        known: dict[int, tuple[Keys, Keys]] = {}
        for (number, worker), keys in self._traffic.needs.items():
            if worker == self._worker:
                known[number] = (
                    tuple(keys),
                    [key for key in keys if self._reads_buffer(key, number)],
                )
        needs: list[tuple[Keys, Keys]] = []
        for run in runs:
            needed, buffered = known.get(run.parts[0].block.number, nothing)
            for part in run.parts[1:]:
                more = known.get(part.block.number, nothing)
                needed = [*needed, *(key for key in more[0] if key not in needed)]
                buffered = [*buffered, *(key for key in more[1] if key not in buffered)]
            here = run.step, run.parts[0].columns[0]
            needs.append((needed, [key for key in buffered if self._comes(key, *here)]))
        return needs

    def _comes(self, key: MessageKey, step: int, column: int) -> bool:
        """Return whether a message comes in the visit of a step's work on a column."""
        if self._visit is None:
            return True
        return self._traffic.messages[key].visit in (-1, self._visit(step, column))

    def _reads_buffer(self, key: MessageKey, number: int) -> bool:
        """Return whether a block of tasks reads a message in the buffer of its receive."""
        regions = self._traffic.messages[key].regions
        return any(r[:2] in regions and self.is_buffered(r) for r in self._blocks[number].accesses)

    def is_buffered(self, region: Region) -> bool:
        """Return whether a received region is in a rotating buffer, not in memory of its own."""
        if region.name in self._values:
            return region.name not in self._vectors
        return region.index not in self._owned

    def receive(self, key: MessageKey, place: int) -> list[Region]:
        """Note where a message is received; return the worker's own columns in it."""
        self.received[key] = place
        home = []
        for name, region in self._traffic.messages[key].regions.items():
            self._holders.setdefault(name, []).insert(0, (region, key))
            if region.name not in self._values and region.index in self._owned:
                home.append(region)
                self.returned.add(region.index)
        return home

    def holder(self, region: Region, step: int, column: int) -> MessageKey | None:
        """Return the latest message that has brought a region; a column may come in parts.

        One that a step's work on a column reads back has come in an earlier visit.
        """
        for held, key in self._holders.get(region[:2], ()):
            if held.covers(region):
                kept = region.name in self._values
                return key if kept or self._comes(key, step, column) else None
        return None

    def use(self, keys: Iterable[MessageKey], queue: Queue, place: int) -> None:
        """Note that the instruction at `place` uses some messages."""
        for key in keys:
            self._last_use.setdefault(key, {})[queue] = place

    def last_uses(self, key: MessageKey) -> list[int]:
        """Return the place of a message's last use on each queue, or else of its receive."""
        return sorted(self._last_use.get(key, {}).values()) or [self.received[key]]


class Slots:
    """Buffers of a worker's received messages; one is free again after the last read.

    Parameters
    ----------
    least : int
        Number of buffers to use before one is reused: for the panels of the current step or block,
        those ahead, and one in transit.

    Examples
    --------
    >>> slots = Slots(1)
    >>> first, second = MessageKey(0, 0), MessageKey(0, 1)
    >>> slots.expect(first)
    >>> slots.take(first), slots.take(second)
    ((0, None), (1, None))
    >>> slots.read(first)
    >>> slots.take(MessageKey(0, 2))
    (0, MessageKey(source=0, step=0, panel=False, later=False))
    """

    def __init__(self, least: int) -> None:
        self.least = least
        self._held: dict[int, MessageKey] = {}  # the one filled longest ago first
        self._readers: dict[MessageKey, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def expect(self, key: MessageKey) -> None:
        """Count one more future reader of a message."""
        self._readers[key] = self._readers.get(key, 0) + 1

    def read(self, key: MessageKey) -> None:
        """Count off a reader of a message."""
        self._readers[key] -= 1

    def take(self, key: MessageKey) -> tuple[int, MessageKey | None]:
        """Return a buffer for a message, and the message that it replaces there."""
        slot = len(self._held)
        if slot >= self.least:
            free = (slot for slot, held in self._held.items() if not self._readers.get(held))
            slot = next(free, slot)
        replaced = self._held.pop(slot, None)
        self._held[slot] = key
        return slot, replaced
