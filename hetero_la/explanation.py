"""What a plan says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_la.scheduler.analysis import average_parallelism, critical_path, total_work
from hetero_la.scheduler.instructions import Program
from hetero_la.scheduler.simulate import Simulation
from hetero_la.scheduler.workers import over_processes

if TYPE_CHECKING:
    from hetero_la.plan import Plan


def explanation(plan: Plan) -> str:
    """What was decided, and what it is expected to take."""
    layout, run = plan.layout, plan.simulate()
    what = "columns made" if plan.graph.made_columns() else "right-hand sides"
    rhs = f" with {layout.nrhs} {what}" if layout.nrhs else ""
    rate = plan.flops / max(run.makespan, 1e-12) / 1e9
    lines = [
        f"{plan.routine} of a {layout.m} x {layout.n} {plan.dtype.name} matrix{rhs}",
        f"tiles: nb = {layout.nb_text}, {layout.mt} x {layout.nt} tiles, {layout.kt} steps",
        f"graph: {len(plan.graph)} tasks, {plan.flops:.3g} flops",
        _parallelism(plan),
        f"look-ahead: {plan.lookahead} panels; panels on the {plan.panel}{_leaves(plan)}",
        f"windows: {_windows(plan)}",
        *_checkpoints(plan),
        _model(plan),
        f"predicted: {run.makespan:.3g} s, {rate:.3g} Gflop/s",
    ]
    return "\n".join(lines + [_worker(plan, program, run) for program in plan.programs])


def _leaves(plan: Plan) -> str:
    """The inner blocking, where it is not the kernels' own."""
    ib = plan.options.ib
    return "" if ib is None else f", {ib} columns by one kernel"


def _parallelism(plan: Plan) -> str:
    seconds = plan.task_seconds
    path = critical_path(plan.graph, seconds)
    return (
        f"parallelism: {average_parallelism(plan.graph, seconds):.3g} on average; "
        f"critical path: {len(path)} tasks, {seconds[path].sum():.3g} s "
        f"of {total_work(plan.graph, seconds):.3g} s of work"
    )


def _windows(plan: Plan) -> str:
    if not plan.workers[0].address:
        return "none, runs in the calling thread"
    if over_processes(plan.workers):
        return "a Dask task ends wherever a message leaves its worker"
    return f"{plan.window} steps in one Dask task"


def _checkpoints(plan: Plan) -> list[str]:
    if plan.options.checkpoint is None or not over_processes(plan.workers):
        return []
    where = plan.options.checkpoint_folder or "the client's memory"
    return [f"checkpoints: every {plan.options.checkpoint} steps, in {where}"]


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
    role = "panels" if at == plan.panel_worker else f"{len(program.columns)} tile columns"
    return (
        f"  {worker.name} ({worker.kind}{', virtual' if worker.virtual else ''}): {role}, "
        f"{len(program.instructions)} instructions, {run.peak_bytes[at] / 1e6:.1f} MB, "
        f"computes for {run.computing[at]:.3g} s, idle for {run.idle[at]:.3g} s"
    )
