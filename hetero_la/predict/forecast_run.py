"""Timeline of a run that is predicted for a described machine."""

from __future__ import annotations

import functools

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.limits import require_few_tasks
from hetero_la.execution.timeline import TracedRun
from hetero_la.planning.decisions import Decisions
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import assemble
from hetero_la.predict.forecast import Forecast
from hetero_la.scheduler.graph.step_kernels import StepKernels, Tile
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.step_times import StepTimes, step_times
from hetero_la.scheduler.program.instructions import (
    CallKernel,
    Program,
    ReceiveMessage,
    SendMessage,
)
from hetero_la.scheduler.program.own_columns import OwnColumns
from hetero_la.scheduler.run.trace import WorkerTrace

#: Largest approximate number of tasks, and number of GPUs, of a timeline.
MOST_TASKS, MOST_GPUS = 200_000, 128


def require_timeline(found: Forecast) -> None:
    """Raise ValueError if a prediction is too large for a timeline."""
    if found.gpus > MOST_GPUS:
        raise ValueError(f"a timeline has room for {MOST_GPUS} GPUs, not for {found.gpus}")
    require_few_tasks(found.layout, "shown in a timeline", most=MOST_TASKS)


def forecast_run(found: Forecast) -> TracedRun:
    """Return the timeline of a predicted run, as if it had been recorded.

    What is predicted is when each GPU updates the column of its next panel, factors the panel, and
    receives panels, and the begin and end of its trailing update in each step; calls of kernels
    divide the time of their update in proportion to their time alone.

    Parameters
    ----------
    found : Forecast
        The prediction.

    Returns
    -------
    TracedRun
        It ends at ``found.seconds``.

    Raises
    ------
    ValueError
        For more than 128 GPUs or about 200,000 tasks.

    Examples
    --------
    >>> from hetero_la.predict.scaling import forecast
    >>> found = forecast("lu", (16384, 16384), "dgx-h200", 4, nb=1024)
    >>> run = forecast_run(found)
    >>> run.seconds == found.seconds, len(run.workers)
    (True, 4)
    """
    require_timeline(found)
    plan = _plan(found)
    kernels = StepKernels.of(ROUTINES[found.routine].tasks)
    times = step_times(
        kernels, found.layout, found.machine, found.gpus, found.lookahead, found.dtype
    )
    tiles = [Tile.of(found.layout, k) for k in range(found.layout.kt)]
    chained = {call.kind for tile in tiles for call in kernels.closing(tile)[0]}
    traces = [_WorkerTimes(plan, program, times, chained).trace() for program in plan.programs]
    return TracedRun(plan, 0.0, times.makespan, traces, predicted=True)


def _plan(found: Forecast) -> Plan:
    """Return the plan of the predicted run, with the programs of GPUs that need not exist."""
    size, name = found.machine.gpus_per_node, found.machine.name
    workers = tuple(
        WorkerInfo(f"gpu{i}", "gpu", pid=i + 1, host=f"node {i // size} of {name}", device=i % size)
        for i in range(found.gpus)
    )
    model = MachineModel((found.machine.gpu,) * found.gpus, workers, name=name)
    options = Options(nb=found.layout.nb, lookahead=found.lookahead)
    decided = Decisions(
        found.routine, found.layout, found.dtype, options, workers, None, model,
        (1.0,) * found.gpus, found.lookahead, False, "in place", False, False,
    )  # fmt: skip
    return assemble(decided)


class _WorkerTimes:
    """Times of the instructions of one worker's program, from those of its steps.

    Parameters
    ----------
    plan : Plan
        The plan.
    program : Program
        The worker's program.
    times : StepTimes
        Times of the steps of all workers.
    chained : set of str
        Kernels after the last step that are called for all columns.
    """

    def __init__(self, plan: Plan, program: Program, times: StepTimes, chained: set[str]) -> None:
        self._plan, self._program, self._times, self._chained = plan, program, times, chained
        self._own = OwnColumns(program.columns, plan.layout)
        self._shape_of = functools.cache(plan.graph.shape)
        self._spans = np.zeros((len(program.instructions), 2))
        self._steps, self._depth = len(times.updates), plan.lookahead
        ahead = range(self._steps)
        self._panels = [iter(times.panels[c][min(self._depth, c) :]) for c in ahead]

    def trace(self) -> WorkerTrace:
        """Return them as if they had been recorded; all is enqueued at the beginning."""
        together: dict[tuple[float, float], list[int]] = {}
        for place, instruction in enumerate(self._program.instructions):
            if isinstance(instruction, CallKernel):
                together.setdefault(self._interval(instruction), []).append(place)
        for (begun, ended), places in together.items():
            self._divide(places, begun, ended)
        self._set_others()
        issued = np.zeros(len(self._spans))
        window = np.array([[0.0, self._spans.max(initial=0.0)]])
        return WorkerTrace(issued, self._spans, window)

    def _set_others(self) -> None:
        """Set the times of transfers, and of loads and stores, which move nothing here."""
        times, received = self._times, 0.0
        for place, i in enumerate(self._program.instructions):
            if isinstance(i, SendMessage):
                self._spans[place] = times.sent[i.message.step]
            elif isinstance(i, ReceiveMessage):
                begun = max(received, times.sent[i.message.step])
                received = float(times.arrived[i.message.step][self._program.worker])
                self._spans[place] = begun, received
            elif not isinstance(i, CallKernel):
                self._spans[place] = self._spans[[*i.waits], 1].max(initial=0.0)

    def _interval(self, call: CallKernel) -> tuple[float, float]:
        """Return the interval in which a call runs, alone or with others."""
        times, step, column = self._times, call.step, call.first
        if step >= self._steps:
            chained = call.kind in self._chained
            return times.chain if chained else self._here(*times.closing)
        if step == column:
            return next(self._panels[column])
        if column < self._steps and column - step <= self._depth:
            return times.panels[column][step - max(column - self._depth, 0)]
        begun, ended = self._here(*times.updates[step])
        following = step + self._depth + 1
        if following >= self._steps or following not in self._program.columns:
            return begun, ended
        return (begun, times.columns[step]) if column == following else (times.columns[step], ended)

    def _here(self, begun: np.ndarray, ended: np.ndarray) -> tuple[float, float]:
        """Return this worker's interval of those of all."""
        return float(begun[self._program.worker]), float(ended[self._program.worker])

    def _divide(self, places: list[int], begun: float, ended: float) -> None:
        """Divide an interval between calls, in proportion to their time alone."""
        gpu, graph, dtype = self._plan.model.devices[0], self._plan.graph, self._plan.dtype
        alone = [0.0]
        for place in places:
            call = self._program.instructions[place]
            assert isinstance(call, CallKernel)
            width = self._own.width(call.first, call.last)
            shapes = call.shapes(graph, width, self._shape_of)
            alone.append(sum(gpu.kernel_seconds(call.kind, each, dtype) for each in shapes))
        share = np.cumsum(alone) / max(sum(alone), 1e-30)
        edges = begun + share * (ended - begun)
        self._spans[places] = np.column_stack([edges[:-1], edges[1:]])
