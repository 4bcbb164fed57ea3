"""From a placed graph to one program per worker: order, merge, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero_la.scheduler.distribution import Distribution
from hetero_la.scheduler.graph import TaskGraph
from hetero_la.scheduler.instructions import Program, set_urgencies
from hetero_la.scheduler.lookahead import Priority, priorities
from hetero_la.scheduler.messages import Traffic, derive_traffic
from hetero_la.scheduler.program_writer import ProgramWriter, announce_taken
from hetero_la.scheduler.saves import Saves
from hetero_la.scheduler.tasks import Task
from hetero_la.tiles.kernels.spec import SPECS


def build_programs(
    graph: TaskGraph,
    placement: Sequence[int],
    distribution: Distribution,
    workers: int,
    *,
    depth: int,
    shared: bool = False,
    arrival: Callable[[int], int] | None = None,
    checkpoints: Sequence[int] = (),
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
        Step by which each tile column has travelled to its worker, where that takes
        time; the work of earlier steps on it waits so long.  None: all are there.
    checkpoints : sequence of int, optional
        Steps, in order, before which the state of the matrix is saved; every task must
        be the owner's of its column.
    """
    traffic = derive_traffic(graph, placement, distribution)
    keys = priorities(graph, depth, arrival)
    assigned: list[list[Task]] = [[] for _ in range(workers)]
    for task in graph.tasks:
        assigned[placement[task.index]].append(task)
    writers = []
    for worker, tasks in enumerate(assigned):
        tasks.sort(key=lambda task: keys[task.index])
        writer = ProgramWriter(graph, distribution, traffic, worker, depth)
        stored = range(len(distribution.owners)) if shared else writer.program.columns
        runs = _merge(graph, tasks, keys, stored)
        writer.write(
            runs, [keys[run[0].index] for run in runs], arrival, Saves(graph, tasks, checkpoints)
        )
        writers.append(writer)
    announce_taken(writers)
    for writer in writers:
        set_urgencies(writer.program.instructions)
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
        # A trapezoid's columns begin each at its own row; then only the matrix's own
        # neighbours make up a larger one.
        top = own if SPECS[task.kind].trapezoid else 0
        signature = (
            keys[task.index][:4],
            tuple(
                (r.name, r.start - top, r.stop)
                if r.index == own and r.name not in values
                else (r.name, r.index, r.start - top, r.stop)
                for r in task.reads + task.updates + task.writes
            ),
        )
        if (
            signature == previous
            and own in local
            and local[own] == local.get(runs[-1][-1].column, -2) + 1
            and (not top or own == runs[-1][-1].column + 1)
        ):
            runs[-1].append(task)
        else:
            runs.append([task])
        previous = signature
    return runs
