"""Messages between workers, derived from the graph's flows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import ALL, INITIAL, OWN, Region, TaskBlock
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import one_line


class MessageKey(NamedTuple):
    """Key of the message from worker `source` to the tasks of `step` on other workers.

    The data for the step's panel is a message of its own: the rest may depend on its result.
    Another are the per-step values for workers that do the step's tasks in `later` visits only.
    """

    source: int
    step: int
    panel: bool = False
    later: bool = False


class MessagePart(NamedTuple):
    """A region in a message: its shape, dtype (None: the matrix's) and first element row.

    `row` is None for a per-step value, which is sent as a whole.
    """

    region: Region
    shape: tuple[int, ...]
    dtype: Any
    row: int | None


@dataclass(slots=True, repr=False)
class Message:
    """Regions that one worker sends to others at once.

    Attributes
    ----------
    regions : dict
        (name, index) -> the region that is sent.
    parts : list of MessagePart
        The same regions with their shapes and dtypes.
    writers : set of int
        Tasks of the sender that must have ended before it is sent.
    after : set of MessageKey
        Messages that must have brought columns back to the sender before.
    consumers : set of int
        Workers that receive it.
    first : int
        The consumer whose tasks the builder added first: for a panel, the owner of the next
        one.
    visit : int
        Where only some columns are in memory at a time: the visit in which its columns are sent.
    """

    key: MessageKey
    regions: dict[tuple[str, int], Region] = field(default_factory=dict)
    writers: set[int] = field(default_factory=set)
    after: set[MessageKey] = field(default_factory=set)
    consumers: set[int] = field(default_factory=set)
    parts: list[MessagePart] = field(default_factory=list)
    first: int = -1
    visit: int = -1

    def __repr__(self) -> str:
        to = ", ".join(map(str, sorted(self.consumers)))
        what = "the panel of step" if self.key.panel else "step"
        return one_line("Message", f"{what} {self.key.step}, {self.key.source} to {to}")

    def include(self, region: Region, consumer: int) -> None:
        """Add `region`, for worker `consumer`."""
        name = region[:2]
        held = self.regions.get(name)
        if held is None:
            self.regions[name] = region
        elif not held.covers(region):
            start, stop = min(held.start, region.start), max(held.stop, region.stop)
            self.regions[name] = Region(*name, start, stop)
        if not self.consumers:
            self.first = consumer
        self.consumers.add(consumer)


@dataclass(slots=True, repr=False)
class Traffic:
    """All messages of a run.

    Attributes
    ----------
    messages : dict
        Key -> message.
    needs : dict
        (block of tasks, worker) -> the messages that its tasks there wait for, in order.
    overwrites : dict
        (block of tasks, worker) -> (message, consumer) pairs: the consumers must have taken
        their copy before the block's tasks there overwrite the data of the message.
    """

    messages: dict[MessageKey, Message] = field(default_factory=dict)
    needs: dict[tuple[int, int], dict[MessageKey, None]] = field(default_factory=dict)
    overwrites: dict[tuple[int, int], dict[tuple[MessageKey, int], None]] = field(
        default_factory=dict
    )

    def __repr__(self) -> str:
        return one_line("Traffic", counted(len(self.messages), "message"))


#: Number of the visit to a group of columns in which a step's work on a column is done.
Visit = Callable[[int, int], int]


def derive_traffic(
    graph: TaskGraph, placement: Placement, distribution: Distribution, visit: Visit | None = None
) -> Traffic:
    """Find every flow between different workers, and group the flows into messages.

    A tile goes directly from the worker that wrote it to the tasks of the same step, and to the
    owner of its column; later readers get it from there.  Where only some columns are in memory at
    a time, those of later visits read them back from where results go.
    """
    return _Derivation(graph, placement, distribution, visit).traffic


class _Derivation:
    def __init__(
        self, graph: TaskGraph, placement: Placement, distribution: Distribution,
        visit: Visit | None,
    ) -> None:  # fmt: skip
        self.graph, self.placement, self.owners = graph, placement, distribution.owners
        self._visit = visit
        self.traffic = Traffic()
        self._vectors = graph.vectors()
        self._present: set[tuple[int, int, Region]] = set()
        if placement.panel_worker is None and len(set(self.owners)) <= 1:
            return  # one worker sends nothing
        for block in graph.blocks:
            for writer, region in block.flows:
                if not region.own:  # a task's own column is on its worker
                    self._flow(None if writer == INITIAL else graph.blocks[writer], region, block)
        if placement.panel_worker is not None:
            for made_by, region in graph.last_writers("A"):
                if placement.worker(made_by, region.index) != self.owners[region.index]:
                    self._return_to_owner(made_by, region)
        self._protect_sources()
        for message in self.traffic.messages.values():
            message.parts = [_part(graph, region) for region in message.regions.values()]

    def _key(self, source: int, block: TaskBlock) -> MessageKey:
        return MessageKey(source, block.step, self.placement.is_panel(block))

    def _message(self, key: MessageKey) -> Message:
        message = self.traffic.messages.get(key)
        if message is None:
            message = self.traffic.messages[key] = Message(key)
        return message

    def _flow(self, writer: TaskBlock | None, region: Region, block: TaskBlock) -> None:
        """Send a region to all tasks of a block that read it on other workers."""
        column = region.index
        there = self.owners[column] if writer is None else self.placement.worker(writer, column)
        shares = self.placement.shares(block)
        if len(shares) == 1 and there in shares:
            return
        for here, columns in shares.items():
            if there == here or self._is_present(here, writer, region):
                continue
            at_once = self._in_visit_of(writer, region, block, columns)
            if at_once:
                columns = at_once
            elif region.name not in self.graph.values:
                continue  # it is read back
            # Rows that depend on the column: those of the first and the last one include all.
            for column in (columns[0], columns[-1]) if region.sloped else columns[:1]:
                key = self._key(there, block)._replace(later=not at_once)
                self._send_region(writer, region.of(column), key, block, here)

    def _in_visit_of(
        self, writer: TaskBlock | None, region: Region, block: TaskBlock, columns: Sequence[int]
    ) -> Sequence[int]:
        """Return those of a block's columns whose tasks are done in the visit of their writer."""
        if self._visit is None or writer is None:
            return columns
        visit = self._visit(writer.step, writer.start if writer.single else region.index)
        return [column for column in columns if self._visit(block.step, column) == visit]

    def _is_present(self, here: int, writer: TaskBlock | None, region: Region) -> bool:
        """Return whether a worker keeps a region that it has received; from now on it does."""
        if region.name not in self._vectors:
            return False
        key = here, INITIAL if writer is None else writer.number, region
        known = key in self._present
        self._present.add(key)
        return known

    def _send_region(
        self, writer: TaskBlock | None, region: Region, key: MessageKey, block: TaskBlock, here: int
    ) -> None:
        there = key.source
        if writer is not None and region.name not in self.graph.values:
            owner = self.owners[region.index]
            if there != owner and (here == owner or block.step > writer.step):
                message = self._return_to_owner(writer, region)
                if here != owner:
                    home, message = message, self._message(self._key(owner, block))
                    message.include(region, here)
                    message.after.add(home.key)
                self._need(block, here, message)
                return
        message = self._message(key)
        message.include(region, here)
        if writer is not None:
            message.writers.add(writer.index(region.index))
            if self._visit is not None and region.name not in self.graph.values:
                message.visit = self._visit(writer.step, region.index)
        self._need(block, here, message)

    def _need(self, block: TaskBlock, here: int, message: Message) -> None:
        self.traffic.needs.setdefault((block.number, here), {})[message.key] = None

    def _return_to_owner(self, writer: TaskBlock, region: Region) -> Message:
        """Send data that another worker wrote to the owner of its column."""
        source = self.placement.worker(writer, region.index)
        message = self._message(MessageKey(source, writer.step))
        message.include(region, self.owners[region.index])
        message.writers.add(writer.index(region.index))
        return message

    def _protect_sources(self) -> None:
        """Let tasks that overwrite sent data wait until the receivers have it."""
        blocks = self.graph.blocks
        for block in blocks:
            if not block.disturbed:
                continue
            sources = {
                (writer, region.index if not blocks[writer].single else blocks[writer].start)
                for writer, region in block.flows
                if writer != INITIAL
            }
            edges = sorted(
                (blocks[number].first, number, which)
                for number, which in block.disturbed
                if (which != OWN) and (number, which) not in sources
            )
            for _, number, which in edges:
                for here in self.placement.shares(block):
                    self._await_readers(block, here, blocks[number], which, sources)

    def _await_readers(
        self, block: TaskBlock, here: int, other: TaskBlock, which: int,
        sources: set[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Let a block wait for the readers of messages whose data it overwrites."""
        key = self._key(here, other)
        message = self.traffic.messages.get(key)
        if message is None:
            return
        for there, columns in self.placement.shares(other).items():
            if there == here or key not in self.traffic.needs.get((other.number, there), ()):
                continue  # it reads its own data
            if which != ALL:
                columns = [column for column in columns if column == which]
            if any((other.number, column) not in sources for column in columns):
                self.traffic.overwrites.setdefault((block.number, here), {})[key, there] = None


def buffer_elements(messages: Iterable[Sequence[MessagePart]]) -> dict[tuple[str, int], int]:
    """Return the largest size, in elements, of each two-dimensional part of some messages.

    Keys are a part's name, and its place among the parts of that name in its message.
    """
    largest: dict[tuple[str, int], int] = {}
    for parts in messages:
        names: list[str] = []
        for part in parts:
            if len(part.shape) == 2:
                place = part.region.name, names.count(part.region.name)
                largest[place] = max(largest.get(place, 0), math.prod(part.shape))
                names.append(part.region.name)
    return largest


def _part(graph: TaskGraph, region: Region) -> MessagePart:
    value = graph.values.get(region.name)
    if value is not None:
        return MessagePart(region, value.shape(region.index), value.dtype, None)
    return MessagePart(region, graph.shape(region), None, graph.layout.row(region.start))
