"""Critical path, width and parallelism, against NetworkX."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

import hetero_la
from hetero_la.algorithms.cholesky import cholesky_tasks
from hetero_la.algorithms.lu import lu_tasks
from hetero_la.algorithms.qr import qr_tasks
from hetero_la.scheduler.graph.analysis import (
    average_parallelism,
    critical_path,
    earliest_times,
    total_work,
    width,
)
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.storage.layout import TileLayout

GRAPHS = [build(TileLayout(60, 60, 10)) for build in (lu_tasks, cholesky_tasks, qr_tasks)]
GRAPHS += [lu_tasks(TileLayout(50, 50, 10), "tile"), lu_tasks(TileLayout(9, 9, 10))]


@pytest.mark.parametrize("graph", GRAPHS, ids=len)
def test_the_critical_path_is_networkx_s(graph: TaskGraph) -> None:
    weights = np.random.default_rng(len(graph)).random(len(graph))
    edges = networkx.DiGraph()
    edges.add_nodes_from(range(len(graph) + 1))
    for task in graph.tasks:
        edges.add_edges_from((b, task.index, {"weight": weights[b]}) for b in task.after)
        edges.add_edge(task.index, len(graph), weight=weights[task.index])
    path = critical_path(graph, weights)
    assert path == networkx.dag_longest_path(edges)[:-1]
    length = weights[path].sum()
    assert earliest_times(graph, weights)[1].max() == pytest.approx(length)
    assert average_parallelism(graph, weights) == pytest.approx(weights.sum() / length)
    assert total_work(graph, weights) == pytest.approx(weights.sum())


@pytest.mark.parametrize("graph", GRAPHS, ids=len)
def test_the_width_s_area_is_the_work(graph: TaskGraph) -> None:
    weights = np.random.default_rng(1).integers(0, 4, len(graph)).astype(float)
    times, tasks = width(graph, weights)
    assert (np.diff(times) > 0).all()
    assert (tasks[:-1] > 0).all()
    assert tasks[-1] == 0
    assert (np.diff(times) * tasks[:-1]).sum() == weights.sum()
    start, stop = earliest_times(graph, weights)
    for at, count in zip(times, tasks, strict=True):
        assert count == ((start <= at) & (stop > at)).sum()


def test_an_empty_graph_has_no_work_and_no_path() -> None:
    graph = lu_tasks(TileLayout(0, 0, 4))
    assert critical_path(graph) == []
    assert total_work(graph) == average_parallelism(graph) == 0
    assert [len(part) for part in width(graph)] == [0, 0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "as many weights"), ([-1.0] * 20, "smallest is -1"), ([np.nan] * 20, "smallest is")],
)
def test_bad_weights_are_refused(weights: list[float], message: str) -> None:
    graph = lu_tasks(TileLayout(30, 30, 10))
    assert len(graph) == 20
    with pytest.raises(ValueError, match=message):
        critical_path(graph, weights)


def test_a_plan_s_graph_has_owners_seconds_and_parallelism() -> None:
    workers = [WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", device=i) for i in range(2)]
    workers.append(WorkerInfo("cpu0", "cpu", "inproc://c", blas_threads=2))
    plan = hetero_la.plan("lu", (400, 400), nb=100, workers=workers, panel="cpu")
    nodes = plan.graph.to_networkx().nodes
    for worker, program in enumerate(plan.programs):
        calls = program.select(CallKernel)
        done = {
            (i.kind, i.step, column)
            for i in calls
            for column in range(i.first, i.last + 1)
            if column in program.columns or i.first == i.last
        }
        mine = {(n["kind"], n["step"], n["column"]) for n in nodes.values() if n["owner"] == worker}
        assert mine == done
    for task in plan.graph.tasks:
        shapes = [plan.graph.shape(region) for region in task.accesses]
        device = plan.model.devices[plan.placement[task.index]]
        expected = device.kernel_seconds(task.kind, shapes, plan.dtype)
        assert plan.task_seconds[task.index] == expected
    text = plan.explain()
    on_path = critical_path(plan.graph, plan.task_seconds)
    spent = in_seconds(plan.task_seconds[on_path].sum())
    assert f"critical path: {len(on_path)} tasks, {spent} of " in text
    with pytest.raises(ValueError, match="34 tasks need as many workers, not 1"):
        plan.graph.to_networkx(placement=[0])
