"""What a plan says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_la.scheduler.analysis import average_parallelism, critical_path, total_work
from hetero_la.scheduler.instructions import Program
from hetero_la.scheduler.simulate import Simulation
from hetero_la.scheduler.workers import over_processes
from hetero_la.tiles.counted import counted

if TYPE_CHECKING:
    from hetero_la.plan import Plan


def explanation(plan: Plan) -> str:
    """What was decided, and what it is expected to take."""
    layout, run = plan.layout, plan.simulate()
    made = f"{counted(layout.nrhs, 'column')} made"
    what = made if plan.graph.made_columns() else counted(layout.nrhs, "right-hand side")
    rhs = f" with {what}" if layout.nrhs else ""
    rate = plan.flops / max(run.makespan, 1e-12) / 1e9
    lines = [
        f"{plan.routine} of a {layout.m} x {layout.n} {plan.dtype.name} matrix{rhs}",
        f"tiles: nb = {layout.nb_text}, {layout.mt} x {layout.nt} tiles, "
        f"{counted(layout.kt, 'step')}",
        f"graph: {counted(len(plan.graph), 'task')}, {plan.flops:.3g} flops",
        _parallelism(plan),
        f"look-ahead: {counted(plan.lookahead, 'panel')}; "
        f"panels on the {plan.panel}{_leaves(plan)}",
        f"windows: {_windows(plan)}",
        *_checkpoints(plan),
        _model(plan),
        f"predicted: {run.makespan:.3g} s, {rate:.3g} Gflop/s",
    ]
    return "\n".join(lines + [_worker(plan, program, run) for program in plan.programs])


def _leaves(plan: Plan) -> str:
    """The inner blocking, where it is not the kernels' own."""
    ib = plan.options.ib
    return "" if ib is None else f", {counted(ib, 'column')} by one kernel"


def _parallelism(plan: Plan) -> str:
    seconds = plan.task_seconds
    path = critical_path(plan.graph, seconds)
    return (
        f"parallelism: {average_parallelism(plan.graph, seconds):.3g} on average; "
        f"critical path: {counted(len(path), 'task')}, {seconds[path].sum():.3g} s "
        f"of {total_work(plan.graph, seconds):.3g} s of work"
    )


def _windows(plan: Plan) -> str:
    if not plan.workers[0].address:
        return "none, runs in the calling thread"
    if over_processes(plan.workers):
        return "a Dask task ends wherever a message leaves its worker"
    return f"{counted(plan.window, 'step')} in one Dask task"


def _checkpoints(plan: Plan) -> list[str]:
    if plan.options.checkpoint is None or not over_processes(plan.workers):
        return []
    where = plan.options.checkpoint_folder or "the client's memory"
    return [f"checkpoints: every {counted(plan.options.checkpoint, 'step')}, in {where}"]


def _model(plan: Plan) -> str:
    if not plan.model.measured:
        return "model: nominal figures; 'hetero-la probe' measures this machine"
    names = ", ".join(plan.workers[place].name for place in plan.model.unmeasured)
    rest = f"; nominal figures for {names}" if names else ""
    return f"model: this machine's profile, measured {plan.model.measured}{rest}"


def _worker(plan: Plan, program: Program, run: Simulation) -> str:
    """What one worker has to do."""
    at = program.worker
    worker = plan.workers[at]
    role = "panels" if at == plan.panel_worker else counted(len(program.columns), "tile column")
    return (
        f"  {worker.name} ({worker.kind}{', virtual' if worker.virtual else ''}): {role}, "
        f"{counted(len(program.instructions), 'instruction')}, {run.peak_bytes[at] / 1e6:.1f} MB, "
        f"computes for {run.computing[at]:.3g} s, idle for {run.idle[at]:.3g} s"
    )
