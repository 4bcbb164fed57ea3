"""Writes one worker's program: what waits for what, and what is held where."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hetero_la.scheduler.costs import call_shapes
from hetero_la.scheduler.distribution import Distribution
from hetero_la.scheduler.graph import TaskGraph
from hetero_la.scheduler.instructions import Instruction, Program
from hetero_la.scheduler.lookahead import Priority, is_urgent
from hetero_la.scheduler.messages import Message, MessageKey, Traffic
from hetero_la.scheduler.saves import Saves
from hetero_la.scheduler.slots import Slots
from hetero_la.scheduler.tasks import INITIAL, Region, Task
from hetero_la.tiles.kernels.spec import SPECS, Queue

_MATRIX = "A"
_UNWRITTEN = (0, -1, -1)


class ProgramWriter:
    """Writes one worker's program; keeps track of where each task and message went."""

    def __init__(
        self,
        graph: TaskGraph,
        distribution: Distribution,
        traffic: Traffic,
        worker: int,
        depth: int,
    ) -> None:
        self.graph, self.traffic, self.worker, self.depth = graph, traffic, worker, depth
        self.program = Program(
            worker, distribution.columns(worker), results=frozenset(graph.results)
        )
        self.owned = set(self.program.columns)
        self.vectors = graph.vectors()
        self.task_at: dict[int, int] = {}
        self.load_at: dict[int, int] = {}
        self.receive_at: dict[MessageKey, int] = {}
        # Of each column: the row from which the last write is, its place, and that of the last
        # write to what is above, which is ready so much sooner.
        self.last_write: dict[int, tuple[int, int, int]] = {}
        self.last_use: dict[MessageKey, dict[Queue, int]] = {}
        self.pending: dict[MessageKey, set[int | MessageKey]] = {}
        self.slots = Slots(depth + 2)
        self.made = graph.made_columns()
        self.holders: dict[tuple[str, int], list[tuple[Region, MessageKey]]] = {}  # latest first
        self.outgoing: dict[tuple[str, int], list[Message]] = {}
        for message in traffic.messages.values():
            if message.key.source == worker:
                for region in message.regions:
                    self.outgoing.setdefault(region, []).append(message)

    def write(
        self,
        runs: list[list[Task]],
        keys: list[Priority],
        arrival: Callable[[int], int] | None,
        saves: Saves,
    ) -> None:
        """Fill the program from its merged runs of tasks, given in order with their keys."""
        if arrival is None:
            self._load_until(len(self.graph.tasks))
        elif not self.owned:
            # The owners hold on to panels until their last columns have arrived.
            self.slots.least += max(map(arrival, range(self.graph.layout.nt)), default=0)
        for message in self.traffic.messages.values():
            if message.key.source == self.worker:
                self.pending[message.key] = {*message.writers, *message.after}
        self._send_ready(())
        buffered = {task.index: self._buffers_of(task) for run in runs for task in run}
        for key in (key for keys in buffered.values() for key in keys):
            self.slots.expect(key)
        incoming = self._incoming()
        for run, (phase, trailing, *_) in zip(runs, keys, strict=True):
            # What no task here reads yet (columns that come home) is still taken in the
            # order of steps: its sender may wait for that before it goes on.
            while incoming and incoming[0].step < run[0].step:
                self._receive(incoming.pop(0))
            if arrival is not None and trailing:
                self._load_until(phase + 1, arrival)  # one step ahead of its use
            for task in run:
                for key in self.traffic.needs.get(task.index, ()):
                    self._receive(key)
                for key in buffered[task.index]:
                    self.slots.read(key)
            place = self._call(run)
            for step, region in saves.due(run):
                queue = self.program.instructions[place].queue
                save = Instruction("save", step, region.index, region.index, queue=queue)
                save.regions = (region,)
                self._append(save)
        for key in incoming:
            self._receive(key)
        self._load_until(len(self.graph.tasks))
        self._store()

    def _buffers_of(self, task: Task) -> list[MessageKey]:
        """Messages that a task reads in the buffer where they are received."""
        return [
            key
            for key in self.traffic.needs.get(task.index, ())
            if any(
                region[:2] in self.traffic.messages[key].regions and self._is_buffered(region)
                for region in task.accesses
            )
        ]

    def _incoming(self) -> list[MessageKey]:
        """Messages for this worker, in the order of steps."""
        keys = (m.key for m in self.traffic.messages.values() if self.worker in m.consumers)
        return sorted(keys, key=lambda key: (key.step, key.source))

    def _load_until(self, phase: int, arrival: Callable[[int], int] | None = None) -> None:
        """Load the columns that are expected by `phase`, if they are not yet."""
        for column in self.program.columns:
            if column in self.load_at or column in self.made:
                continue
            if arrival is None or arrival(column) <= phase:
                self._load(column)

    def _load(self, column: int) -> int:
        if column not in self.load_at:
            self.load_at[column] = self._append(
                Instruction("load", 0, column, column, queue=Queue.COPY)
            )
        return self.load_at[column]

    def _store(self) -> None:
        """Store the columns in one or two parts, those that are ready first."""
        layout, parts = self.graph.layout, list[tuple[int, Region]]()
        for column in self.program.columns:
            row, last, above = self.last_write.get(column, _UNWRITTEN)
            loaded = self.load_at.get(column, 0)
            parts.append((max(last, loaded), Region(_MATRIX, column, row, layout.mt)))
            if row:
                parts.append((max(above, loaded), Region(_MATRIX, column, 0, row)))
        for ready, region in sorted(parts):
            store = Instruction("store", layout.kt, region.index, region.index, queue=Queue.COPY)
            store.regions = (region,)
            self._append(store, [ready])

    def _note_write(self, region: Region, place: int) -> None:
        row, last, above = self.last_write.get(region.index, _UNWRITTEN)
        self.last_write[region.index] = region.start, place, last if region.start > row else above

    def _append(self, instruction: Instruction, before: Collection[int] = ()) -> int:
        """Add an instruction that follows those at `before`; return its place."""
        instructions = self.program.instructions
        latest: dict[Queue, int] = {}
        for place in before:
            queue = instructions[place].queue
            if queue != instruction.queue and place > latest.get(queue, -1):
                latest[queue] = place
        instruction.waits = tuple(sorted(latest.values()))
        for place in instruction.waits:
            instructions[place].signals = True
        instructions.append(instruction)
        return len(instructions) - 1

    def _call(self, run: list[Task]) -> int:
        head = run[0]
        before = {self.task_at[t] for task in run for t in task.after if t in self.task_at}
        awaits: list[tuple[MessageKey, int]] = []
        used: set[MessageKey] = set()
        for task in run:
            for writer, region in task.flows:
                if writer == INITIAL and region.index in self.owned:
                    before.add(self._load(region.index))
            awaits += self.traffic.overwrites.get(task.index, ())
            # What a run reads of other columns is the same for all its tasks.
            for region in head.accesses if task is head else task.updates:
                key = self._holder(region)
                if key is not None:
                    before.add(self.receive_at[key])
                    if self._is_buffered(region):
                        used.add(key)
                    if region in task.updates:
                        self.program.instructions[self.receive_at[key]].private = True
        queue = Queue.PANEL if is_urgent(head, self.depth, self.graph.layout.kt) else Queue.UPDATE
        call = Instruction(
            "call", head.step, head.column, run[-1].column, head.kind, head.accesses, queue,
            awaits=tuple(dict.fromkeys(awaits)),
        )  # fmt: skip
        width = sum(self.graph.layout.column_width(task.column) for task in run)
        call.flops = SPECS[head.kind].flops(call_shapes(call, self.graph, width))
        place = self._append(call, before)
        for task in run:
            self.task_at[task.index] = place
            for region in task.updates + task.writes:
                value = self.graph.values.get(region.name)
                if value is None:
                    self._note_write(region, place)
                else:
                    self.program.values[region[:2]] = (value.shape(region.index), value.dtype)
        for key in used:
            self.last_use.setdefault(key, {})[queue] = place
        self._send_ready([task.index for task in run])
        return place

    def _is_buffered(self, region: Region) -> bool:
        """Whether a received region is in a rotating buffer: neither kept nor come home."""
        if region.name in self.graph.values:
            return region.name not in self.vectors
        return region.index not in self.owned

    def _send_ready(self, done: Iterable[int | MessageKey]) -> None:
        """Send what waited for nothing but the tasks and receives that are now done."""
        for key, missing in list(self.pending.items()):
            missing.difference_update(done)
            if not missing:
                del self.pending[key]
                self._send(self.traffic.messages[key])

    def _send(self, message: Message) -> None:
        """Offer a message once its writers, or else the loads it is made of, have ended."""
        before = [self.task_at[writer] for writer in message.writers]
        before += [self.receive_at[key] for key in message.after]
        before = before or [self._load(column) for _, column in message.regions]
        queue = self.program.instructions[max(before)].queue
        self._append(
            Instruction("send", message.key.step, queue=queue, message=message.key), before
        )

    def _receive(self, key: MessageKey) -> None:
        if key in self.receive_at:
            return
        slot, replaced = self.slots.take(key)
        self.program.slots = len(self.slots)
        before: list[int] = []
        awaits: list[tuple[MessageKey, int]] = []
        if replaced is not None:
            before += self.last_uses(replaced)
            awaits = self._readers_of_slot(replaced)
        place = self.receive_at[key] = self._append(
            Instruction(
                "receive", key.step, queue=Queue.COPY, message=key, slot=slot,
                awaits=tuple(awaits),
            ),
            before,
        )  # fmt: skip
        for name, region in self.traffic.messages[key].regions.items():
            self.holders.setdefault(name, []).insert(0, (region, key))
            if region.name not in self.graph.values and region.index in self.owned:
                self._note_write(region, place)
        self._send_ready([key])

    def _holder(self, region: Region) -> MessageKey | None:
        """The latest message that has brought a region; a column may come in parts."""
        found = self.holders.get(region[:2], ())
        return next((key for held, key in found if held.covers(region)), None)

    def last_uses(self, key: MessageKey) -> list[int]:
        """The last use of a message on each queue, or else where it is received."""
        return sorted(self.last_use.get(key, {}).values()) or [self.receive_at[key]]

    def _readers_of_slot(self, replaced: MessageKey) -> list[tuple[MessageKey, int]]:
        """Consumers of what this worker made from a received panel, in its buffer."""
        return [
            (message.key, consumer)
            for region in self.traffic.messages[replaced].regions
            if region[1] not in self.owned  # what came home is not in the buffer
            for message in self.outgoing.get(region, ())
            for consumer in sorted(message.consumers)
        ]


def announce_taken(writers: list[ProgramWriter]) -> None:
    """Let consumers say when they have taken a message that somebody waits for."""
    awaited = {
        pair
        for writer in writers
        for instruction in writer.program.instructions
        for pair in instruction.awaits
    }
    for key, consumer in sorted(awaited):
        writer = writers[consumer]
        *others, place = writer.last_uses(key)
        instructions = writer.program.instructions
        instructions[place].takes += (key,)
        # What is announced after the last use must not come before one on another queue.
        instructions[place].waits = tuple(sorted({*instructions[place].waits, *others}))
        for other in others:
            instructions[other].signals = True
