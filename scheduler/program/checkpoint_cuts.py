"""Points of a worker's program at which its part of a checkpoint is saved.

The checkpoint before step s is the state after exactly the tasks of the steps before s.  Tasks
depend only on tasks of their own and of earlier steps, so these tasks can all be done without any
other, and the state of a tile column after them depends neither on the number of workers nor on
the order of execution.  With look-ahead no worker as a whole is ever in that state, but each
column is, between the last of its tasks before s and the first one after: there it is saved.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region, Task
from hetero_la.scheduler.program.column_runs import ColumnRun


class CheckpointCuts:
    """Tells, task by task, what of one worker's data has reached a checkpoint.

    A checkpoint holds what has changed since the one before: the first holds all that the
    tasks before it have written.

    Parameters
    ----------
    graph : TaskGraph
        The tasks of all workers.
    tasks : sequence of Task
        Those of this worker; without checkpoints, nobody needs them one by one.
    steps : sequence of int
        The checkpoints, in order.

    Examples
    --------
    >>> from hetero_la.algorithms.cholesky import cholesky_tasks
    >>> from hetero_la.scheduler.program.column_runs import BlockColumns
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> graph = cholesky_tasks(TileLayout(6, 6, 2))
    >>> cuts = CheckpointCuts(graph, graph.tasks, [1])
    >>> for block in graph.blocks[:4]:
    ...     run = ColumnRun((0, 0, 0, 0, 0), [BlockColumns(block, range(block.start, block.stop))])
    ...     print(block.kind, [(step, *region) for step, region in cuts.reached_by(run)])
    potrf [(1, 'info', 0, 0, 1)]
    trtri_n []
    trmm_rc [(1, 'A', 0, 0, 3)]
    herk [(1, 'A', 1, 1, 3), (1, 'A', 2, 2, 3)]
    """

    def __init__(self, graph: TaskGraph, tasks: Sequence[Task], steps: Sequence[int]) -> None:
        self._graph, self._steps = graph, list(steps)
        self._left: Counter[tuple[tuple[str, int], int]] = Counter()
        self._reached: dict[tuple[str, int], int] = {}
        self._last_read: dict[tuple[str, int], int] = {}
        if not steps:
            return
        self._touched = graph.touched_rows()
        for task in tasks:
            self._left.update((name, self._checkpoint(task)) for name in self._written(task))
        for task in graph.tasks:
            for region in task.reads:
                name = region[:2]
                self._last_read[name] = max(self._last_read.get(name, 0), task.step)

    def reached_by(self, run: ColumnRun) -> Iterator[tuple[int, Region]]:
        """Yield the parts to be saved, with their checkpoints, after the tasks of `run`."""
        for index in run.indices() if self._steps else ():
            task = self._graph.tasks[index]
            place = self._checkpoint(task)
            for name in self._written(task):
                if place < self._reached.setdefault(name, place):
                    raise ValueError(f"the tasks on {name} are not in the order of their steps")
                self._reached[name] = place
                self._left[name, place] -= 1
                done = not self._left[name, place]
                if done and place < len(self._steps) and self._is_needed(name, place):
                    yield self._steps[place], self._whole(name)

    def _checkpoint(self, task: Task) -> int:
        """Return the place of the first checkpoint that includes the task's work."""
        return bisect_right(self._steps, task.step)

    def _written(self, task: Task) -> set[tuple[str, int]]:
        return {region[:2] for region in task.updates + task.writes}

    def _is_needed(self, name: tuple[str, int], place: int) -> bool:
        """Return whether a column or value is used later on, or is a result."""
        if name[0] not in self._graph.values or name[0] in self._graph.results:
            return True
        return self._last_read.get(name, -1) >= self._steps[place]

    def _whole(self, name: tuple[str, int]) -> Region:
        """Return a value, or the rows of a column that tasks access."""
        return Region(*name, *((0, 1) if name[0] in self._graph.values else self._touched[name[1]]))
