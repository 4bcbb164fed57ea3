"""The reference executor: one worker, in the calling thread, in program order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.graph.tasks import Task
from hetero_la.scheduler.run.runner import Runner
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.kernels.device import Array, Device, KernelOptions, Queue
from hetero_la.tiles.storage.shard import Shard


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
    layout = graph.layout
    shard = Shard(array, layout, range(layout.nt + layout.rt))
    values: dict[Name, Array] = {
        region[:2]: device.empty(spec.shape(region.index), spec.dtype or array.dtype)
        for task in graph.tasks
        for region in task.writes
        if (spec := graph.values.get(region.name))
    }
    with device.activate():
        for index in order:
            arrays = _operands(graph.tasks[index], values, shard)
            device.call(graph.tasks[index].kind, Queue.UPDATE, arrays, options)
        device.synchronize()
    return values


def _operands(task: Task, values: dict[Name, Array], shard: Shard) -> list[Array]:
    return [
        values[region[:2]]
        if region[:2] in values
        else shard.view(region.start, region.stop, region.index, region.index)
        for region in task.accesses
    ]
