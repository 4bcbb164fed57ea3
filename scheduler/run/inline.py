"""The reference executor: one worker, in the calling thread, in program order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.program.instructions import CallKernel, Instruction, Program
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.local_storage import LocalStorage, whole_spans
from hetero_la.scheduler.run.runner import Runner
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.kernels.device import Array, Device, KernelOptions


def run_inline(runner: Runner) -> dict[Name, np.ndarray]:
    """Run a whole program; return the per-step vectors of its results.

    Parameters
    ----------
    runner : Runner
        Runner of the only worker of a run.
    """
    runner.run(0, len(runner.program.instructions))
    return runner.finish()


def run_in_order(
    graph: TaskGraph, order: Sequence[int], array: Array, device: Device, options: KernelOptions
) -> dict[Name, Array]:
    """Run single tasks in any topological order on one device, for study and tests.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    order : sequence of int
        Task indices; must be a topological order.
    array : array, shape (m, n + nrhs)
        Column-major; overwritten by the result.
    device : Device
        The device.
    options : KernelOptions
        Passed to every kernel.

    Returns
    -------
    dict
        (name, step) -> per-step value.
    """
    if not graph.is_topological(order):
        raise ValueError("the given order is not a topological order of the graph")
    tasks = [graph.tasks[index] for index in order]
    calls: list[Instruction] = [
        CallKernel(task.step, task.column, task.column, task.kind, task.accesses) for task in tasks
    ]
    values = {
        region[:2]: (spec.shape(region.index), spec.dtype)
        for task in tasks
        for region in task.writes
        if (spec := graph.values.get(region.name))
    }
    columns = list(range(graph.layout.nt + graph.layout.rt))
    program = Program(0, columns, calls, values=values)
    job = Job("order", [program], {}, (), graph.layout, array.dtype, options, 1)
    runner = Runner(job, 0, device, LocalStorage(array, whole_spans(graph.layout)))
    run_inline(runner)
    return runner.values(graph.values)
