"""What notebooks show before a run: plans, task graphs, simulations, predictions."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from hetero_la.execution.timeline import predicted_run
from hetero_la.pictures.charts.gantt import draw_small
from hetero_la.pictures.graph.files import draw_graph
from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.html import Table, html
from hetero_la.pictures.scene import Scene
from hetero_la.planning.options import Options, option_text
from hetero_la.planning.plan import Plan, plan_facts, predicted_text, routes_seconds
from hetero_la.planning.planned_graph import PlannedGraph
from hetero_la.predict.forecast import Forecast
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.device import CORE
from hetero_la.scheduler.machine.model import MachineModel, graph_seconds
from hetero_la.scheduler.predict.simulate import Simulation
from hetero_la.tiles.arrays.counted import counted, in_bytes, in_seconds
from hetero_la.tiles.arrays.displayed import display
from hetero_la.tiles.kernels.device import Queue

#: Most tasks of a plan that is simulated, and of a graph that is drawn, without being asked to:
#: each takes up to a second.
_MOST_TASKS = 20_000


@display.register
def _(plan: Plan) -> str:
    if len(plan.graph) > _MOST_TASKS:
        tasks, tiles = counted(len(plan.graph), "task"), plan.layout.nb_text
        more = "print(plan) simulates the run, which takes longer"
        return html(plan.title, {"graph": tasks, "tiles": f"nb = {tiles}", "prediction": more})
    run = plan.simulate()
    rows = [
        (
            f"{worker.name}: {worker.role}", str(len(program.columns)),
            str(len(program.instructions)),
            in_bytes(int(run.peak_bytes[at])), in_seconds(float(run.computing[at])),
            in_seconds(float(run.idle[at])),
        )
        for at, (worker, program) in enumerate(zip(plan.workers, plan.programs, strict=True))
    ]  # fmt: skip
    routes = [(name, in_seconds(seconds)) for name, seconds in routes_seconds(plan).items()]
    facts = dict([("predicted", predicted_text(plan, run)), *plan_facts(plan, run)])
    head = ("worker", "tile columns", "instructions", "memory", "computes", "idle")
    return html(
        f"Plan: {plan.title}", facts, Table(head, rows),
        Table(("route", "estimated"), routes),
        *_timeline(plan, run),
    )  # fmt: skip


def _timeline(plan: Plan, run: Simulation) -> list[Scene]:
    return [draw_small([predicted_run(plan, run)])] if run.makespan else []


@display.register
def _(graph: TaskGraph) -> str:
    layout = graph.layout
    title = f"Graph of {layout.mt} x {layout.nt} tiles, with nominal times of one core"
    if not 0 < len(graph) <= _MOST_TASKS:
        return html(title, {"graph": counted(len(graph), "task")})
    placement = [0] * len(graph)
    seconds = graph_seconds(graph, placement, MachineModel((CORE,)), np.float64)
    return _drawn(PlacedGraph(graph, placement, ["any worker"], seconds, title))


@display.register
def _(graph: PlannedGraph) -> str:
    if not 0 < len(graph) <= _MOST_TASKS:
        return html(f"Graph: {graph.decided.title}", {"graph": counted(len(graph), "task")})
    return _drawn(graph.placed())


@display.register
def _drawn(placed: PlacedGraph) -> str:
    return html("Graph", {}, draw_graph(placed))


@display.register
def _(run: Simulation) -> str:
    queues = tuple(f"{queue.name.lower()} queue" for queue in Queue)
    rows = [
        (str(at), *(in_seconds(float(s)) for s in (run.computing[at], run.idle[at], *busy)))
        for at, busy in enumerate(run.busy)
    ]
    facts = {
        "predicted": in_seconds(run.makespan),
        "between workers": in_bytes(run.bytes_moved),
        "to and from the user's array": in_bytes(int(run.bytes_host.sum())),
    }
    return html("Simulated run", facts, Table(("worker", "computes", "idle", *queues), rows))


@display.register
def _(options: Options) -> str:
    names = [field.name for field in fields(options)]
    rows = [
        (name, option_text(getattr(options, name)), "" if name in options.chosen else "default")
        for name in names
    ]
    return html("Options", {}, Table(("option", "value", ""), rows))


@display.register
def _(forecast: Forecast) -> str:
    whole = max(forecast.seconds, 1e-12)
    rows = [
        (part, in_seconds(seconds), f"{100 * seconds / whole:.1f} %")
        for part, seconds in forecast.run.parts.items()
    ]
    waits = Table(("longest chain of waits", "time", "part"), rows)
    return html(f"Forecast: {forecast.title}", forecast.facts(), waits)
