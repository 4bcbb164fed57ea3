"""Decides how a run goes: who owns what, where panels go, tile size, look-ahead."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.inputs import DTYPES, plain_sizes
from hetero_la.checks.limits import MOST_PLANNED, require_few_tasks
from hetero_la.planning.decisions import (
    Problem,
    arrival_steps,
    choose_panel_worker,
    default_lookahead,
    recall,
    roles,
    wanted_tiles,
)
from hetero_la.planning.options import Options, PanelDevice
from hetero_la.planning.plan import Plan, share_memory
from hetero_la.planning.planned_graph import PlannedGraph
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.model import MachineModel, Source
from hetero_la.scheduler.machine.profile import Profile
from hetero_la.scheduler.machine.this_machine import best_inner_blocking, current_profile
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread, over_processes
from hetero_la.scheduler.program.build import build_programs
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import clipped


def plan(
    routine: str,
    shape: tuple[int, int],
    dtype: Any = np.float64,
    *,
    nrhs: int = 0,
    workers: Sequence[WorkerInfo] | None = None,
    **options: Any,
) -> Plan:
    """Decide how a factorization would run, without running it.

    Parameters
    ----------
    routine : str
        What is to be done: "lu", "solve", "inverse", "cholesky", "solve_positive", "qr",
        "explicit_q", "lstsq", "minimum_norm" (of the transpose of the matrix, which is the
        one planned for), "inverse_positive"; and, with given factors, "lu_solve",
        "lu_solve_adjoint", "cho_solve", "qr_multiply", "qr_multiply_adjoint" or "qr_solve".
    shape : tuple of int
        Rows and columns of the matrix.
    dtype : dtype, optional
        Element type: float32, float64, complex64 or complex128.
    nrhs : int, optional
        Right-hand sides; for "explicit_q" and "inverse", columns of the result.
    workers : sequence of WorkerInfo, optional
        Who takes part; by default the calling thread alone.
    **options
        See `Options`.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        For what cannot be, and for tiles that make more than some 3e7 tasks.

    Examples
    --------
    >>> p = plan("lu", (1000, 1000), nb=250)
    >>> p.layout.kt, len(p.graph), p.workers[0].name
    (4, 34, 'caller')
    >>> print(p.explain().splitlines()[0])
    lu of a 1000 x 1000 float64 matrix
    """
    if routine not in ROUTINES:
        raise ValueError(f"unknown routine {routine!r}; known are {', '.join(ROUTINES)}")
    m, n, nrhs = plain_sizes(shape, nrhs)
    if np.dtype(dtype).name not in DTYPES:
        raise ValueError(f"dtype {np.dtype(dtype)} is not one of {', '.join(DTYPES)}")
    ROUTINES[routine].require_shape(routine, m, n)
    infos = tuple(workers) if workers is not None else (calling_thread(),)
    source: Source = "column-major" if ROUTINES[routine].transposed else "row-major"
    chosen = Options.choose(options)
    return make_plan(routine, m, n, nrhs, np.dtype(dtype), chosen, infos, source=source)


def make_plan(
    routine: str,
    m: int,
    n: int,
    nrhs: int,
    dtype: np.dtype[Any],
    options: Options,
    workers: tuple[WorkerInfo, ...],
    on_host: bool = False,
    source: Source = "row-major",
) -> Plan:
    """Plan a run, or find the plan of an equal one.

    Parameters
    ----------
    routine : str
        A key of `ROUTINES`.
    m, n, nrhs : int
        Shape of the matrix, and right-hand sides.
    dtype : dtype
        Element type.
    options : Options
        What the user fixed.
    workers : tuple of WorkerInfo
        Who can take part.
    on_host : bool, optional
        Whether the matrix comes from host memory.
    source : {"row-major", "column-major", "in place"}, optional
        How it lies there.
    """
    # What a worker has free changes from run to run, and decides nothing here.
    key = tuple(replace(worker, memory=0) for worker in workers)
    profile = current_profile()
    return _cached_plan(routine, m, n, nrhs, dtype, options, key, on_host, source, profile)


@functools.lru_cache(maxsize=16)
def _cached_plan(
    routine: str,
    m: int,
    n: int,
    nrhs: int,
    dtype: np.dtype[Any],
    options: Options,
    workers: tuple[WorkerInfo, ...],
    on_host: bool,
    source: Source,
    profile: Profile | None,
) -> Plan:
    owners, helper = roles(workers, options)
    tuned = recall(profile, Problem(routine, m, n, nrhs, dtype), owners)
    travels = on_host and owners[0].kind == "gpu"
    nb = wanted_tiles(routine, m, n, options, owners, tuned, travels)
    depth = options.lookahead
    if depth is None and options.nb is None and tuned:
        depth = tuned.lookahead
    if depth is None:
        depth = default_lookahead(routine, m, n, owners, travels)
    # Several sizes say themselves how large the last tile is.
    uniform = isinstance(nb, int)
    tail = ROUTINES[routine].gpu_tail if owners[0].kind == "gpu" and uniform else 1
    layout = TileLayout(m, n, clipped(nb, max(m, n, nrhs, 1)), nrhs, tail)
    require_few_tasks(layout, "planned", most=MOST_PLANNED)
    model, at, team = _team(routine, layout, owners, helper, options, dtype)
    if options.ib is None and not ROUTINES[routine].factored:
        kernel = ROUTINES[routine].panel_kernel
        options = replace(options, ib=best_inner_blocking(owners[0], kernel, dtype))
    arrival = None
    if travels:
        arrival = arrival_steps(ROUTINES[routine], layout, model, range(len(owners)), at, dtype)
    return _assemble(
        routine, layout, dtype, options, team, model, at, depth, travels, source, arrival
    )


@functools.lru_cache(maxsize=16)
def follow_up(plan: Plan, routine: str, nrhs: int) -> Plan:
    """Plan what uses the factors that a run of `plan` has left with its workers.

    Parameters
    ----------
    plan : Plan
        Of the factorization.
    routine : str
        What reads its factors.
    nrhs : int
        Right-hand sides.
    """
    ROUTINES[routine].require_shape(routine, plan.layout.m, plan.layout.n)
    layout = replace(plan.layout, nrhs=nrhs)
    return _assemble(
        routine, layout, plan.dtype, plan.options, plan.workers, plan.model, plan.panel_worker,
        plan.lookahead, False, plan.source, None,
    )  # fmt: skip


def resume(plan: Plan, workers: tuple[WorkerInfo, ...], step: int) -> Plan:
    """Plan what is left of a run, for other workers.

    Parameters
    ----------
    plan : Plan
        Of the whole run.
    workers : tuple of WorkerInfo
        Who can take part.
    step : int
        First step that is still to be done.
    """
    routine, layout, options, dtype = plan.routine, plan.layout, plan.options, plan.dtype
    if options.panel not in {worker.kind for worker in workers}:
        # Who was to factor panels may be who was lost.
        options = replace(options, panel=PanelDevice.AUTO)
    owners, helper = roles(workers, options)
    model, at, team = _team(routine, layout, owners, helper, options, dtype)
    travels = plan.host_arrays and owners[0].kind == "gpu"
    return _assemble(
        routine, layout, dtype, options, team, model, at, plan.lookahead, travels, plan.source,
        None, step,
    )  # fmt: skip


def _team(
    routine: str,
    layout: TileLayout,
    owners: tuple[WorkerInfo, ...],
    helper: WorkerInfo | None,
    options: Options,
    dtype: np.dtype[Any],
) -> tuple[MachineModel, int | None, tuple[WorkerInfo, ...]]:
    """Model, panel worker, and all who take part: the helper only where panels go to it."""
    model, at = choose_panel_worker(ROUTINES[routine], layout, owners, helper, options, dtype)
    team = owners if at is None or helper is None else (*owners, helper)
    return replace(model, devices=model.devices[: len(team)]), at, team


def _assemble(
    routine: str,
    layout: TileLayout,
    dtype: np.dtype[Any],
    options: Options,
    team: tuple[WorkerInfo, ...],
    model: MachineModel,
    at: int | None,
    depth: int,
    travels: bool,
    source: Source,
    arrival: Callable[[int], int] | None,
    done: int = 0,
) -> Plan:
    """Make the plan that all decisions have been taken for; the first steps may be `done`."""
    owners = [g for g in range(len(team)) if g != at]
    weights = [_speed(model, g) if g in owners else 0.0 for g in range(len(team))]
    # Only neighbours in the matrix become one call where its memory is shared.
    shared = share_memory([team[g] for g in owners])
    distribution = Distribution.cyclic(layout.nt + layout.rt, weights, turning=shared)
    with _no_garbage_collection():
        graph = ROUTINES[routine].tasks(layout)
        if done:
            graph = graph.remaining(done)
        programs, traffic = build_programs(
            graph, Placement(graph, distribution, at), distribution, len(team), depth=depth,
            shared=shared, arrival=arrival, checkpoints=_checkpoints(graph, options, team),
        )  # fmt: skip
    planned = PlannedGraph(graph, routine, dtype, team, distribution, at, model)
    return Plan(
        routine, layout, dtype, options, team, distribution, at, depth, planned, programs,
        traffic, model, travels, source,
    )  # fmt: skip


def _checkpoints(graph: TaskGraph, options: Options, team: tuple[WorkerInfo, ...]) -> Sequence[int]:
    """Steps before which to save; not where all workers are threads of this process."""
    if options.checkpoint is None or not graph.blocks or not over_processes(team):
        return ()
    steps = [block.step for block in graph.blocks]
    first = min(steps) // options.checkpoint + 1
    return range(first * options.checkpoint, max(steps) + 1, options.checkpoint)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Thousands of small objects that all stay: looking for garbage among them takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _speed(model: MachineModel, worker: int) -> float:
    """Speed of a worker by a typical trailing update, to two digits: less is noise."""
    return float(f"{1 / model.devices[worker].multiply_seconds(4096, 4096, 256):.1e}")
