"""Writer of one worker's program: dependences between instructions, and buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import INITIAL, Region, TaskBlock
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.program.calls import CallIndex, CommonDependences, between
from hetero_la.scheduler.program.checkpoint_cuts import CheckpointCuts
from hetero_la.scheduler.program.column_runs import ColumnRun
from hetero_la.scheduler.program.inbox import Inbox, Slots
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    Instruction,
    LoadColumn,
    Program,
    ReceiveMessage,
    SaveRegion,
    SendMessage,
    StoreRows,
    append_after,
)
from hetero_la.scheduler.program.last_writes import LastWrites
from hetero_la.scheduler.program.messages import Message, MessageKey, Traffic, Visit
from hetero_la.scheduler.program.outbox import Outbox
from hetero_la.scheduler.program.own_columns import OwnColumns
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.spec import SPECS


class ProgramWriter:
    """Writer of one worker's program, with the place of each task and message in it."""

    def __init__(
        self, graph: TaskGraph, distribution: Distribution, traffic: Traffic, worker: int,
        depth: int, made: Collection[int], touched: Mapping[int, tuple[int, int]],
        visit: Visit | None = None, panels_alone: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self.traffic, self.worker, self.visit = graph, traffic, worker, visit
        self.program = Program(
            worker, distribution.columns(worker), results=frozenset(graph.results)
        )
        self.owned = frozenset(self.program.columns)
        self.inbox = Inbox(graph, traffic, worker, self.owned, visit)
        self.calls, self.common = CallIndex(), CommonDependences()
        self.load_at: dict[int, int] = {}
        self.writes = LastWrites(self.program.columns, graph.layout.mt, graph.layout.part_ends)
        mine = [m for m in traffic.messages.values() if m.key.source == worker]
        self.outbox = Outbox(mine)
        self.sent_from: dict[int, int] = {}  # calls of the tasks that messages wait for
        self.slots = Slots((depth + 1) * graph.layout.block(0)[1] + 1)
        self.made, self.touched = made, touched
        self.panels_alone = panels_alone
        self.panel: int | None = None  # the factorization of a panel that updates wait for
        self.own = OwnColumns(self.program.columns, graph.layout)
        #: Own column that another worker sends back -> the latest call on each queue that reads it.
        self.reads: dict[int, dict[Queue, int]] = {
            column: {}
            for message in traffic.messages.values()
            if worker in message.consumers
            for name, column in message.regions
            if name not in graph.values and column in self.owned
        }
        self.outgoing: dict[tuple[str, int], list[Message]] = {}
        for message in mine:
            for region in message.regions:
                self.outgoing.setdefault(region, []).append(message)

    def write(
        self, runs: list[ColumnRun], arrival: Callable[[int], int] | None, cuts: CheckpointCuts
    ) -> None:
        """Fill the program from its merged runs of tasks, given in order."""
        if arrival is None:
            self._load_until(len(self.graph))
        elif not self.owned:
            # The owners keep panels until their last columns have arrived.
            layout = self.graph.layout
            self.slots.least += max(map(arrival, range(layout.nt + layout.rt)), default=0)
        self._send_ready()
        needs = self.inbox.needs(runs)
        for _, buffered in needs:
            for key in buffered:
                self.slots.expect(key)
        incoming = self._incoming()
        for run, (needed, buffered) in zip(runs, needs, strict=True):
            # Messages that no task here reads yet (own columns that come back) are still received
            # in the order of steps: their senders may wait for that.
            while incoming and incoming[0].step < run.step:
                self._receive(incoming.popleft())
            if arrival is not None and run.trailing:
                self._load_until(run.key[0] + 1, arrival)  # one step ahead of its use
            for key in needed:
                self._receive(key)
            for key in buffered:
                self.slots.read(key)
            place = self._call(run)
            for step, region in cuts.reached_by(run):
                queue = self.program.instructions[place].queue
                self._append(SaveRegion(step, region, queue=queue))
        for key in incoming:
            self._receive(key)
        self._load_until(len(self.graph))
        self._store()
        self.program.last_saves()  # whose order slices rely on

    def _incoming(self) -> deque[MessageKey]:
        """Return the messages for this worker, in the order of steps."""
        keys = (m.key for m in self.traffic.messages.values() if self.worker in m.consumers)
        return deque(sorted(keys, key=lambda key: (key.step, key.source)))

    def _load_until(self, phase: int, arrival: Callable[[int], int] | None = None) -> None:
        """Load the columns that are expected by `phase`, if they are not yet loaded."""
        for column in self.program.columns:
            if column in self.load_at or column in self.made:
                continue
            if arrival is None or arrival(column) <= phase:
                self._load(column)

    def _load(self, column: int) -> int:
        if column not in self.load_at:
            region = Region("A", column, *self._rows(column))
            self.load_at[column] = self._append(LoadColumn(0, region, queue=Queue.COPY))
        return self.load_at[column]

    def _rows(self, column: int) -> tuple[int, int]:
        """Return which tile rows of a column travel."""
        return self.touched.get(column, (0, self.graph.layout.mt))

    def _store(self) -> None:
        """Append stores of the columns in parts, in the order in which they are final."""
        parts = [
            part
            for column in self.program.columns
            for part in self.writes.finished(column, self._rows(column))
        ]
        for place, column, start, stop in sorted(parts):
            region = Region("A", column, start, stop)
            store = StoreRows(self.graph.layout.kt, region, queue=Queue.STORE)
            self._append(store, [max(place, self.load_at.get(column, 0))])

    def _append(self, instruction: Instruction, before: Collection[int] = ()) -> int:
        return append_after(self.program.instructions, instruction, before)

    def _call(self, run: ColumnRun) -> int:
        head, columns = run.parts[0]
        first, last = columns[0], run.parts[-1].columns[-1]
        before: set[int] = set()
        used: set[MessageKey] = set()
        awaits: tuple[tuple[MessageKey, int], ...] = ()
        for block, columns in run.parts:
            common = self._common(block, columns)
            before |= common.places
            for there in common.own:
                before.update(between(there, columns[0], columns[-1]))
            if common.loads:
                before.update(map(self._load, columns))
            used |= common.used
            awaits += common.awaits
            if self.inbox.returned and not block.single:
                self._follow_returned(block, columns, before)
        queue = Queue.UPDATE if run.trailing else Queue.PANEL
        regions = head.regions(first)
        call = CallKernel(head.step, first, last, head.kind, regions, queue=queue)
        if awaits:
            call.awaits = tuple(dict.fromkeys(awaits))
        if first < last and SPECS[head.kind].trapezoid:
            call.stretches = self.own.stretches(first, last)
        if run.trailing and self.panel is not None:
            before.add(self.panel)
            self.panel = None
        place = self._append(call, before)
        if self.panels_alone and not run.trailing and SPECS[head.kind].chain:
            self.panel = place
        for block, columns in run.parts:
            if self.reads:
                self._note_read(block, columns, place)
            self._note_written(block, columns, place)
        self.inbox.use(used, queue, place)
        awaited = self.outbox.awaited(run.parts)
        if awaited:
            self.sent_from.update(dict.fromkeys(awaited, place))
            self._send_ready(awaited)
        return place

    def _common(self, block: TaskBlock, columns: Sequence[int]) -> CommonDependences:
        """Return the dependences that all calls for a block share; cached for the latest block.

        Of one visit, where only some columns are in memory at a time.
        """
        if self.common.block is block and self.visit is None:
            return self.common
        self.common = common = CommonDependences(block)
        self.calls.set_predecessors(common)
        for writer, region in block.flows:
            if writer == INITIAL:
                if region.own:
                    common.loads = True
                elif region.index in self.owned:
                    common.places.add(self._load(region.index))
        if self.traffic.overwrites:
            common.awaits = tuple(self.traffic.overwrites.get((block.number, self.worker), ()))
        if self.inbox.received:
            for region, key, place in self._receives(block, block.common, columns[0]):
                common.places.add(place)
                if self.inbox.is_buffered(region):
                    common.used.add(key)
        return common

    def _follow_returned(self, block: TaskBlock, columns: Iterable[int], before: set[int]) -> None:
        """Let a call follow the receives that have brought back its own columns."""
        own = [region for region in block.accesses if region.own]
        for column in columns:
            if column in self.inbox.returned:
                before.update(place for *_, place in self._receives(block, own, column))

    def _receives(
        self, block: TaskBlock, regions: Iterable[Region], column: int
    ) -> Iterator[tuple[Region, MessageKey, int]]:
        """Yield those of a task's regions that were received, their message, and its receive."""
        for region in regions:
            key = self.inbox.holder(region.of(column), block.step, column)
            if key is not None:
                place = self.inbox.received[key]
                if region in block.updates:
                    receive = self.program.instructions[place]
                    assert isinstance(receive, ReceiveMessage)
                    receive.private = True
                yield region, key, place

    def _note_read(self, block: TaskBlock, columns: Sequence[int], place: int) -> None:
        """Note which call has read columns that come back last, on each queue."""
        queue = self.program.instructions[place].queue
        for region in block.reads:
            if region.name not in self.graph.values:
                for column in columns if region.own else (region.index,):
                    if column in self.reads:
                        self.reads[column][queue] = place

    def _note_written(self, block: TaskBlock, columns: Sequence[int], place: int) -> None:
        """Note which call did tasks, wrote columns last, and made per-step values."""
        self.calls.add(block.number, columns, place)
        for regions in (block.updates, block.writes):
            for region in regions:
                value = self.graph.values.get(region.name)
                if value is not None:
                    self.program.values[region[:2]] = (value.shape(region.index), value.dtype)
                else:
                    own = (region.index,) if block.single else columns
                    self.writes.add(own, region, place)

    def _send_ready(self, done: Iterable[int | MessageKey] = ()) -> None:
        """Send the messages that waited only for the tasks and receives now done."""
        for message in self.outbox.done(done):
            self._send(message)

    def _send(self, message: Message) -> None:
        """Offer a message once its writers, or else the loads of its columns, have ended."""
        before = [self.sent_from[writer] for writer in message.writers]
        before += [self.inbox.received[key] for key in message.after]
        before = before or [self._load(column) for _, column in message.regions]
        queue = self.program.instructions[max(before)].queue
        self._append(SendMessage(message.key.step, message.key, queue=queue), before)

    def _receive(self, key: MessageKey) -> None:
        if key in self.inbox.received:
            return
        self.common = CommonDependences()  # there may be a newer holder
        slot, replaced = self.slots.take(key)
        self.program.slots = len(self.slots)
        before: list[int] = []
        awaits: list[tuple[MessageKey, int]] = []
        if replaced is not None:
            before += self.inbox.last_uses(replaced)
            awaits = self._readers_of_slot(replaced)
        for name, column in self.traffic.messages[key].regions:
            if name not in self.graph.values:  # an own column comes back
                before += self.reads.get(column, {}).values()
        receive = ReceiveMessage(key.step, key, slot, queue=Queue.COPY, awaits=tuple(awaits))
        place = self._append(receive, before)
        for region in self.inbox.receive(key, place):
            self.writes.add((region.index,), region, place)
        self._send_ready([key])

    def _readers_of_slot(self, replaced: MessageKey) -> list[tuple[MessageKey, int]]:
        """Return consumers of what this worker made from a received panel in its buffer."""
        return [
            (message.key, consumer)
            for region in self.traffic.messages[replaced].regions
            if region[1] not in self.owned  # own columns are not in the buffer
            for message in self.outgoing.get(region, ())
            for consumer in sorted(message.consumers)
        ]


def issue_stores_early(program: Program) -> None:
    """Move each store from the program's end to the call by which its rows are final."""
    before = program.instructions
    after: dict[int, list[Instruction]] = {}
    for instruction in before:
        if isinstance(instruction, StoreRows):
            after.setdefault(max(instruction.waits), []).append(instruction)
    moved: list[int] = []  # new place of each instruction
    program.instructions = []
    for place, instruction in enumerate(before):
        if not isinstance(instruction, StoreRows):
            moved.append(len(program.instructions))
            program.instructions += [instruction, *after.get(place, ())]
    for instruction in program.instructions:
        instruction.waits = tuple(moved[place] for place in instruction.waits)


def announce_taken(writers: list[ProgramWriter], *, of_all: bool = False) -> None:
    """Let consumers signal that they have taken a message for which some instruction waits.

    With `of_all`, of each message: where only some columns are in memory at a time, what is loaded
    in the place of a sent column waits.
    """
    awaited = {
        pair
        for writer in writers
        for instruction in writer.program.instructions
        for pair in instruction.awaits
    }
    if of_all and writers:
        for message in writers[0].traffic.messages.values():
            awaited |= {(message.key, consumer) for consumer in message.consumers}
    for key, consumer in sorted(awaited):
        writer = writers[consumer]
        *others, place = writer.inbox.last_uses(key)
        instructions = writer.program.instructions
        instructions[place].takes += (key,)
        # The signal after the last use must not precede a use on another queue.
        instructions[place].waits = tuple(sorted({*instructions[place].waits, *others}))
        for other in others:
            instructions[other].signals = True
