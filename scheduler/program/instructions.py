"""Programs: each worker's instructions, in order, adjacent columns merged into one call.

A program is a list of instructions for the three in-order queues of a worker's
device.  Instructions of one queue run in program order; between queues, `waits`
names the instructions that must have ended.  The executors and the simulator run the same
programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.tiles.kernels.device import Queue

Op = Literal["load", "call", "send", "receive", "save", "store"]


#: Urgency after the work of all steps.
_LAST = 2**31


@dataclass(slots=True)
class Instruction:
    """One entry of a program.

    Attributes
    ----------
    op : str
        load and store move a tile column between the user's array and the shard;
        send offers a message and receive takes one; call runs a kernel; save copies a
        column or a per-step value to the host, for a checkpoint.
    kind : str
        The kernel of a call.
    step, first, last : int
        Step, and first and last tile column that a call or load works on; of a save,
        the step before which the checkpoint is.
    regions : tuple of Region
        Regions that a call accesses, for tile column `first`, in the order of the kernel's
        arguments; region that a save or a store copies.
    queue : Queue
        Queue on which it runs.
    stretches : tuple of (int, int)
        First and last tile columns, of a call for a trapezoid whose columns are not all
        neighbours in the matrix: the kernel is called for each stretch, from its diagonal down.
    message : MessageKey or None
        Message of a send or receive.
    slot : int
        Buffer that a receive fills.
    private : bool
        Whether the received data is overwritten here, and so must be a copy.
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
    urgency : int
        Priority among the instructions of all workers: the smallest is issued first.
    """

    op: Op
    step: int
    first: int = -1
    last: int = -1
    kind: str = ""
    regions: tuple[Region, ...] = ()
    queue: Queue = Queue.UPDATE
    stretches: tuple[tuple[int, int], ...] = ()
    message: MessageKey | None = None
    slot: int = -1
    private: bool = False
    waits: tuple[int, ...] = ()
    signals: bool = False
    awaits: tuple[tuple[MessageKey, int], ...] = ()
    takes: tuple[MessageKey, ...] = ()
    flops: float = 0.0
    urgency: int = 0

    def kernel_calls(self) -> Iterator[tuple[int, int, tuple[Region, ...]]]:
        """Yield first and last tile column, and regions, of each call of the kernel.

        Examples
        --------
        >>> regions = Region("A", 0, 2, 9), Region("A", 2, 2, 9)
        >>> herk = Instruction("call", 0, 2, 6, "herk", regions, stretches=((2, 2), (5, 6)))
        >>> for first, last, (p, c) in herk.kernel_calls():
        ...     print(first, last, tuple(p), tuple(c))
        2 2 ('A', 0, 2, 9) ('A', 2, 2, 9)
        5 6 ('A', 0, 5, 9) ('A', 5, 5, 9)
        """
        if not self.stretches:
            yield self.first, self.last, self.regions
        for first, last in self.stretches:
            down = first - self.first
            regions = tuple(
                Region(name, first if index == self.first else index, start + down, stop)
                for name, index, start, stop in self.regions
            )
            yield first, last, regions

    @property
    def times(self) -> int:
        """Number of times that a call calls its kernel; 1 for other instructions."""
        return len(self.stretches) or 1

    @property
    def label(self) -> str:
        """A readable name, as in ``gemm step 3 column 5-9``."""
        if self.op in ("send", "receive"):
            return f"{self.op} step {self.step}"
        columns = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.kind or self.op} step {self.step} column {columns}"


@dataclass(slots=True)
class Program:
    """Instructions of one worker.

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
    results : frozenset of str
        Names of the per-step values that the run returns.
    """

    worker: int
    columns: list[int]
    instructions: list[Instruction] = field(default_factory=list)
    slots: int = 0
    values: dict[tuple[str, int], tuple[tuple[int, ...], Any]] = field(default_factory=dict)
    results: frozenset[str] = frozenset()

    @property
    def received(self) -> list[MessageKey]:
        """Messages that the program receives."""
        return [i.message for i in self.instructions if i.op == "receive" and i.message is not None]

    @property
    def last_step(self) -> int:
        """Largest step of its calls."""
        return max((i.step for i in self.instructions if i.op == "call"), default=0)

    def windows(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield start and stop of slices of about `steps` steps each.

        The last step belongs to the slice before it: often it has hardly any work.
        """
        start, reached, limit, last = 0, 0, steps, self.last_step
        for place, instruction in enumerate(self.instructions):
            if instruction.op == "call":
                reached = max(reached, instruction.step)
            if limit <= reached < last and place > start:
                yield start, place
                start, limit = place, reached + steps
        yield start, len(self.instructions)

    def slices(self) -> Iterator[tuple[int, int, list[MessageKey], MessageKey | None]]:
        """Cut the program after every send, and before each message that follows work.

        Yields start, stop, messages needed, message sent.  Work that needs no message then
        overlaps with the transfer of the next one.
        """
        start, worked, needed = 0, False, list[MessageKey]()
        for place, instruction in enumerate(self.instructions):
            if instruction.op == "receive" and instruction.message is not None:
                if worked:
                    yield start, place, needed, None
                    start, worked, needed = place, False, []
                needed.append(instruction.message)
            elif instruction.op == "send":
                yield start, place + 1, needed, instruction.message
                start, worked, needed = place + 1, False, []
            elif instruction.op == "call":
                worked = True
        yield start, len(self.instructions), needed, None


def set_urgencies(instructions: Sequence[Instruction]) -> None:
    """Set the urgency of each instruction of a program.

    Panels and the updates that they need go before the other updates of the step before,
    with which they overlap, but not before those of earlier steps.  A send has the urgency of the
    call before it, whose result it offers; other instructions have that of the next call, for
    which they are; and those after the last call come last.
    """
    urgency = _LAST
    for instruction in reversed(instructions):
        if instruction.op == "call":
            urgency = 2 * instruction.step - (0 if instruction.queue is Queue.UPDATE else 3)
        instruction.urgency = urgency
    for instruction in instructions:
        if instruction.op == "send":
            instruction.urgency = urgency
        else:
            urgency = instruction.urgency


def kernel_shapes(
    instruction: Instruction,
    graph: TaskGraph,
    width: int | None = None,
    shape_of: Callable[[Region], tuple[int, ...]] | None = None,
) -> list[list[tuple[int, ...]]]:
    """Return the shapes of a call's arrays, for each time that it calls its kernel.

    Parameters
    ----------
    instruction : Instruction
        A call.
    graph : TaskGraph
        The graph of the program.
    width : int or None, optional
        Columns of all the tile columns that are merged into the call; by default,
        those of its first tile column.
    shape_of : callable or None, optional
        ``graph.shape``, or a cached version of it.
    """
    shapes = list(map(shape_of or graph.shape, instruction.regions))
    if width is not None:
        for place, region in enumerate(instruction.regions):
            if region.index == instruction.first and region.name not in graph.values:
                shapes[place] = (shapes[place][0], width)
    if not instruction.stretches:
        return [shapes]
    # As in `kernel_calls`, without making regions: a plan needs this thousands of times.
    layout, top = graph.layout, instruction.regions[0].start
    (rows, inner), _ = shapes
    found: list[list[tuple[int, ...]]] = []
    for first, last in instruction.stretches:
        height = rows + layout.row(top) - layout.row(top + first - instruction.first)
        columns = layout.columns(last)[1] - layout.columns(first)[0]
        found.append([(height, inner), (height, columns)])
    return found
