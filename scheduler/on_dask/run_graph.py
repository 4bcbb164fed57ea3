"""A run as a Dask graph, which is submitted by others later.

The programs are those of every other executor.  Each worker has a chain of tasks: tasks that
fill its shard with the columns it owns, its slices, each of which ends with a message that
the slices of other workers depend on, and one that hands out what was made.  One worker
alone has one task; workers of one process that do a run on the host have one chain.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import List, Task, TaskRef

from hetero_la.scheduler.cluster.placement_plugin import RunTask
from hetero_la.scheduler.on_dask.inputs import Declared, Piece, cut
from hetero_la.scheduler.on_dask.shard_tasks import (
    begin_run,
    block_of,
    close_shard,
    fill_shard,
    fill_whole,
    open_shard,
    open_whole,
    run_at_once,
    run_slice,
    run_whole,
    values_of,
)
from hetero_la.scheduler.placement.workers import over_processes
from hetero_la.scheduler.program.instructions import Program
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.local_storage import Span, local_spans

Input = tuple[Any, Piece]  #: key of an array, and where its columns go
#: Into how many parts the input of a shard is divided, if these do not have fewer bytes.
_PORTIONS, _LEAST_PORTION = 16, 2**23


class Chunk(NamedTuple):
    """A block of the matrix or of the right-hand sides: its key, and its place.

    `finite` says whether its numbers must be finite.
    """

    key: Any
    row: int
    columns: Span
    declared: Declared
    finite: bool


class Share(NamedTuple):
    """An array in which a worker, or all workers of a process together, do their part."""

    worker: int
    spans: dict[int, Span]  #: first column of each of its tile columns -> where it is
    loaded: list[Span]  #: columns that are filled from the input


class RunGraph:
    """The tasks of one run.

    Parameters
    ----------
    job : Job
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
        Tasks that run where the chunks are: the columns of each that go to one worker.
    tasks : dict
        Tasks that belong to a worker.
    values : list
        Keys of the workers' per-step values.
    """

    def __init__(self, job: Job, token: str, chunks: Sequence[Chunk], *, on_gpu: bool) -> None:
        self.job, self.token, self._on_gpu = job, token, on_gpu
        self.cuts: dict[Any, Task] = {}
        self.tasks: dict[Any, RunTask] = {}
        # CuPy arrays stay on their workers' GPUs.
        self._together = not on_gpu and len(job.programs) > 1 and not over_processes(job.workers)
        self._shares = [_whole(job)] if self._together else _shares(job)
        inputs = [list(self._inputs(share, chunks)) for share in self._shares]
        # Work that is tied to no worker is one task: Dask would not keep several together.
        if len(job.programs) == 1 or not job.workers[0].address:
            self._finished = [self._alone(*inputs)]
        else:
            self._finished = self._chains(inputs)
        self.values = self._ends()

    def _ends(self) -> list[Any]:
        def ending(what: str, worker: int, *after: Any) -> Any:
            return self._add(what, worker, 0, values_of, TaskRef(self._finished[worker]), *after)

        workers = range(len(self._finished))
        if len(workers) == 1:
            return [ending("values", 0)]
        # No shard is released before all are done: a later request for more of this run then
        # finds all shards, or none and runs again.
        ended = List(*[TaskRef(ending("end", worker)) for worker in workers])
        return [ending("values", worker, ended) for worker in workers]

    @property
    def adjacent(self) -> bool:
        """True if all tile columns are side by side in one array."""
        return len(self._shares) == 1

    def runs_of(self, columns: range, most: int) -> list[range]:
        """Group tile columns into ranges that one block can show, if possible `most` at most."""
        step = -(-len(columns) // most) if self.adjacent else 1
        return [columns[start : start + step] for start in range(0, len(columns), max(step, 1))]

    def block(self, key: Any, columns: range, verdict: Any, *, copy: bool) -> RunTask:
        """Return the task for tile columns of one run, once the task `verdict` has passed."""
        (start, _), (last, _) = map(self.job.layout.columns, (columns[0], columns[-1]))
        worker = next(i for i, share in enumerate(self._shares) if start in share.spans)
        return RunTask(
            key, block_of, TaskRef(self._finished[worker]), start, last, copy, self._on_gpu,
            TaskRef(verdict),
            run=self.token, address=self.job.workers[worker].address,
        )  # fmt: skip

    def _add(self, what: str, worker: int, place: int, function: Any, *args: Any) -> Any:
        key = (f"hetero-la-{what}-{self.token}", worker, place)
        address = self.job.workers[worker].address
        self.tasks[key] = RunTask(key, function, *args, run=self.token, address=address)
        return key

    def _inputs(self, share: Share, chunks: Sequence[Chunk]) -> Iterator[Input]:
        """Yield keys of the arrays that fill a share, and their destinations."""
        find = functools.cache(functools.partial(_moves, share))
        for place, chunk in enumerate(chunks):
            moves = find(chunk.columns)
            if not moves:
                continue
            width = sum(stop - start for (start, stop), _ in moves)
            key, declared = chunk.key, chunk.declared
            if width < chunk.columns[1] - chunk.columns[0]:
                key = (f"hetero-la-cut-{self.token}", share.worker, place)
                spans = tuple(origin for origin, _ in moves)
                self.cuts[key] = Task(key, cut, TaskRef(chunk.key), spans, declared)
                moves = _side_by_side(moves)
                declared = declared._replace(shape=(declared.shape[0], width))
            yield key, Piece(chunk.row, moves, declared, chunk.finite)

    def _portions(self, share: Share, inputs: list[Input]) -> list[list[Input]]:
        """Group inputs into portions, so that those already copied to the share can be freed."""
        columns = sum(stop - start for start, stop in share.loaded)
        nbytes = self.job.layout.m * columns * np.dtype(self.job.dtype).itemsize
        most = max(min(nbytes // _LEAST_PORTION, _PORTIONS), 1)
        step = -(-len(inputs) // most)
        return [inputs[start : start + step] for start in range(0, len(inputs), max(step, 1))]

    def _alone(self, inputs: list[Input]) -> Any:
        portions = self._portions(self._shares[0], inputs)
        if len(portions) <= 1:
            return self._add("run", 0, 0, run_at_once, self.job, self._on_gpu, *_split(inputs))
        room = self._add("open", 0, 0, open_whole, self.job, self._on_gpu, *_split(portions[0]))
        for i, some in enumerate(portions[1:]):
            room = self._add("fill", 0, i, fill_whole, TaskRef(room), *_split(some))
        return self._add("run", 0, 0, run_whole, self.job, TaskRef(room))

    def _filled(self, attempt: TaskRef, worker: int, inputs: list[Input]) -> tuple[TaskRef, List]:
        """Return a share's array, and the tasks that fill it."""
        job = self.job if self._together else self.job.only(worker)
        opened = TaskRef(
            self._add("open", worker, 0, open_shard, self.token, attempt, job, worker,
                      self._on_gpu, self._together)
        )  # fmt: skip
        fills = [
            self._add("fill", worker, i, fill_shard, opened, i, *_split(some))
            for i, some in enumerate(self._portions(self._shares[worker], inputs))
        ]
        return opened, List(*map(TaskRef, fills))

    def _slices(self) -> list[list[tuple[int, int, list[MessageKey], MessageKey | None]]]:
        """Return the slices of each share's program; workers together have but one."""
        if self._together:
            return [[(0, 1, [], None)]]
        return [list(program.slices()) for program in self.job.programs]

    def _chains(self, inputs: list[list[Input]]) -> list[Any]:
        attempt = TaskRef(self._add("begin", 0, 0, begin_run))
        filled = [self._filled(attempt, worker, some) for worker, some in enumerate(inputs)]
        opened, last = map(list, zip(*filled, strict=True))
        sent: dict[MessageKey, Any] = {}
        waiting = dict(enumerate(self._slices()))
        while any(waiting.values()):
            for worker, parts in waiting.items():
                while parts and all(key in sent for key in parts[0][2]):
                    start, stop, keys, message = parts.pop(0)
                    payloads = List(*[TaskRef(sent[key]) for key in keys])
                    key = self._add(
                        "slice", worker, start, run_slice, opened[worker], start, stop,
                        tuple(keys), payloads, last[worker],
                    )  # fmt: skip
                    if message is not None:
                        sent[message] = key
                    last[worker] = TaskRef(key)
        return [
            self._add("close", worker, 0, close_shard, opened[worker], before)
            for worker, before in enumerate(last)
        ]


def _split(inputs: list[Input]) -> tuple[tuple[Piece, ...], Any]:
    return tuple(piece for _, piece in inputs), List(*[TaskRef(key) for key, _ in inputs])


def _shares(job: Job) -> list[Share]:
    return [
        Share(program.worker, local_spans(job, program.worker), _loaded(job, [program]))
        for program in job.programs
    ]


def _whole(job: Job) -> Share:
    """Return the share of workers that run together: the matrix in its own order."""
    columns = map(job.layout.columns, range(job.layout.nt + job.layout.rt))
    return Share(0, {span[0]: span for span in columns}, _loaded(job, job.programs))


def _loaded(job: Job, programs: Iterable[Program]) -> list[Span]:
    columns = {i.first for p in programs for i in p.instructions if i.op == "load"}
    return [job.layout.columns(column) for column in sorted(columns)]


def _moves(share: Share, columns: Span) -> tuple[tuple[Span, Span], ...]:
    """Return spans of a chunk's columns, with their spans in a share's array."""
    moves: list[tuple[Span, Span]] = []
    for begin, end in share.loaded:
        start, stop = max(begin, columns[0]), min(end, columns[1])
        if start >= stop:
            continue
        origin = start - columns[0], stop - columns[0]
        at = share.spans[begin][0] + start - begin
        target = at, at + stop - start
        if moves and moves[-1][0][1] == origin[0] and moves[-1][1][1] == target[0]:
            (first, _), (to, _) = moves.pop()
            origin, target = (first, origin[1]), (to, target[1])
        moves.append((origin, target))
    return tuple(moves)


def _side_by_side(moves: tuple[tuple[Span, Span], ...]) -> tuple[tuple[Span, Span], ...]:
    """Return the same moves for the array that `cut` returns."""
    found, at = [], 0
    for (start, stop), target in moves:
        found.append(((at, at + stop - start), target))
        at += stop - start
    return tuple(found)
