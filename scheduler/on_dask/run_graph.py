"""From the programs of a run to Dask tasks: for those who submit them, and as a Dask graph.

The programs are those of every other executor.  Each worker has a chain of tasks: one that makes
its shard, one that tells the others how to reach it, and its program, in which all workers go on
together and which hands out at its end what was made.  In a graph, which somebody else submits at
another time, tasks that fill the shard with the columns it owns come before these; there, one
worker alone does its run in one task, and so do workers of one process.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import List, Task, TaskRef

from hetero_la.scheduler.cluster.placement_plugin import BEGIN, HOLD, RUN, RunTask, task_name
from hetero_la.scheduler.on_dask.inputs import Declared, Piece, cut
from hetero_la.scheduler.on_dask.run_tasks import (
    begin_run,
    begin_shard,
    block_of,
    end_of,
    fill_shard,
    fill_team,
    fill_whole,
    hold_chunk,
    open_shard,
    open_team,
    open_whole,
    run_at_once,
    run_slice,
    run_team,
    run_to_end,
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
    add: Callable[..., Any], folder: str | None = None,
    hold: Callable[[list[Any]], list[Any]] | None = None,
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
    hold : callable, optional
        Makes the tasks that hold input once those that it is called with have met.

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
    chunks = [] if hold is None else hold(begun)
    for program in programs:
        worker, shard, last = program.worker, opened[program.worker], None
        for start, stop, step in program.slices():
            follows = begun, last, chunks if start == 0 else []
            if step is None:
                finished.append(add(RUN, worker, start, run_to_end, shard, start, *follows))
            else:
                last = add(RUN, worker, start, run_slice, shard, start, stop, *follows)
                last = add("save", worker, step, save_shard, shard, step, folder, last)
                saves[step].append(last)
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
    extent : bool
        Whether `values` tell the extent of the diagonal.

    Attributes
    ----------
    cuts : dict
        Tasks that run where the chunks are: the columns of each that go to one worker.  There are
        none where these are among `tasks`, as they follow some of them.
    tasks : dict
        Tasks of the run.
    ended : list
        What, in a task, follows the ends of all workers.
    values : list
        What gives the workers' per-step values, in a task.
    """

    def __init__(
        self, packed: PackedJob, token: str, chunks: Sequence[Chunk], *, on_gpu: bool, extent: bool
    ) -> None:
        self._packed, self.token, self._on_gpu = packed, token, on_gpu
        self.job = job = packed.job
        self.cuts: dict[Any, Task] = {}
        self.tasks: dict[Any, RunTask] = {}
        self.values: list[Any]
        self.ended: list[TaskRef] = []
        one = len(job.programs) == 1 or not over_processes(job.workers)
        self._exchanges_input = on_devices(job.workers, on_gpu) and not one
        apart = works_apart(job.workers, on_gpu)
        whole = [_share(job, job.programs)]
        each = [_share(job, [program]) for program in job.programs]
        self._shares = whole if one and not apart else each
        if not one:
            self._finished = self._chains(each, chunks)
            # No shard is released before all are done: a later request for more of this run then
            # finds all shards, or none and runs again.
            self.ended = self._for_each("end", end_of, self._finished)
            what = "values" if extent else "vectors"  # both may be wanted of one run
            self.values = self._for_each(
                what, values_of, self._finished, job.layout, extent, self.ended
            )
            return
        (portions,) = [self._portions(share, list(self._inputs(share, chunks))) for share in whole]
        run = self._in_place(portions) if apart else self._alone(portions)
        self._finished = [run] * len(self._shares)
        self.values = [Task(None, values_of, run, job.layout, extent)]

    @property
    def adjacent(self) -> bool:
        """True if all tile columns are side by side in one array."""
        return len(self._shares) == 1

    def runs_of(self, columns: range, most: int) -> list[range]:
        """Group tile columns into ranges that one block can show, if possible `most` at most."""
        if not self.adjacent:
            return self._neighbours(columns)
        step = -(-len(columns) // most)
        return [columns[start : start + step] for start in range(0, len(columns), max(step, 1))]

    def _neighbours(self, columns: range) -> list[range]:
        """Group tile columns that have one owner."""
        owner = {start: share.worker for share in self._shares for start in share.spans}
        groups = itertools.groupby(columns, lambda j: owner[self.job.layout.columns(j)[0]])
        found = [list(group) for _, group in groups]
        return [range(group[0], group[-1] + 1) for group in found]

    def block(self, key: Any, columns: range, verdict: Any, *, copy: bool) -> RunTask:
        """Return the task for tile columns of one run, which follows the tasks in `verdict`."""
        (start, _), (last, _) = map(self.job.layout.columns, (columns[0], columns[-1]))
        worker = next(i for i, share in enumerate(self._shares) if start in share.spans)
        return RunTask(
            key, block_of, self._finished[worker], start, last, copy, self._on_gpu,
            verdict,
            run=self.token, homes=self._home(worker),
        )  # fmt: skip

    def _add(self, what: str, worker: int, place: int, function: Any, *args: Any) -> TaskRef:
        return self._task(what, worker, place, function, *args, homes=self._home(worker))

    def _home(self, worker: int) -> tuple[str, ...]:
        address = self.job.workers[worker].address
        return (address,) if address else ()

    def _task(
        self, what: str, worker: int, place: int, function: Any, *args: Any, homes: tuple[str, ...]
    ) -> TaskRef:
        key = (task_name(self.job.name, what, self.token), worker, place)
        given = [List(*arg) if isinstance(arg, list) else arg for arg in args]
        self.tasks[key] = RunTask(key, function, *given, run=self.token, homes=homes)
        return TaskRef(key)

    def _for_each(self, what: str, function: Any, of: Sequence[Any], *args: Any) -> list[TaskRef]:
        """Add a task for each worker."""
        return [self._add(what, worker, 0, function, one, *args) for worker, one in enumerate(of)]

    def _pieces(self, share: Share, chunks: Sequence[Chunk]) -> Iterator[tuple[int, Piece]]:
        """Yield the numbers of the chunks of which a share has columns, with their places in it."""
        find = functools.cache(lambda columns: moves(columns, share.loaded, share.spans))
        for number, chunk in enumerate(chunks):
            if targets := find(chunk.columns):
                yield number, Piece(chunk.row, targets, chunk.declared)

    def _inputs(self, share: Share, chunks: Sequence[Chunk]) -> Iterator[List]:
        """Yield destinations in a share with the keys of the arrays that fill them."""
        for number, piece in self._pieces(share, chunks):
            chunk = chunks[number]
            key, (first, last) = chunk.key, chunk.columns
            if sum(stop - start for start, stop in piece.spans) < last - first:
                key = (task_name(self.job.name, "cut", self.token), share.worker, number)
                whole = _unchecked(chunk).declared  # its columns are checked when copied
                self.cuts[key] = Task(key, cut, TaskRef(chunk.key), piece.spans, whole)
                piece = piece.side_by_side()
            yield List(piece, TaskRef(key))

    def _portions(self, share: Share, inputs: list[List]) -> list[list[List]]:
        """Group inputs into portions, so that those already copied to the share can be freed."""
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
            return self._add(RUN, 0, 0, run_at_once, self._packed, self._on_gpu, inputs)
        buffer = self._add("open", 0, 0, open_whole, self._packed, self._on_gpu, portions[0])
        for i, some in enumerate(portions[1:], 1):
            buffer = self._add("load", 0, i, fill_whole, buffer, i, some)
        return self._add(RUN, 0, 0, run_whole, self._packed, buffer, len(portions))

    def _in_place(self, portions: list[list[List]]) -> TaskRef:
        """Add tasks of workers of one process, whose memory is where it stays, on their devices."""
        buffer = self._add("open", 0, 0, open_team, self._packed, self._on_gpu)
        filled = [
            self._add("load", 0, i, fill_team, buffer, i, some) for i, some in enumerate(portions)
        ]
        return self._add(RUN, 0, 0, run_team, self._packed, buffer, filled)

    def _chains(self, each: Sequence[Share], chunks: Sequence[Chunk]) -> list[TaskRef]:
        """Add the tasks of several processes."""
        attempt = self._add(BEGIN, 0, 0, begin_run)
        exchanged = self._exchanges_input
        held = [_unchecked(chunk) for chunk in chunks if exchanged]
        shards = [
            self._add("open", w, 0, open_shard, self.token, attempt, packed, w, self._on_gpu,
                      None, False, tuple(self._pieces(each[w], held)))
            for w, packed in enumerate(self._packed.each())
        ]  # fmt: skip
        filled = [
            [self._add("load", w, i, fill_shard, shard, i, some)
             for i, some in enumerate(self._portions(share, list(self._inputs(share, chunks))))]
            if not exchanged else []
            for w, (shard, share) in enumerate(zip(shards, each, strict=True))
        ]  # fmt: skip
        hold = functools.partial(self._hold, chunks, attempt) if exchanged else None
        return chain_slices(self.job.programs, shards, filled, self._add, hold=hold)[0]

    def _hold(
        self, chunks: Sequence[Chunk], attempt: TaskRef, contacts: list[TaskRef]
    ) -> list[TaskRef]:
        """Add tasks that check the chunks and hold them, each where it is, if a worker is there."""
        homes = tuple(worker.address for worker in self.job.workers)
        return [
            self._task(HOLD, 0, number, hold_chunk, TaskRef(chunk.key), chunk.declared, attempt,
                       contacts, homes=homes)
            for number, chunk in enumerate(chunks)
        ]  # fmt: skip


def _unchecked(chunk: Chunk) -> Chunk:
    """Return a chunk whose numbers need not be checked where they are copied."""
    return chunk._replace(declared=chunk.declared._replace(finite=False))


def on_devices(workers: Sequence[WorkerInfo], on_gpu: bool) -> bool:
    """Return whether input is on devices: `on_gpu` says so, but of virtual GPUs it always is."""
    return on_gpu or any(worker.virtual for worker in workers)


def works_apart(workers: Sequence[WorkerInfo], on_gpu: bool) -> bool:
    """Return whether workers of one process keep their columns, each on its own device."""
    alone = len(workers) == 1
    if not workers[0].address or (over_processes(workers) and not alone):
        return False
    return on_devices(workers, on_gpu) and (workers[0].kind == "gpu" or not alone)


def _share(job: Job, programs: Sequence[Program]) -> Share:
    """Return the share of some workers; that of all has its columns in the matrix's order."""
    one, alone = programs[0], len(programs) < len(job.programs)
    columns = {load.region.index for p in programs for load in p.select(LoadColumn)}
    return Share(
        one.worker,
        local_spans(job.layout, one.columns) if alone else whole_spans(job.layout),
        [job.layout.columns(column) for column in sorted(columns)],
    )
