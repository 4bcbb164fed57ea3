"""Programs from a placed graph, one per worker: order, merge, write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import TaskBlock
from hetero_la.scheduler.placement.column_groups import ColumnGroups
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.lookahead import Order
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.streamed_order import StreamedOrder
from hetero_la.scheduler.program.checkpoint_cuts import CheckpointCuts
from hetero_la.scheduler.program.column_runs import BlockColumns, ColumnRun
from hetero_la.scheduler.program.instructions import Program, set_urgencies
from hetero_la.scheduler.program.messages import Traffic, derive_traffic
from hetero_la.scheduler.program.streaming import protect_stored, stream
from hetero_la.scheduler.program.writer import ProgramWriter, announce_taken, issue_stores_early
from hetero_la.tiles.kernels.spec import SPECS


def build_programs(
    graph: TaskGraph,
    placement: Placement,
    distribution: Distribution,
    workers: int,
    *,
    depth: int,
    shared: Collection[int] = (),
    arrival: Callable[[int], int] | None = None,
    checkpoints: Sequence[int] = (),
    groups: ColumnGroups | None = None,
    done: int = 0,
    panels_alone: bool = False,
) -> tuple[list[Program], Traffic]:
    """Turn a placed graph into one program per worker, and the messages between them.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    placement : Placement
        Worker of each task.
    distribution : Distribution
        Owner of each tile column.
    workers : int
        How many workers there are.
    depth : int
        Look-ahead.
    shared : collection of int, optional
        Workers whose shards are parts of one array in the matrix's own order, so that of theirs
        only columns that are neighbours in the matrix can be merged.
    arrival : callable, optional
        Step by which each tile column has been copied to its worker; the work of earlier
        steps on it waits for that.  None: all columns are there from the beginning.
    checkpoints : sequence of int, optional
        Steps, in order, before which the state of the matrix is saved; every task must
        be placed on the owner of its column.
    groups : ColumnGroups, optional
        Groups of columns that are done one after the other, and are in memory only then if the
        shards have not room for all; None: no groups.
    done : int, optional
        Then, number of the first visit to a group that is still to be done.
    panels_alone : bool, optional
        Whether a worker's trailing update waits for the panel that it factors in the same step,
        so that other workers have that panel sooner.
    """
    order = StreamedOrder(graph, depth, groups) if groups else Order(graph, depth, arrival)
    streamed = groups is not None and bool(groups.capacities)
    visit = order.visit if streamed and isinstance(order, StreamedOrder) else None
    traffic = derive_traffic(graph, placement, distribution, visit)
    made, touched = graph.made_columns(), graph.touched_rows()
    writers = []
    mergings = []
    for worker in range(workers):
        writer = ProgramWriter(
            graph, distribution, traffic, worker, depth, made, touched, visit, panels_alone
        )
        writers.append(writer)
        columns: Sequence[int] = writer.program.columns
        if worker in shared:
            columns = range(len(distribution.owners))
        local = {column: place for place, column in enumerate(columns)}
        if groups and streamed:
            local = groups.neighbours(graph.layout, columns)
        mergings.append(_Merging(graph, order, local))
    for block in graph.blocks:
        for worker, columns in placement.shares(block).items():
            mergings[worker].add(block, columns)
    for worker, (writer, merging) in enumerate(zip(writers, mergings, strict=True)):
        mine = [t for t in graph.tasks if placement[t.index] == worker] if checkpoints else []
        cuts = CheckpointCuts(graph, mine, checkpoints)
        writer.write(merging.runs(), arrival, cuts)
    announce_taken(writers, of_all=streamed)
    for writer in writers:
        program = writer.program
        if streamed and isinstance(order, StreamedOrder):
            program.capacity = order.groups.capacities[program.worker]
            program.places = {column: order.groups.places[column] for column in program.columns}
            stream(program, graph, traffic, order, done)
            set_urgencies(program.instructions, order.start)
        else:
            issue_stores_early(program)
            set_urgencies(program.instructions)
    programs = [writer.program for writer in writers]
    protect_stored(programs)
    return programs, traffic


class _Merging:
    """Merging of one worker's tasks that differ only in the column, adjacent in its shard."""

    def __init__(self, graph: TaskGraph, order: Order, local: Mapping[int, int]) -> None:
        self._graph, self._order, self._local = graph, order, local
        self._cut: dict[tuple[int, int, int, bool], list[Sequence[int]]] = {}
        self._found: list[ColumnRun] = []

    def add(self, block: TaskBlock, columns: Sequence[int]) -> None:
        """Assign a block's tasks of some columns to the worker."""
        for piece in self._pieces(block, columns):
            key = self._order.key(block, piece[0])
            self._found.append(ColumnRun(key, [BlockColumns(block, piece)]))

    def runs(self) -> list[ColumnRun]:
        """Return the merged tasks, in the order of execution."""
        return self._joined(sorted(self._found, key=attrgetter("key")))

    def _pieces(self, block: TaskBlock, columns: Sequence[int]) -> list[Sequence[int]]:
        """Cut a block's columns where their priority changes, or where they are not adjacent."""
        trapezoid = SPECS[block.kind].trapezoid
        key = block.step, block.start, block.stop, trapezoid
        pieces = self._cut.get(key)
        if pieces is None:
            pieces = self._cut[key] = self._cut_columns(block.step, columns, trapezoid)
        return pieces

    def _cut_columns(
        self, step: int, columns: Sequence[int], trapezoid: bool
    ) -> list[Sequence[int]]:
        pieces: list[Sequence[int]] = []
        latest: dict[tuple[int, int], list[int]] = {}
        for column in columns:
            phase = self._order.phase(step, column)
            piece = latest.get(phase)
            if piece is not None and self._continues(piece[0], piece[-1], column, step, trapezoid):
                piece.append(column)
            else:
                piece = latest[phase] = [column]
                pieces.append(piece)
        return pieces

    def _continues(self, first: int, last: int, column: int, step: int, trapezoid: bool) -> bool:
        """Return whether a call for columns from `first` to `last` can include the next one."""
        place = self._local.get(column)
        if place is None or place != self._local.get(last, -2) + 1:
            return False  # they do not lie side by side, as one array
        # The update that the next panel waits for goes before a trapezoid's other stretches,
        # which need kernel calls of their own in any case.
        apart = trapezoid and column > last + 1
        return not (apart and self._order.is_next(step, first))

    def _joined(self, runs: list[ColumnRun]) -> list[ColumnRun]:
        """Join consecutive blocks of the builder that are the same but for their columns."""
        joined: list[ColumnRun] = []
        for run in runs:
            if joined and self._is_same(joined[-1], run):
                joined[-1].parts += run.parts
            else:
                joined.append(run)
        return joined

    def _is_same(self, before: ColumnRun, run: ColumnRun) -> bool:
        first, last, part = before.parts[0], before.parts[-1], run.parts[0]
        trapezoid = SPECS[part.block.kind].trapezoid
        ends = first.columns[0], last.columns[-1]
        return (
            last.block is not part.block  # the columns of one block have been merged already
            and before.key[:4] == run.key[:4]
            and self._continues(*ends, part.columns[0], run.step, trapezoid)
            and self._signature(last) == self._signature(part)
        )

    def _signature(self, part: BlockColumns) -> list[tuple[object, ...]]:
        """Return the accesses of a part's tasks, with their own column as `OWN`."""
        own = part.columns[0]
        top = own if SPECS[part.block.kind].trapezoid else 0
        found: list[tuple[object, ...]] = []
        for region in part.block.accesses:
            name, index, start, stop = region.of(own)
            if index == own and name not in self._graph.values:
                found.append((name, start - top, stop))
            else:
                found.append((name, index, start - top, stop))
        return found
