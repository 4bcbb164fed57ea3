"""Programs: what each worker does, in order, adjacent columns merged into one call.

A program is a list of instructions for the three in-order queues of a worker's
device.  Instructions of one queue run in program order; between queues, `waits`
names what must have ended.  The executors and the simulator run the same programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.tiles.arrays.device import Queue

Op = Literal["load", "call", "send", "receive", "save", "store"]


#: After the work of all steps.
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
        What a call touches, for tile column `first`, in the kernel's order; what a save or a
        store copies.
    queue : Queue
        Queue it runs on.
    stretches : tuple of (int, int)
        First and last tile columns, of a call for a trapezoid whose columns are not all
        neighbours in the matrix: the kernel is called for each stretch, from its diagonal down.
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
    urgency : int
        How soon it should be issued, among the instructions of all workers: the smaller,
        the sooner.
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
        """First and last tile column, and regions, of each call of the kernel.

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
        """How often a call calls its kernel; 1 for all else."""
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
        """The messages that the program takes."""
        return [i.message for i in self.instructions if i.op == "receive" and i.message is not None]

    @property
    def last_step(self) -> int:
        """The largest step of its calls."""
        return max((i.step for i in self.instructions if i.op == "call"), default=0)

    def windows(self, steps: int) -> Iterator[tuple[int, int]]:
        """Slices of about `steps` steps each: where they start and stop.

        The last step belongs to the slice before: often it only closes the run.
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
        """Cut it after every send, and between work and the message that comes after it.

        Yields start, stop, messages needed, message sent.  Work that needs no message goes
        on while the message is on its way.
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
    """Say how soon each instruction of a program should be issued.

    Panels and the updates that they need go before the other updates of the step before,
    which they overlap with, but not before those of earlier steps.  A send goes as the call
    before it, whose result it offers; anything else as the call that it is for, the next one;
    and what follows the last call after everything.
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
    """Shapes of the arrays of a call, for each time that it calls its kernel.

    Parameters
    ----------
    instruction : Instruction
        A call.
    graph : TaskGraph
        What its regions are regions of.
    width : int or None, optional
        Columns of all the tile columns that are merged into the call; by default,
        those of its first tile column.
    shape_of : callable or None, optional
        ``graph.shape``, or something that remembers what it said.
    """
    shapes = list(map(shape_of or graph.shape, instruction.regions))
    if width is not None:
        for place, region in enumerate(instruction.regions):
            if region.index == instruction.first and region.name not in graph.values:
                shapes[place] = (shapes[place][0], width)
    if not instruction.stretches:
        return [shapes]
    # As `kernel_calls` has them, without making regions: plans ask this thousands of times.
    layout, top = graph.layout, instruction.regions[0].start
    (rows, inner), _ = shapes
    found: list[list[tuple[int, ...]]] = []
    for first, last in instruction.stretches:
        height = rows + layout.row(top) - layout.row(top + first - instruction.first)
        columns = layout.columns(last)[1] - layout.columns(first)[0]
        found.append([(height, inner), (height, columns)])
    return found
