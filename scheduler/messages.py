"""What travels between workers, derived from the graph's flows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hetero_la.scheduler.distribution import Distribution
from hetero_la.scheduler.graph import TaskGraph
from hetero_la.scheduler.placement import is_panel
from hetero_la.scheduler.tasks import INITIAL, Region, Task


class MessageKey(NamedTuple):
    """A message is what worker `source` gives to the tasks of `step` elsewhere.

    What the step's panel needs travels on its own: the rest may be made from its result.
    """

    source: int
    step: int
    panel: bool = False


class Part(NamedTuple):
    """A region that travels: its shape, dtype (None: the matrix's) and first element row.

    `row` is None for a per-step value, which travels whole.
    """

    region: Region
    shape: tuple[int, ...]
    dtype: Any
    row: int | None


@dataclass(slots=True)
class Message:
    """Regions that one worker sends to others.

    Attributes
    ----------
    regions : dict
        (name, index) -> the tile rows that travel.
    parts : list of Part
        The same, as arrays.
    writers : set of int
        Tasks of the sender that must have ended before it is sent.
    after : set of MessageKey
        Messages with columns that must have come home to the sender before.
    consumers : set of int
        Workers that receive it.
    first : int
        The one of them whose task is the first in the order of the algorithm: of a panel,
        the owner of the next one.
    """

    key: MessageKey
    regions: dict[tuple[str, int], Region] = field(default_factory=dict)
    writers: set[int] = field(default_factory=set)
    after: set[MessageKey] = field(default_factory=set)
    consumers: set[int] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)
    first: int = -1

    def include(self, region: Region, consumer: int) -> None:
        """Let `region` travel to `consumer`."""
        held = self.regions.get(region[:2], region)
        self.regions[region[:2]] = Region(
            region.name, region.index, min(held.start, region.start), max(held.stop, region.stop)
        )
        if not self.consumers:
            self.first = consumer
        self.consumers.add(consumer)


@dataclass(slots=True)
class Traffic:
    """All messages of a run.

    Attributes
    ----------
    messages : dict
        Key -> message.
    needs : dict
        Task -> keys of the messages that it waits for.
    overwrites : dict
        Task -> (message, consumer) pairs that must have taken their copy before
        the task overwrites what the message refers to.
    """

    messages: dict[MessageKey, Message] = field(default_factory=dict)
    needs: dict[int, list[MessageKey]] = field(default_factory=dict)
    overwrites: dict[int, list[tuple[MessageKey, int]]] = field(default_factory=dict)


def derive_traffic(
    graph: TaskGraph, placement: Sequence[int], distribution: Distribution
) -> Traffic:
    """Find every flow that crosses workers, and group the flows into messages.

    A tile goes straight from the worker that wrote it to the tasks of the same step,
    and home, to the owner of its column; whatever reads it later gets it from there.
    """
    return _Derivation(graph, placement, distribution).traffic


class _Derivation:
    def __init__(
        self, graph: TaskGraph, placement: Sequence[int], distribution: Distribution
    ) -> None:
        self.graph, self.placement, self.owners = graph, placement, distribution.owners
        self.traffic = Traffic()
        self._vectors = graph.vectors()
        self._present: set[tuple[int, int, Region]] = set()
        if len(set(placement)) <= 1 and set(placement) >= set(self.owners):
            return  # one worker sends nothing
        for task in graph.tasks:
            for writer, region in task.flows:
                self._flow(writer, region, task)
        for writer, region in graph.final_writers("A"):
            if writer != INITIAL and placement[writer] != self.owners[region.index]:
                self._bring_home(writer, region)
        self._protect_sources()
        for message in self.traffic.messages.values():
            message.parts = [_part(graph, region) for region in message.regions.values()]

    def _key(self, source: int, task: Task) -> MessageKey:
        return MessageKey(source, task.step, is_panel(task, self.graph.layout.kt))

    def _message(self, key: MessageKey) -> Message:
        return self.traffic.messages.setdefault(key, Message(key))

    def _flow(self, writer: int, region: Region, task: Task) -> None:
        here = self.placement[task.index]
        there = self.owners[region.index] if writer == INITIAL else self.placement[writer]
        if there == here:
            return
        if region.name in self._vectors:  # kept by the receiver, so sent once
            if (here, writer, region) in self._present:
                return
            self._present.add((here, writer, region))
        if region.name not in self.graph.values and there != self.owners[region.index]:
            owner = self.owners[region.index]
            if here == owner or task.step > self.graph.tasks[writer].step:
                message = self._bring_home(writer, region)
                if here != owner:
                    home, message = message, self._message(self._key(owner, task))
                    message.include(region, here)
                    message.after.add(home.key)
                self._need(task, message)
                return
        message = self._message(self._key(there, task))
        message.include(region, here)
        if writer != INITIAL:
            message.writers.add(writer)
        self._need(task, message)

    def _need(self, task: Task, message: Message) -> None:
        needed = self.traffic.needs.setdefault(task.index, [])
        if message.key not in needed:
            needed.append(message.key)

    def _bring_home(self, writer: int, region: Region) -> Message:
        """What another worker wrote goes to the owner of its column."""
        message = self._message(MessageKey(self.placement[writer], self.graph.tasks[writer].step))
        message.include(region, self.owners[region.index])
        message.writers.add(writer)
        return message

    def _protect_sources(self) -> None:
        """A task that overwrites what was sent waits until the receivers have it."""
        for task in self.graph.tasks:
            here = self.placement[task.index]
            sources = {writer for writer, _ in task.flows}
            for before in task.after:
                if self.placement[before] == here or before in sources:
                    continue
                key = self._key(here, self.graph.tasks[before])
                message = self.traffic.messages.get(key)
                if message and self.placement[before] in message.consumers:
                    pairs = self.traffic.overwrites.setdefault(task.index, [])
                    if (key, self.placement[before]) not in pairs:
                        pairs.append((key, self.placement[before]))


def buffer_elements(messages: Iterable[Sequence[Part]]) -> dict[tuple[str, int], int]:
    """Largest element count of each two-dimensional part that some messages bring.

    Parts are told apart by their name, and by how many of it came before in a message.
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


def _part(graph: TaskGraph, region: Region) -> Part:
    value = graph.values.get(region.name)
    if value is not None:
        return Part(region, value.shape(region.index), value.dtype, None)
    return Part(region, graph.shape(region), None, graph.layout.row(region.start))
