"""Loads and stores of a program whose columns are not all in memory at once.

A program in the order of visits to groups of columns (`StreamedOrder`) tells which columns each
call touches, and when they are needed next: so what is in memory when can be planned.  In a visit,
the columns of its group are loaded, changed and stored.  What its calls read of other columns,
panels above all, has been stored in earlier visits, and is read back to buffers, of which the one
whose contents are needed last is filled next (Belady's rule).

Each copy is issued as soon as its memory has been used for the last time, and so overlaps with the
calls in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.placement.streamed_order import StreamedOrder
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    Instruction,
    LoadColumn,
    Program,
    ReadBack,
    SendMessage,
    StoreRows,
    append_after,
)
from hetero_la.scheduler.program.messages import MessageKey, Traffic
from hetero_la.scheduler.program.own_columns import OwnColumns
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.spec import SPECS

#: Parts of columns that are on their way to buffers ahead of the call that reads the next one.
_AHEAD = 1
#: Buffers for them, and for the one that is read, where a call reads one.
BUFFERS = _AHEAD + 2


@dataclass(slots=True, eq=False)
class _Stay:
    """Part of a tile column in memory, from its copy until its last use.

    Attributes
    ----------
    column, start, stop : int
        The tile column, and its tile rows.
    first, last : int
        The first and the last instruction that use it, in the program before it is streamed.
    written : int
        The last of those that change it; -1 if none does.
    slot : int
        Buffer that it is read back to; -1: it is in the shard.
    before : list of _Stay
        Those that were in the same memory before.
    copied, stored : int
        Places of its copy and its store in the new program; -1: there is none, or none yet.
    touched : dict
        Queue -> place of the latest use there, in the new program.
    sent : list of MessageKey
        Messages that other workers take from its memory.
    """

    column: int
    start: int
    stop: int
    first: int
    last: int
    written: int = -1
    slot: int = -1
    before: list[_Stay] = field(default_factory=list)
    copied: int = -1
    stored: int = -1
    touched: dict[Queue, int] = field(default_factory=dict)
    sent: list[MessageKey] = field(default_factory=list)

    def include(self, start: int, stop: int) -> None:
        """Include some tile rows."""
        self.start, self.stop = min(self.start, start), max(self.stop, stop)

    @property
    def after(self) -> list[int]:
        """Places of the instructions after which there is memory for it."""
        ends = [place for other in self.before for place in (*other.touched.values(), other.stored)]
        return [place for place in ends if place >= 0]


@dataclass(slots=True)
class _Part:
    """Tile rows of a column that a visit reads in one step, and the instructions that do."""

    column: int
    start: int
    stop: int
    places: list[int] = field(default_factory=list)


class MemoryPlan:
    """What of a matrix is in a worker's memory when.

    Parameters
    ----------
    program : Program
        A program in a streamed order, with the places of its columns.
    graph : TaskGraph
        Its graph.
    traffic : Traffic
        The messages between the workers.
    order : StreamedOrder
        The order.

    Attributes
    ----------
    uses : dict of int to list
        What each instruction uses.
    copies : list
        All that is copied to the worker, in the order of the first uses.
    """

    def __init__(
        self, program: Program, graph: TaskGraph, traffic: Traffic, order: StreamedOrder
    ) -> None:
        self._program, self._graph, self._visit = program, graph, order.visit
        self._messages = traffic.messages
        self.uses: dict[int, list[_Stay]] = {}
        self._stays: dict[tuple[int, int], _Stay] = {}
        self._find_stays()
        self._share_shard()
        self._find_sends()
        held = self._hold(self._find_parts())
        self.copies = sorted([*self._stays.values(), *held], key=lambda stay: stay.first)

    def _calls(self) -> Iterator[tuple[int, int, CallKernel]]:
        for place, call in enumerate(self._program.instructions):
            if isinstance(call, CallKernel):
                yield place, self._visit(call.step, call.first), call

    def _regions(self, call: CallKernel) -> Iterator[tuple[Region, bool]]:
        """Yield the parts of the matrix that a call accesses, and whether it changes them."""
        for regions, changes in zip(
            SPECS[call.kind].split(call.regions), (False, True), strict=True
        ):
            for region in regions:
                if region.name not in self._graph.values:
                    yield region, changes

    def _find_stays(self) -> None:
        """Find what each visit has to have in the shard: the columns on which its calls work."""
        layout, travels = self._graph.layout, self._graph.touched_rows()
        own, seen = OwnColumns(self._program.columns, layout), set[int]()
        for place, visit, call in self._calls():
            slope = SPECS[call.kind].trapezoid
            for region, changes in self._regions(call):
                if region.index != call.first:
                    continue
                for column in own.between(call.first, call.last):
                    start = region.start + (column - call.first) * slope
                    rows = (start, region.stop) if column in seen else travels[column]
                    stay = self._stays.setdefault(
                        (visit, column), _Stay(column, *rows, place, place)
                    )
                    seen.add(column)
                    stay.include(start, region.stop)
                    self._use(place, stay)
                    if changes:
                        stay.written = place

    def _use(self, place: int, stay: _Stay) -> None:
        stay.last = max(stay.last, place)
        used = self.uses.setdefault(place, [])
        if stay not in used:
            used.append(stay)

    def _share_shard(self) -> None:
        """Find which columns were in the memory of each column of the shard before."""
        layout, places = self._graph.layout, self._program.places
        held: list[tuple[int, int, _Stay]] = []
        for stay in sorted(self._stays.values(), key=lambda stay: (stay.first, stay.column)):
            start = places[stay.column]
            stop = start + layout.column_width(stay.column)
            overlap = [entry for entry in held if entry[0] < stop and start < entry[1]]
            stay.before = [other for *_, other in overlap]
            held = [entry for entry in held if entry not in overlap] + [(start, stop, stay)]

    def _find_sends(self) -> None:
        """Note which columns are sent."""
        for place, send in enumerate(self._program.instructions):
            if isinstance(send, SendMessage):
                message = self._messages[send.message]
                for name, column in message.regions:
                    stay = self._stays.get((message.visit, column))
                    if name not in self._graph.values and stay is not None:
                        self._use(place, stay)
                        stay.sent.append(send.message)

    def _find_parts(self) -> list[tuple[int, list[_Part]]]:
        """Find what each call reads of columns that are not in the shard."""
        come = {
            (message.visit, column)
            for message in self._messages.values()
            if self._program.worker in message.consumers
            for name, column in message.regions
            if name not in self._graph.values
        }
        parts: dict[tuple[int, int, int], _Part] = {}
        found: list[tuple[int, list[_Part]]] = []
        for place, visit, call in self._calls():
            needed: list[_Part] = []
            for region, _ in self._regions(call):
                _, column, start, stop = region
                if column == call.first or (visit, column) in come:
                    continue
                if stay := self._stays.get((visit, column)):
                    self._use(place, stay)
                    continue
                key = visit, column, call.step
                part = parts.setdefault(key, _Part(column, start, stop))
                part.start, part.stop = min(part.start, start), max(part.stop, stop)
                if part not in needed:
                    needed.append(part)
                    part.places.append(place)
            if needed:
                found.append((place, needed))
        return found

    def _hold(self, needs: list[tuple[int, list[_Part]]]) -> list[_Stay]:
        """Assign buffers to the parts that are read back."""
        count = max((len(parts) for _, parts in needs), default=0) + BUFFERS - 1
        slots: list[tuple[_Part, _Stay]] = []
        stays: list[_Stay] = []
        for place, parts in needs:
            for part in parts:
                slot = next((s for s, (held, _) in enumerate(slots) if held is part), -1)
                if slot < 0:
                    stay = _Stay(part.column, part.start, part.stop, place, place)
                    stays.append(stay)
                    slot = stay.slot = self._free_slot(slots, count, place, parts)
                    stay.before = [slots[slot][1]] if slot < len(slots) else []
                    slots[slot : slot + 1] = [(part, stay)]
                self._use(place, slots[slot][1])
        return stays

    def _free_slot(
        self, slots: list[tuple[_Part, _Stay]], count: int, place: int, parts: list[_Part]
    ) -> int:
        """Return a buffer that is not yet used, or that whose contents are needed last."""
        if len(slots) < count:
            return len(slots)

        def next_use(slot: int) -> tuple[float, int]:
            part, stay = slots[slot]
            later = part.places[bisect_right(part.places, place) :]
            return (later[0] if later else float("inf"), -stay.last)

        able = [slot for slot in range(count) if slots[slot][0] not in parts]
        return max(able, key=next_use)


def stream(
    program: Program, graph: TaskGraph, traffic: Traffic, order: StreamedOrder, done: int = 0
) -> None:
    """Give a program the loads and stores of a shard that has not room for all its columns.

    Parameters
    ----------
    program : Program
        A program in a streamed order, with the places of its columns; its own loads and stores are
        left out.
    graph, traffic, order
        See `MemoryPlan`.
    done : int, optional
        Number of the first visit that is still to be done; the values of those before are given.
    """
    if done:
        _leave_out(program, order, done)
    _Streaming(program, graph, traffic, order, done).write()


def _leave_out(program: Program, order: StreamedOrder, done: int) -> None:
    """Leave out the calls of visits before `done`, and the values that they make."""
    moved: dict[int, int] = {}
    left: list[Instruction] = []
    for place, instruction in enumerate(program.instructions):
        match instruction:
            case CallKernel(step, first=first) if order.visit(step, first) < done:
                for region in SPECS[instruction.kind].split(instruction.regions)[1]:
                    program.values.pop(region[:2], None)
                continue
        moved[place] = len(left)
        instruction.waits = tuple(moved[other] for other in instruction.waits if other in moved)
        left.append(instruction)
    program.instructions = left


def protect_stored(programs: Sequence[Program]) -> None:
    """Let a column that is stored again wait until other workers have read back what was there."""
    readers = Counter(
        read.region.index
        for program in programs
        for read in program.select(ReadBack)
        if read.region.index not in program.places
    )
    for program in programs:
        stored: set[int] = set()
        for store in program.select(StoreRows):
            if store.region.index in stored:
                store.readers = readers[store.region.index]
            stored.add(store.region.index)


class _Streaming:
    def __init__(
        self, program: Program, graph: TaskGraph, traffic: Traffic, order: StreamedOrder, done: int
    ) -> None:
        self._program, self._order, self._messages = program, order, traffic.messages
        self._given, self._new = program.instructions, list[Instruction]()
        plan = MemoryPlan(program, graph, traffic, order)
        self._uses, self._copies = plan.uses, deque(plan.copies)
        self._made = graph.made_columns()
        self._current = 0  # visit
        #: Own column -> its latest store, and the visit of that.
        self._stored: dict[int, tuple[int, int]] = {
            column: (-1, done - 1) for column in program.places if order.groups.group[column] < done
        }
        self._coming: list[_Stay] = []  # read back for calls that are still to be issued

    def write(self) -> None:
        moved: dict[int, int] = {}
        for place, instruction in enumerate(self._given):
            if isinstance(instruction, LoadColumn | StoreRows):
                continue
            used = self._uses.get(place, [])
            if isinstance(instruction, CallKernel):
                self._enter(self._order.visit(instruction.step, instruction.first))
                instruction.buffers = {("A", s.column): s.slot for s in used if s.slot >= 0}
            while self._copies and self._copies[0].first <= place:
                self._copy(self._copies.popleft())
            before = [moved[other] for other in instruction.waits if other in moved]
            for stay in used:
                if stay.copied >= 0:
                    before.append(stay.copied)
                elif not stay.touched:  # it is written here, in the place of others
                    before += stay.after
                    instruction.awaits += self._takers(stay)
            moved[place] = here = append_after(self._new, instruction, before)
            for stay in used:
                stay.touched[instruction.queue] = here
                if stay.written == place:
                    self._store(stay)
            while self._copies and self._may_copy(self._copies[0], place):
                self._copy(self._copies.popleft())
        self._enter(-1)
        self._program.instructions = self._new

    def _enter(self, visit: int) -> None:
        """Note the end of the visit before, where another one begins."""
        if visit != self._current:
            if self._new:
                self._program.visits.append((self._current, len(self._new)))
            self._current = visit

    def _takers(self, stay: _Stay) -> tuple[tuple[MessageKey, int], ...]:
        """Return who must have taken what was in the memory of a stay before."""
        return tuple([
            (key, consumer)
            for other in stay.before for key in other.sent
            for consumer in sorted(self._messages[key].consumers)
        ])  # fmt: skip

    def _may_copy(self, stay: _Stay, place: int) -> bool:
        """Return whether a copy can be issued after the instruction at `place`."""
        if any(other.last > place for other in stay.before):
            return False
        if self._stored.get(stay.column, (0, -1))[1] == self._current:
            return False
        if stay.slot < 0:
            return True
        self._coming = [other for other in self._coming if other.first > place]
        # Of another worker's column, the first visit of its group is the one that stores it.
        group = self._order.groups.group[stay.column]
        return group < self._current and len(self._coming) < _AHEAD

    def _copy(self, stay: _Stay) -> None:
        """Append the load of a column, or what reads a part of it back."""
        step = self._given[stay.first].step
        region = Region("A", stay.column, stay.start, stay.stop)
        stored = self._stored.get(stay.column)
        if stay.slot < 0 and stored is None and stay.column in self._made:
            return  # it is written before it is read
        before = stay.after + ([stored[0]] if stored and stored[0] >= 0 else [])
        copy: Instruction
        if stay.slot < 0:
            awaits = self._takers(stay)
            copy = LoadColumn(step, region, stored is not None, queue=Queue.COPY, awaits=awaits)
        else:
            copy = ReadBack(step, region, stay.slot, queue=Queue.COPY)
            self._coming.append(stay)
        stay.copied = append_after(self._new, copy, before)

    def _store(self, stay: _Stay) -> None:
        """Append the store of a column."""
        region = Region("A", stay.column, stay.start, stay.stop)
        store = StoreRows(self._given[stay.written].step, region, queue=Queue.STORE)
        before = list(stay.touched.values())
        stay.stored = append_after(self._new, store, before)
        self._stored[stay.column] = stay.stored, self._current
