"""Programs: what each worker does, in order, adjacent columns merged into one call.

A program is a list of instructions for the three in-order queues of a worker's
device.  Instructions of one queue run in program order; between queues, `waits`
names what must have ended.  The executors and the simulator run the same programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hetero_la.scheduler.distribution import Distribution
from hetero_la.scheduler.graph import INITIAL, Region, Task, TaskGraph
from hetero_la.scheduler.lookahead import Priority, is_urgent, priorities
from hetero_la.scheduler.messages import Message, MessageKey, Traffic, derive_traffic
from hetero_la.tiles.kernels.spec import Queue

Op = Literal["load", "call", "send", "receive", "store"]


@dataclass(slots=True)
class Instruction:
    """One entry of a program.

    Attributes
    ----------
    op : str
        load and store move a tile column between the user's array and the shard;
        send offers a message and receive takes one; call runs a kernel.
    kind : str
        The kernel of a call.
    step, first, last : int
        Step, and first and last tile column that a call or load works on.
    regions : tuple of Region
        What a call touches, for tile column `first`, in the kernel's order.
    queue : Queue
        Queue it runs on.
    message : MessageKey or None
        What a send or receive is about.
    slot : int
        Buffer that a receive fills.
    private : bool
        Whether what is received is overwritten here, and so must be a copy.
    waits : tuple of int
        Earlier instructions on other queues that must have ended.
    signals : bool
        Whether a later instruction on another queue waits for this one.
    awaits : tuple of (MessageKey, int)
        Messages, and the consumers that must have taken them before this one.
    takes : tuple of MessageKey
        Messages that are no longer needed here once this one has ended.
    flops : float
        Floating-point operations (real arithmetic).
    """

    op: Op
    step: int
    first: int = -1
    last: int = -1
    kind: str = ""
    regions: tuple[Region, ...] = ()
    queue: Queue = Queue.UPDATE
    message: MessageKey | None = None
    slot: int = -1
    private: bool = False
    waits: tuple[int, ...] = ()
    signals: bool = False
    awaits: tuple[tuple[MessageKey, int], ...] = ()
    takes: tuple[MessageKey, ...] = ()
    flops: float = 0.0

    @property
    def label(self) -> str:
        """A readable name, as in ``gemm step 3 columns 5-9``."""
        if self.op in ("send", "receive"):
            return f"{self.op} step {self.step}"
        columns = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.kind or self.op} step {self.step} column {columns}"


@dataclass(slots=True)
class Program:
    """One worker's instructions.

    Attributes
    ----------
    worker : int
        The worker's index.
    columns : list of int
        Tile columns that it owns, in the order of its shard.
    instructions : list of Instruction
        In the order in which they are issued.
    slots : int
        Buffers that received panels rotate through.
    values : dict
        (name, step) -> shape and dtype (None: the matrix's) of the per-step values
        that the program touches.
    """

    worker: int
    columns: list[int]
    instructions: list[Instruction] = field(default_factory=list)
    slots: int = 0
    values: dict[tuple[str, int], tuple[tuple[int, ...], Any]] = field(default_factory=dict)


def build_programs(
    graph: TaskGraph,
    placement: Sequence[int],
    distribution: Distribution,
    workers: int,
    *,
    depth: int,
    shared: bool = False,
    arrival: Callable[[int], int] = lambda column: 0,
) -> tuple[list[Program], Traffic]:
    """Turn a placed graph into one program per worker, and the messages between them.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    placement : sequence of int
        Worker of each task.
    distribution : Distribution
        Owner of each tile column.
    workers : int
        How many workers there are.
    depth : int
        Look-ahead.
    shared : bool, optional
        The shards are parts of one array in the matrix's own order, so only
        columns that are neighbours in the matrix can be merged.
    arrival : callable, optional
        See `priorities`.
    """
    traffic = derive_traffic(graph, placement, distribution)
    keys = priorities(graph, depth, arrival)
    assigned: list[list[Task]] = [[] for _ in range(workers)]
    for task in graph.tasks:
        assigned[placement[task.index]].append(task)
    writers = []
    for worker, tasks in enumerate(assigned):
        tasks.sort(key=lambda task: keys[task.index])
        writer = _Writer(graph, distribution, traffic, worker, depth)
        stored = range(len(distribution.owners)) if shared else writer.program.columns
        writer.write(_merge(graph, tasks, keys, stored))
        writers.append(writer)
    _announce_taken(writers)
    return [writer.program for writer in writers], traffic


def _merge(
    graph: TaskGraph, tasks: list[Task], keys: list[Priority], columns: Sequence[int]
) -> list[list[Task]]:
    """Runs of tasks that differ only in the column, adjacent in the shard."""
    local = {column: place for place, column in enumerate(columns)}
    runs: list[list[Task]] = []
    previous: object = None
    for task in tasks:
        own, values = task.column, graph.values
        signature = (
            keys[task.index][:4],
            tuple(
                (r.name, r.start, r.stop) if r.index == own and r.name not in values else r
                for r in task.reads + task.updates + task.writes
            ),
        )
        if (
            signature == previous
            and own in local
            and local[own] == local.get(runs[-1][-1].column, -2) + 1
        ):
            runs[-1].append(task)
        else:
            runs.append([task])
        previous = signature
    return runs


class _Writer:
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
        columns = distribution.columns(worker)
        # Panels in use: the current step's, `depth` ahead, and one on its way.
        self.program = Program(worker, columns, slots=depth + 2)
        self.vectors = graph.vectors()
        self.task_at: dict[int, int] = {}
        self.load_at: dict[int, int] = {}
        self.receive_at: dict[MessageKey, int] = {}
        self.last_write: dict[int, int] = {}
        self.last_use: dict[MessageKey, int] = {}
        self.pending: dict[MessageKey, set[int | MessageKey]] = {}
        self.slot_of: list[MessageKey] = []
        self.holder: dict[tuple[str, int], MessageKey] = {}
        self.outgoing: dict[tuple[str, int], list[Message]] = {}
        for message in traffic.messages.values():
            if message.key.source == worker:
                for region in message.regions:
                    self.outgoing.setdefault(region, []).append(message)

    def write(self, runs: list[list[Task]]) -> None:
        """Fill the program from its merged runs of tasks."""
        for column in self.program.columns:
            self.load_at[column] = self._append(
                Instruction("load", 0, column, column, queue=Queue.COPY)
            )
        for key, message in self.traffic.messages.items():
            if key.source == self.worker:
                self.pending[key] = {*message.writers, *message.after}
        self._send_ready(())
        incoming = sorted(
            (key.step, key)
            for key, message in self.traffic.messages.items()
            if self.worker in message.consumers
        )
        for run in runs:
            # What no task here reads yet (columns that come home) is still taken in the
            # order of steps: its sender may wait for that before it goes on.
            while incoming and incoming[0][0] < run[0].step:
                self._receive(incoming.pop(0)[1])
            for task in run:
                for key in self.traffic.needs.get(task.index, ()):
                    self._receive(key)
            self._call(run)
        for _, key in incoming:
            self._receive(key)
        for column in self.program.columns:
            at = self.last_write.get(column, self.load_at[column])
            self._append(
                Instruction("store", self.graph.layout.kt, column, column, queue=Queue.COPY), [at]
            )

    def _append(self, instruction: Instruction, before: Sequence[int] = ()) -> int:
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

    def _call(self, run: list[Task]) -> None:
        head = run[0]
        before: list[int] = []
        awaits: list[tuple[MessageKey, int]] = []
        used: list[MessageKey] = []
        for task in run:
            before += [self.task_at[t] for t in task.after if t in self.task_at]
            for writer, region in task.flows:
                if writer == INITIAL and region.index in self.load_at:
                    before.append(self.load_at[region.index])
            for region in task.accesses:
                key = self.holder.get(region[:2])
                if key is not None:
                    before.append(self.receive_at[key])
                    if self._is_buffered(region):
                        used.append(key)
                    if region in task.updates:
                        self.program.instructions[self.receive_at[key]].private = True
            awaits += self.traffic.overwrites.get(task.index, ())
        queue = Queue.PANEL if is_urgent(head, self.depth) else Queue.UPDATE
        place = self._append(
            Instruction(
                "call", head.step, head.column, run[-1].column, head.kind, head.accesses, queue,
                awaits=tuple(dict.fromkeys(awaits)),
                flops=sum(self.graph.flops(task) for task in run),
            ),
            before,
        )  # fmt: skip
        for task in run:
            self.task_at[task.index] = place
            for region in task.updates + task.writes:
                value = self.graph.values.get(region.name)
                if value is None:
                    self.last_write[region.index] = place
                else:
                    self.program.values[region[:2]] = (value.shape(region.index), value.dtype)
        for key in used:
            self.last_use[key] = place
        self._send_ready([task.index for task in run])

    def _is_buffered(self, region: Region) -> bool:
        """Whether a received region is in a rotating buffer: neither kept nor come home."""
        if region.name in self.graph.values:
            return region.name not in self.vectors
        return region.index not in self.load_at

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
        before = before or [self.load_at[column] for _, column in message.regions]
        queue = self.program.instructions[max(before)].queue
        self._append(
            Instruction("send", message.key.step, queue=queue, message=message.key), before
        )

    def _receive(self, key: MessageKey) -> None:
        if key in self.receive_at:
            return
        slot = len(self.slot_of) % self.program.slots
        before: list[int] = []
        awaits: list[tuple[MessageKey, int]] = []
        if len(self.slot_of) >= self.program.slots:
            replaced = self.slot_of[-self.program.slots]
            before.append(self.last_use.get(replaced, self.receive_at[replaced]))
            awaits = self._readers_of_slot(replaced)
        self.slot_of.append(key)
        place = self.receive_at[key] = self._append(
            Instruction(
                "receive", key.step, queue=Queue.COPY, message=key, slot=slot,
                awaits=tuple(awaits),
            ),
            before,
        )  # fmt: skip
        for region in self.traffic.messages[key].regions:
            self.holder[region] = key
            if region[0] not in self.graph.values and region[1] in self.load_at:
                self.last_write[region[1]] = place
        self._send_ready([key])

    def _readers_of_slot(self, replaced: MessageKey) -> list[tuple[MessageKey, int]]:
        """Consumers of what this worker made from a received panel, in its buffer."""
        return [
            (message.key, consumer)
            for region in self.traffic.messages[replaced].regions
            if region[1] not in self.load_at  # what came home is not in the buffer
            for message in self.outgoing.get(region, ())
            for consumer in sorted(message.consumers)
        ]


def _announce_taken(writers: list[_Writer]) -> None:
    """Let consumers say when they have taken a message that somebody waits for."""
    awaited = {
        pair
        for writer in writers
        for instruction in writer.program.instructions
        for pair in instruction.awaits
    }
    for key, consumer in sorted(awaited):
        writer = writers[consumer]
        place = writer.last_use.get(key, writer.receive_at[key])
        writer.program.instructions[place].takes += (key,)
