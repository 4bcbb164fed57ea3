"""From the programs of a run to Dask tasks: for those who submit them, and as a Dask graph.

The programs are those of every other executor.  Each worker has a chain of tasks: one that makes
its shard, one that tells the others how to reach it, its program, in which all workers go on
together, and one that hands out what was made.  In a graph, which somebody else submits at another
time, tasks that fill the shard with the columns it owns come before these; there, one worker
alone does its run in one task, and so do workers of one process.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import List, Task, TaskRef

from hetero_la.scheduler.cluster.placement_plugin import HOLD, RunTask, task_name
from hetero_la.scheduler.on_dask.inputs import Declared, Piece, cut
from hetero_la.scheduler.on_dask.run_tasks import (
    begin_run,
    begin_shard,
    block_of,
    close_shard,
    end_of,
    fill_shard,
    fill_team,
    fill_whole,
    hold_columns,
    note_open,
    open_shard,
    open_team,
    open_whole,
    run_at_once,
    run_slice,
    run_team,
    run_whole,
    save_shard,
    values_of,
)
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes
from hetero_la.scheduler.program.instructions import LoadColumn, Program
from hetero_la.scheduler.run.job import Job, PackedJob
from hetero_la.scheduler.run.local_storage import Span, local_spans, moves, whole_spans

#: Into how many parts the input of a shard is divided, if these do not have fewer bytes.
_PORTIONS, _LEAST_PORTION = 16, 2**23
#: The least on a GPU, which copies it in less time than a task costs.
_LEAST_GPU_PORTION = 2**31


class Chunk(NamedTuple):
    """A block of the matrix or of the right-hand sides: its key, and its place."""

    key: Any
    row: int
    columns: Span
    declared: Declared


class Share(NamedTuple):
    """An array in which a worker, or all workers of a process together, do their part."""

    worker: int
    spans: dict[int, Span]  #: first column of each of its tile columns -> where it is
    loaded: list[Span]  #: columns that are filled from the input


def chain_slices(
    programs: Sequence[Program], opened: Sequence[Any], filled: Sequence[Any],
    add: Callable[..., Any], folder: str | None = None, *, exchanges_input: bool = False,
) -> tuple[list[Any], dict[int, list[Any]]]:  # fmt: skip
    """Make tasks of the programs, cut where they save checkpoints.

    Parameters
    ----------
    programs : sequence of Program
        One per worker.
    opened, filled : sequence
        For each worker the task that opens its shard, and those that the first slice follows.
    add : callable
        Makes a task of what it is called, the worker, the place in its program or a step, the
        function and its arguments, and returns what stands for its result in those of others.
    folder : str, optional
        For the files of checkpoints.
    exchanges_input : bool, optional
        Whether workers may hold parts of each other's input.

    Returns
    -------
    finished : list
        For each worker the task that hands out what it has made.
    saves : dict
        Step of a checkpoint -> the tasks that hand out its parts.
    """
    finished, saves = [], defaultdict[int, list[Any]](list)
    begun = [
        add("meet", worker, 0, begin_shard, opened[worker], filled[worker])
        for worker in range(len(programs))
    ]
    for program in programs:
        worker, last = program.worker, None
        for start, stop, step in program.slices():
            last = add("run", worker, start, run_slice, opened[worker], start, stop, begun, last,
                       exchanges_input and start == 0)  # fmt: skip
            if step is not None:
                last = add("save", worker, step, save_shard, opened[worker], step, folder, last)
                saves[step].append(last)
        finished.append(add("close", worker, 0, close_shard, opened[worker], last))
    return finished, saves


class RunGraph:
    """The tasks of one run.

    Parameters
    ----------
    packed : PackedJob
        What to run.
    token : str
        Ends the names of the tasks: runs of one token are one run.
    chunks : sequence of Chunk
        What is loaded.
    on_gpu : bool
        Whether the chunks, and so the results, are CuPy arrays.

    Attributes
    ----------
    cuts : dict
        Tasks that run where the chunks are: the columns of each that go to one worker.  There are
        none where these are among `tasks`, as they follow some of them.
    tasks : dict
        Tasks of the run.
    values : list
        What gives the workers' per-step values, in a task.
    """

    def __init__(
        self, packed: PackedJob, token: str, chunks: Sequence[Chunk], *, on_gpu: bool
    ) -> None:
        self._packed, self.token, self._on_gpu = packed, token, on_gpu
        self.job = job = packed.job
        self.cuts: dict[Any, Task] = {}
        self.tasks: dict[Any, RunTask] = {}
        self.values: list[Any]
        one = len(job.programs) == 1 or not over_processes(job.workers)
        on_devices = on_gpu or any(worker.virtual for worker in job.workers)
        self._exchanges_input = on_devices and not one
        apart = works_apart(job.workers, on_gpu)
        whole = [_share(job, job.programs)]
        each = [_share(job, [program]) for program in job.programs]
        if not one:
            self._open()
        portions = [
            self._portions(share, list(self._inputs(share, chunks)))
            for share in (whole if one else each)
        ]
        self._shares = whole if one and not apart else each
        self._apart = apart and len(each) > 1
        if one:
            run = self._in_place(*portions) if apart else self._alone(*portions)
            self._finished = [run] * len(self._shares)
            self.values = [Task(None, values_of, run, job.layout)]
            return
        self._finished = self._chains(portions)
        # No shard is released before all are done: a later request for more of this run then
        # finds all shards, or none and runs again.
        ended = self._for_each("end", end_of, self._finished)
        self.values = self._for_each("values", values_of, self._finished, job.layout, ended)

    @property
    def adjacent(self) -> bool:
        """True if all tile columns are side by side in one array."""
        return len(self._shares) == 1

    def runs_of(self, columns: range, most: int) -> list[range]:
        """Group tile columns into ranges that one block can show, if possible `most` at most."""
        if self._apart:
            return self._neighbours(columns)
        step = -(-len(columns) // most) if self.adjacent else 1
        return [columns[start : start + step] for start in range(0, len(columns), max(step, 1))]

    def _neighbours(self, columns: range) -> list[range]:
        """Group tile columns that have one owner."""
        owner = {start: share.worker for share in self._shares for start in share.spans}
        groups = itertools.groupby(columns, lambda j: owner[self.job.layout.columns(j)[0]])
        found = [list(group) for _, group in groups]
        return [range(group[0], group[-1] + 1) for group in found]

    def block(self, key: Any, columns: range, verdict: Any, *, copy: bool) -> RunTask:
        """Return the task for tile columns of one run, once the task `verdict` has passed."""
        (start, _), (last, _) = map(self.job.layout.columns, (columns[0], columns[-1]))
        worker = next(i for i, share in enumerate(self._shares) if start in share.spans)
        return RunTask(
            key, block_of, self._finished[worker], start, last, copy, self._on_gpu,
            TaskRef(verdict),
            run=self.token, address=self.job.workers[worker].address,
        )  # fmt: skip

    def _add(self, what: str, worker: int, place: int, function: Any, *args: Any) -> TaskRef:
        key = (task_name(self.job.name, what, self.token), worker, place)
        given = [List(*arg) if isinstance(arg, list) else arg for arg in args]
        address = self.job.workers[worker].address
        self.tasks[key] = RunTask(key, function, *given, run=self.token, address=address)
        return TaskRef(key)

    def _for_each(self, what: str, function: Any, of: Sequence[Any], *args: Any) -> list[TaskRef]:
        """Add a task for each worker."""
        return [self._add(what, worker, 0, function, one, *args) for worker, one in enumerate(of)]

    def _inputs(self, share: Share, chunks: Sequence[Chunk]) -> Iterator[List]:
        """Yield destinations in a share with the keys of the arrays that fill them."""
        find = functools.cache(lambda columns: moves(columns, share.loaded, share.spans))
        for place, chunk in enumerate(chunks):
            targets = find(chunk.columns)
            if not targets:
                continue
            *ends, width = itertools.accumulate((b - a for (a, b), _ in targets), initial=0)
            key, declared = chunk.key, chunk.declared
            if self._exchanges_input or width < chunk.columns[1] - chunk.columns[0]:
                spans = tuple(origin for origin, _ in targets)
                key = self._part(chunk, share.worker, place, spans)
                beside = itertools.pairwise((*ends, width))  # where `cut` puts them
                targets = tuple(
                    (at, target) for at, (_, target) in zip(beside, targets, strict=True)
                )
                declared = declared._replace(shape=(declared.shape[0], width))
            yield List(Piece(chunk.row, targets, declared), TaskRef(key))

    def _part(self, chunk: Chunk, worker: int, place: int, spans: tuple[Span, ...]) -> Any:
        """Add a task that takes a worker's columns where the chunk is, and return its key."""
        whole = chunk.declared._replace(finite=False)  # its columns are checked when copied
        given = TaskRef(chunk.key), spans, whole
        if not self._exchanges_input:
            key = (task_name(self.job.name, "cut", self.token), worker, place)
            self.cuts[key] = Task(key, cut, *given)
            return key
        key = (task_name(self.job.name, HOLD, self.token), worker, place)
        opened = List(*self._opened)
        self.tasks[key] = RunTask(key, hold_columns, *given, self._attempt, opened, run=self.token)
        return key

    def _portions(self, share: Share, inputs: list[List]) -> list[list[List]]:
        """Group inputs into portions, so that those already copied to the share can be freed.

        What other workers hold stays until the run begins: it is one portion.
        """
        if self._exchanges_input:
            return [inputs] if inputs else []
        columns = sum(stop - start for start, stop in share.loaded)
        nbytes = self.job.layout.m * columns * np.dtype(self.job.dtype).itemsize
        least = _LEAST_GPU_PORTION if self._on_gpu else _LEAST_PORTION
        most = max(min(nbytes // least, _PORTIONS), 1)
        step = -(-len(inputs) // most)
        return [inputs[start : start + step] for start in range(0, len(inputs), max(step, 1))]

    def _alone(self, portions: list[list[List]]) -> TaskRef:
        """Add tasks that hand the memory on to each other, which may be tied to no worker."""
        if len(portions) <= 1:
            inputs = portions[0] if portions else []
            return self._add("run", 0, 0, run_at_once, self._packed, self._on_gpu, inputs)
        buffer = self._add("open", 0, 0, open_whole, self._packed, self._on_gpu, portions[0])
        for i, some in enumerate(portions[1:], 1):
            buffer = self._add("load", 0, i, fill_whole, buffer, i, some)
        return self._add("run", 0, 0, run_whole, self._packed, buffer, len(portions))

    def _in_place(self, portions: list[list[List]]) -> TaskRef:
        """Add tasks of workers of one process, whose memory is where it stays, on their devices."""
        buffer = self._add("open", 0, 0, open_team, self._packed, self._on_gpu)
        filled = [
            self._add("load", 0, i, fill_team, buffer, i, some) for i, some in enumerate(portions)
        ]
        return self._add("run", 0, 0, run_team, self._packed, buffer, filled)

    def _chains(self, portions: list[list[list[List]]]) -> list[TaskRef]:
        job, shards = self.job, self._shards
        filled = [
            [self._add("load", w, i, fill_shard, shards[w], i, some) for i, some in enumerate(mine)]
            for w, mine in enumerate(portions)
        ]
        return chain_slices(
            job.programs, shards, filled, self._add, exchanges_input=self._exchanges_input
        )[0]

    def _open(self) -> None:
        """Add the tasks that open the shards of several processes."""
        job = self.job
        self._attempt = self._add("begin", 0, 0, begin_run)
        self._shards = [
            self._add("open", w, 0, open_shard, self.token, self._attempt, job.only(w), w,
                      self._on_gpu)
            for w in range(len(job.programs))
        ]  # fmt: skip
        self._opened = list[TaskRef]()
        if self._exchanges_input:
            self._opened = self._for_each("opened", note_open, self._shards)


def works_apart(workers: Sequence[WorkerInfo], on_gpu: bool) -> bool:
    """Return whether workers of one process keep their columns, each on its own device.

    `on_gpu` says whether the input is on GPUs, as that of virtual ones always is.
    """
    alone = len(workers) == 1
    if not workers[0].address or (over_processes(workers) and not alone):
        return False
    on_devices = on_gpu or any(worker.virtual for worker in workers)
    return on_devices and (workers[0].kind == "gpu" or not alone)


def _share(job: Job, programs: Sequence[Program]) -> Share:
    """Return the share of some workers; that of all has its columns in the matrix's order."""
    one, alone = programs[0], len(programs) < len(job.programs)
    columns = {load.region.index for p in programs for load in p.select(LoadColumn)}
    return Share(
        one.worker,
        local_spans(job.layout, one.columns) if alone else whole_spans(job.layout),
        [job.layout.columns(column) for column in sorted(columns)],
    )
