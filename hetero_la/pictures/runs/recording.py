"""A run as pictures show it: the programs, and the time of each of their instructions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Region
from hetero_la.scheduler.predict.simulate import Simulation
from hetero_la.scheduler.program.instructions import CallKernel, Program
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.scheduler.program.own_columns import OwnColumns
from hetero_la.scheduler.run.trace import WorkerTrace, send_times, split_time
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.arrays.displayed import one_line


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """A run, measured or predicted; its methods give times in seconds from its start.

    Attributes
    ----------
    title : str
        What was run, and on what.
    graph : TaskGraph
        Its tasks.
    weights : numpy.ndarray, shape (tasks,)
        Predicted seconds of each task.
    workers : sequence of str
        Names of the workers.
    programs : sequence of Program
        The program of each of them.
    messages : mapping of MessageKey to Message
        The messages between them.
    dtype : numpy.dtype
        Element type.
    traces : sequence of WorkerTrace
        Times of the instructions of each worker.
    began, ended : float
        Time of the run by the traces' clock.
    predicted : bool
        Whether it is a prediction.
    fixed_bytes, peak_bytes : sequence of int
        For each worker the bytes that it needs without panels received, and with as many as it has
        buffers for.
    """

    title: str
    graph: TaskGraph
    weights: np.ndarray
    workers: Sequence[str]
    programs: Sequence[Program]
    messages: Mapping[MessageKey, Message]
    dtype: np.dtype
    traces: Sequence[WorkerTrace]
    began: float
    ended: float
    predicted: bool
    fixed_bytes: Sequence[int]
    peak_bytes: Sequence[int]

    def __repr__(self) -> str:
        return one_line("Recording", self.title, self.summary)

    @property
    def summary(self) -> str:
        """Number of tasks, and time, in one line."""
        tasks = counted(len(self.graph), "task")
        return f"{tasks}, {in_seconds(self.seconds)}{', predicted' if self.predicted else ''}"

    @property
    def seconds(self) -> float:
        """Time of the run."""
        return self.ended - self.began

    @functools.cached_property
    def spans(self) -> list[np.ndarray]:
        """Start and end of each instruction of each worker, of shape (instructions, 2)."""
        return [trace.spans - self.began for trace in self.traces]

    def parts(self) -> list[dict[str, float]]:
        """Divide each worker's time into parts, in seconds, which add up to the run.

        The parts are those of `hetero_la.scheduler.run.trace.split_time`.
        """
        sent = send_times(self.traces, self.programs)
        first = min((trace.windows[0, 0] for trace in self.traces if len(trace.windows)), default=0)
        return [
            split_time(trace, program, self.began, self.ended, sent, first)
            for trace, program in zip(self.traces, self.programs, strict=True)
        ]

    @functools.cached_property
    def calls(self) -> list[tuple[int, int]]:
        """Worker, and place in its program, of the call of each task of the graph.

        A call does the tasks of several adjacent columns.
        """
        graph = self.graph
        exactly = {(t.kind, t.step, t.column, t.accesses): t.index for t in graph.tasks}
        nearly = {(t.kind, t.step, t.column): t.index for t in graph.tasks}
        found = [(-1, -1)] * len(graph)
        for worker, program in enumerate(self.programs):
            own = OwnColumns(program.columns, graph.layout)
            for place, i in enumerate(program.instructions):
                if not isinstance(i, CallKernel):
                    continue
                found[exactly[i.kind, i.step, i.first, i.regions]] = worker, place
                # Skip the columns of other workers in between.
                for column in own.between(i.first + 1, i.last):
                    found[nearly[i.kind, i.step, column]] = worker, place
        return found

    @functools.cached_property
    def task_spans(self) -> np.ndarray:
        """Start and end of the call of each task, shape (tasks, 2)."""
        times = [self.spans[worker][place] for worker, place in self.calls]
        return np.array(times, np.float64).reshape(-1, 2)

    @functools.cached_property
    def task_seconds(self) -> np.ndarray:
        """Share of each task in the time of its call, by its predicted time; shape (tasks,)."""
        together: dict[tuple[int, int], float] = {}
        for call, weight in zip(self.calls, self.weights.tolist(), strict=True):
            together[call] = together.get(call, 0.0) + weight
        whole = np.array([together[call] for call in self.calls])
        share = np.divide(self.weights, whole, out=np.zeros_like(whole), where=whole > 0)
        return share * (self.task_spans[:, 1] - self.task_spans[:, 0])

    def call_mask(self, worker: int) -> np.ndarray:
        """Return which instructions of a worker are calls of kernels."""
        instructions = self.programs[worker].instructions
        return np.array([isinstance(i, CallKernel) for i in instructions], bool)

    def written(self, task: int) -> list[Region]:
        """Return the tiles of the matrix that a task changes."""
        of = self.graph.tasks[task]
        return [r for r in (*of.updates, *of.writes) if r.name not in self.graph.values]


def predicted_traces(run: Simulation) -> list[WorkerTrace]:
    """Return the times that a simulation predicts, as if they had been recorded."""
    begun = min((float(times.min()) for times in run.start if len(times)), default=0.0)
    workers = []
    for issued, start, stop in zip(run.issued, run.start, run.stop, strict=True):
        # The thread reaches an instruction when it has enqueued the one before.
        reached = np.concatenate([[begun], issued])[: len(issued)]
        window = np.array([[begun, max(begun, stop.max(initial=0.0))]])
        workers.append(WorkerTrace(reached, np.column_stack([start, stop]), window))
    return workers
