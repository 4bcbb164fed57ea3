"""Programs: each worker's instructions, in order, adjacent columns merged into one call.

A program is a list of instructions for the three in-order queues of a worker's
device.  Instructions of one queue run in program order; between queues, `waits`
names the instructions that must have ended.  The executors and the simulator run the same
programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, TypeVar

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.program.own_columns import OwnColumns
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout

#: Urgency after the work of all steps.
_LAST = 2**31


@dataclass(slots=True, repr=False)
class Instruction:
    """One entry of a program; each kind of instruction is a subclass.

    Attributes
    ----------
    op : str
        Name of its kind, for reports and pictures.
    step : int
        Step of the factorization; of a save, the step before which the checkpoint is.
    queue : Queue
        Queue on which it runs.
    waits : tuple of int
        Earlier instructions on other queues that must have ended.
    signals : bool
        Whether a later instruction on another queue waits for this one.
    awaits : tuple of (MessageKey, int)
        Messages, and the consumers that must have taken them before this one.
    takes : tuple of MessageKey
        Messages that are no longer needed here once this one has ended.
    urgency : int
        Priority among the instructions of all workers: the smallest is issued first.
    """

    op: ClassVar[str]
    step: int
    _: KW_ONLY
    queue: Queue = Queue.UPDATE
    waits: tuple[int, ...] = ()
    signals: bool = False
    awaits: tuple[tuple[MessageKey, int], ...] = ()
    takes: tuple[MessageKey, ...] = ()
    urgency: int = 0

    def __repr__(self) -> str:
        return one_line(type(self).__name__, self.label)

    @property
    def name(self) -> str:
        """Its kernel, or else its kind."""
        return self.op

    @property
    def label(self) -> str:
        """A readable name, as in ``gemm step 3 column 5-9``."""
        return f"{self.name} step {self.step}"


@dataclass(slots=True, repr=False)
class CallKernel(Instruction):
    """Run a kernel.

    Attributes
    ----------
    first, last : int
        First and last tile column on which it works.
    kind : str
        The kernel.
    regions : tuple of Region
        Regions that it accesses, for tile column `first`, in the order of the kernel's arguments.
    stretches : tuple of (int, int)
        First and last tile columns, of a call for a trapezoid whose columns are not all
        neighbours in the matrix: the kernel is called for each stretch, from its diagonal down.
    buffers : dict
        Name and tile column of what it reads where that was read back -> the buffer.
    """

    op = "call"
    first: int
    last: int
    kind: str
    regions: tuple[Region, ...]
    stretches: tuple[tuple[int, int], ...] = ()
    buffers: dict[tuple[str, int], int] = field(default_factory=dict)

    def kernel_calls(self) -> Iterator[tuple[int, int, tuple[Region, ...]]]:
        """Yield first and last tile column, and regions, of each call of the kernel.

        Examples
        --------
        >>> regions = Region("A", 0, 2, 9), Region("A", 2, 2, 9)
        >>> herk = CallKernel(0, 2, 6, "herk", regions, ((2, 2), (5, 6)))
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
    def name(self) -> str:
        """Its kernel."""
        return self.kind

    @property
    def times(self) -> int:
        """Number of times that it calls its kernel."""
        return len(self.stretches) or 1

    @property
    def label(self) -> str:
        """A readable name, as in ``gemm step 3 column 5-9``."""
        columns = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.kind} step {self.step} column {columns}"

    def shapes(
        self,
        graph: TaskGraph,
        width: int | None = None,
        shape_of: Callable[[Region], tuple[int, ...]] | None = None,
    ) -> list[list[tuple[int, ...]]]:
        """Return the shapes of the arrays, for each time that it calls its kernel.

        Parameters
        ----------
        graph : TaskGraph
            The graph of the program.
        width : int or None, optional
            Columns of all the tile columns that are merged into the call; by default,
            those of its first tile column.
        shape_of : callable or None, optional
            ``graph.shape``, or a cached version of it.
        """
        shapes = list(map(shape_of or graph.shape, self.regions))
        if width is not None:
            for place, region in enumerate(self.regions):
                if region.index == self.first and region.name not in graph.values:
                    shapes[place] = (shapes[place][0], width)
        if not self.stretches:
            return [shapes]
        # As in `kernel_calls`, without making regions: a plan needs this thousands of times.
        layout, top = graph.layout, self.regions[0].start
        (rows, inner), _ = shapes
        found: list[list[tuple[int, ...]]] = []
        for first, last in self.stretches:
            height = rows + layout.row(top) - layout.row(top + first - self.first)
            columns = layout.columns(last)[1] - layout.columns(first)[0]
            found.append([(height, inner), (height, columns)])
        return found


@dataclass(slots=True, repr=False)
class SendMessage(Instruction):
    """Offer a message to its consumers."""

    op = "send"
    message: MessageKey


@dataclass(slots=True, repr=False)
class ReceiveMessage(Instruction):
    """Take a message.

    Attributes
    ----------
    message : MessageKey
        The message.
    slot : int
        Buffer that it fills.
    private : bool
        Whether the received data is overwritten here, and so must be a copy.
    """

    op = "receive"
    message: MessageKey
    slot: int = 0
    private: bool = False


@dataclass(slots=True, repr=False)
class CopyRegion(Instruction):
    """Copy a region between the worker and the host."""

    region: Region

    @property
    def label(self) -> str:
        """A readable name, as in ``store step 3 column 5``."""
        return f"{self.op} step {self.step} column {self.region.index}"


@dataclass(slots=True, repr=False)
class LoadColumn(CopyRegion):
    """Copy a tile column from the user's array to the shard.

    Attributes
    ----------
    again : bool
        Whether the run has stored it before, so that it is where results go.
    """

    op = "load"
    again: bool = False


@dataclass(slots=True, repr=False)
class ReadBack(CopyRegion):
    """Copy rows of a column that was stored to a buffer, to read them there.

    Attributes
    ----------
    slot : int
        Buffer that it fills.
    """

    op = "read back"
    slot: int = 0


@dataclass(slots=True, repr=False)
class StoreRows(CopyRegion):
    """Copy rows of a tile column from the shard to the user's array.

    Attributes
    ----------
    readers : int
        How often other workers read back what was stored there before.
    """

    op = "store"
    readers: int = 0


@dataclass(slots=True, repr=False)
class SaveRegion(CopyRegion):
    """Copy a tile column or a per-step value to the host, for a checkpoint."""

    op = "save"


Kind = TypeVar("Kind", bound=Instruction)


@dataclass(slots=True, repr=False)
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
    capacity : int
        Element columns of its shard, where that has not room for all columns; else 0.
    places : dict
        First element column in the shard of each of the columns, in that case.
    visits : list of (int, int)
        In that case, number and end, as a place in `instructions`, of each visit to columns.
    """

    worker: int
    columns: list[int]
    instructions: list[Instruction] = field(default_factory=list)
    slots: int = 0
    values: dict[tuple[str, int], tuple[tuple[int, ...], Any]] = field(default_factory=dict)
    results: frozenset[str] = frozenset()
    capacity: int = 0
    places: dict[int, int] = field(default_factory=dict)
    visits: list[tuple[int, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        columns, instructions = len(self.columns), len(self.instructions)
        return one_line(
            "Program", f"worker {self.worker}", counted(columns, "tile column"),
            counted(instructions, "instruction"),
        )  # fmt: skip

    def select(self, kind: type[Kind]) -> list[Kind]:
        """Return the instructions of one kind."""
        return [i for i in self.instructions if isinstance(i, kind)]

    def call_flops(self, graph: TaskGraph) -> dict[int, float]:
        """Return the floating-point operations (real arithmetic) of each call, by its place."""
        own = OwnColumns(self.columns, graph.layout)
        return {
            place: sum(
                SPECS[call.kind].flops(shapes)
                for shapes in call.shapes(graph, own.width(call.first, call.last))
            )
            for place, call in enumerate(self.instructions)
            if isinstance(call, CallKernel)
        }

    def largest_read_back(self, layout: TileLayout) -> int:
        """Return the elements of a buffer for what it reads back."""
        regions = (read.region for read in self.select(ReadBack))
        return max(
            (
                (layout.row(stop) - layout.row(start)) * layout.column_width(column)
                for _, column, start, stop in regions
            ),
            default=0,
        )

    def read_back_elements(self, layout: TileLayout) -> int:
        """Return the elements of all buffers for what it reads back."""
        return self.largest_read_back(layout) * len({read.slot for read in self.select(ReadBack)})

    @property
    def streamed(self) -> bool:
        """Whether only some of its columns are in memory at a time."""
        return self.capacity > 0

    @property
    def last_step(self) -> int:
        """Largest step of its calls."""
        return max((call.step for call in self.select(CallKernel)), default=0)

    def windows(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield start and stop of slices of about `steps` steps each.

        The last step belongs to the slice before it: often it has hardly any work.
        """
        start, reached, limit, last = 0, 0, steps, self.last_step
        for place, instruction in enumerate(self.instructions):
            if isinstance(instruction, CallKernel):
                reached = max(reached, instruction.step)
            if limit <= reached < last and place > start:
                yield start, place
                start, limit = place, reached + steps
        yield start, len(self.instructions)

    def last_saves(self) -> dict[int, int]:
        """Return the place of the last save of each checkpoint, in the order of their steps."""
        last = {i.step: at for at, i in enumerate(self.instructions) if isinstance(i, SaveRegion)}
        steps, places = list(last), list(last.values())
        assert steps == sorted(steps), steps
        assert places == sorted(places), "a checkpoint is complete before the one before it"
        return last

    def slices(self) -> Iterator[tuple[int, int, int | None]]:
        """Cut the program after each checkpoint: yield start, stop, and the step that is saved."""
        start = 0
        for step, place in self.last_saves().items():
            yield start, place + 1, step
            start = place + 1
        yield start, len(self.instructions), None


def append_after(
    instructions: list[Instruction], instruction: Instruction, before: Collection[int]
) -> int:
    """Append an instruction that follows those at the places `before`; return its place."""
    own, latest = instruction.queue, dict[Queue, int]()
    for place in sorted(before):
        queue = instructions[place].queue
        if queue is not own:
            latest[queue] = place
    instruction.waits = tuple(sorted(latest.values()))
    for place in instruction.waits:
        instructions[place].signals = True
    instructions.append(instruction)
    return len(instructions) - 1


def set_urgencies(
    instructions: Sequence[Instruction], start: Callable[[int, int], int] = lambda step, column: 0
) -> None:
    """Set the urgency of each instruction of a program, whose steps on a column begin at `start`.

    Panels and the updates that they need go before the other updates of the step before,
    with which they overlap, but not before those of earlier steps.  A send has the urgency of the
    call before it, whose result it offers; other instructions have that of the next call, for
    which they are; and those after the last call come last.
    """
    urgency = _LAST
    for instruction in reversed(instructions):
        if isinstance(instruction, CallKernel):
            step = instruction.step + start(instruction.step, instruction.first)
            urgency = 2 * step - (0 if instruction.queue is Queue.UPDATE else 3)
        instruction.urgency = urgency
    for instruction in instructions:
        if isinstance(instruction, SendMessage):
            instruction.urgency = urgency
        else:
            urgency = instruction.urgency
