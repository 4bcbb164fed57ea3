"""Planner: decides owners, panel worker, tile size and look-ahead, and writes the programs."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import DTypeLike

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.inputs import DTYPES, as_sizes
from hetero_la.planning.decisions import (
    Decisions,
    Problem,
    arrival_steps,
    choose_tiles,
    saved_every,
)
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options, PanelDevice, RunOptions
from hetero_la.planning.plan import Plan
from hetero_la.planning.planned_graph import PlannedGraph
from hetero_la.planning.streaming import needs_streaming, require_streaming, shard_widths
from hetero_la.planning.teams import assign_roles, choose_team, sharing_memory
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.machine.profile import Profile
from hetero_la.scheduler.machine.this_machine import best_inner_blocking, current_profile
from hetero_la.scheduler.placement.column_groups import ColumnGroups
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.workers import (
    WorkerInfo,
    calling_thread,
    over_processes,
    workers_text,
)
from hetero_la.scheduler.program.build import build_programs
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.arrays.names import unknown_name
from hetero_la.tiles.storage.layout import TileLayout

#: Least steps of a part of a run whose rows are complete before the next one's.
_STEPS_OF_A_PART = 4
#: Tiles as small as this are tried where larger ones would not fit into memory.
_LEAST_NB = 32
#: Sizes of tiles that are compared there.
_COMPARED = 3
#: Most tile columns of those after the first: with more, planning takes longer than is won.
_MOST_COLUMNS = 256


def plan(
    routine: str,
    shape: tuple[int, int],
    dtype: DTypeLike = np.float64,
    *,
    nrhs: int = 0,
    workers: Sequence[WorkerInfo] | None = None,
    **options: Unpack[RunOptions],
) -> Plan:
    """Plan a factorization without running it.

    Parameters
    ----------
    routine : str
        "lu", "solve", "inverse", "lu_nopivot", "solve_nopivot", "cholesky", "solve_positive",
        "inverse_positive", "qr", "explicit_q", "lstsq", "minimum_norm" (where `shape` is that of
        the transpose); or, with given factors, "lu_solve", "lu_solve_adjoint", "cho_solve",
        "qr_multiply", "qr_multiply_adjoint" or "qr_solve".
    shape : tuple of int
        Rows and columns of the matrix.
    dtype : dtype, optional
        Element type: float32, float64, complex64 or complex128.
    nrhs : int, optional
        Number of right-hand sides; for "explicit_q" and "inverse", of columns of the result.
    workers : sequence of WorkerInfo, optional
        Workers that take part; by default the calling thread alone.
    **options
        See `Options`.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        For invalid arguments, and for tiles that would make more than about 3e7 tasks.

    Examples
    --------
    >>> p = plan("lu", (1000, 1000), nb=250)
    >>> p.layout.kt, len(p.graph), p.workers[0].name
    (4, 34, 'caller')
    >>> print(p.explain().splitlines()[0])
    lu of a 1000 x 1000 float64 matrix
    """
    if routine not in ROUTINES:
        raise ValueError(unknown_name("routine ", routine, ROUTINES))
    m, n, nrhs = as_sizes(shape, nrhs)
    if np.dtype(dtype).name not in DTYPES:
        raise ValueError(f"dtype {np.dtype(dtype)} is not one of {', '.join(DTYPES)}")
    ROUTINES[routine].require_shape(routine, m, n)
    infos = tuple(workers) if workers is not None else (calling_thread(),)
    given = Given(source="column-major" if ROUTINES[routine].transposed else "row-major")
    chosen = Options.choose(options)
    return make_plan(Problem(routine, m, n, nrhs, np.dtype(dtype)), chosen, infos, given)


def make_plan(
    problem: Problem,
    options: Options,
    workers: tuple[WorkerInfo, ...],
    given: Given | None = None,
    *,
    checked: bool = False,
) -> Plan:
    """Plan a run, or return the cached plan of an equal one.

    Parameters
    ----------
    problem : Problem
        Routine, a key of `ROUTINES`, shapes and element type.
    options : Options
        Options that the user has set.
    workers : tuple of WorkerInfo
        Workers that can take part.
    given : Given, optional
        Where the matrix is; by default with the workers.
    checked : bool, optional
        Whether the run also does what follows, if right-hand sides are at most one tile wide.
    """
    options.require_products(problem.dtype)
    # Free memory changes from run to run and does not matter here: it is no part of the cache key.
    key = tuple(replace(worker, memory=0) for worker in workers)
    return _cached_plan(problem, options, key, given or Given(), checked, current_profile())


@functools.lru_cache(maxsize=16)
def _cached_plan(
    problem: Problem,
    options: Options,
    workers: tuple[WorkerInfo, ...],
    given: Given,
    checked: bool,
    profile: Profile | None,
) -> Plan:
    routine, dtype, together = ROUTINES[problem.routine], problem.dtype, given.together
    roles = assign_roles(workers, options, given.on_host)

    @functools.cache
    def tiles(owners: tuple[WorkerInfo, ...]) -> tuple[TileLayout, int]:
        travels = given.on_host and owners[0].kind == "gpu"
        layout, depth = choose_tiles(problem, options, owners, profile, travels)
        # On the host's cores, swaps in parts cost more than the way of the result to the host; and
        # a checkpoint would have to wait for those that its part of a column gets later.
        gpus = all(owner.kind == "gpu" for owner in owners)
        early = travels and gpus and not checked and saved_every(options, owners) is None
        parts = max(min(routine.parts, layout.kt // _STEPS_OF_A_PART), 1) if early else 1
        return replace(layout, parts=parts), depth

    tiles(roles.owners)  # raises an error if there would be too many
    team = choose_team(routine, lambda owners: tiles(owners)[0], dtype, options, roles, given)
    owners = team.owners
    layout, depth = tiles(owners)
    travels = given.on_host and owners[0].kind == "gpu"
    if options.ib is None and not routine.factored:
        options = replace(options, ib=best_inner_blocking(owners[0], routine.panel_kernel, dtype))
    checked = checked and layout.rt <= 1
    if options.order == "left":
        require_one_worker(team.workers)
    decided = Decisions(
        problem.routine, layout, dtype, options, *team, depth, travels, given.source, checked,
        given.mapped,
    )  # fmt: skip
    if given.blocks and over_processes(team.workers):
        made, entries = -(-layout.nt // together), layout.m * layout.width
        model = team.model.for_blocks(given.blocks, made, entries * dtype.itemsize)
        decided = replace(decided, model=model)
    whole = assemble(decided, together=together)
    limit = options.memory_limit
    if limit is None or not needs_streaming(whole, limit):
        return whole
    if options.panel is PanelDevice.AUTO and (whole.panel_worker is not None or team.mixed):
        # Panels stay where their columns are, and columns with workers of one kind.
        options = replace(options, panel=PanelDevice(owners[0].kind))
        return _cached_plan(problem, options, workers, given, checked, profile)
    require_streaming(whole, limit, given)
    return _streamed(decided, limit, together)


def _streamed(decided: Decisions, limit: int, together: int) -> Plan:
    """Plan a run with only some columns in memory at a time.

    Of smaller tiles more fit, and less has to be read back: the first few sizes that fit are
    compared.
    """
    plans: list[Plan] = []
    for layout in _streamed_layouts(decided):
        if plans and layout.nt > _MOST_COLUMNS:
            break
        # No panel waits in a buffer for columns that come late: they are loaded when needed.
        whole = assemble(replace(decided, layout=layout, host_arrays=False), together=together)
        try:
            widths = shard_widths(whole, limit)
        except InsufficientMemoryError as error:
            too_large = error
            continue
        changed = replace(decided, layout=layout)
        plans.append(assemble(changed, together=together, widths=widths))
        if len(plans) == _COMPARED:
            break
    if not plans:
        raise too_large
    return min(plans, key=lambda plan: plan.predicted_seconds)


def require_one_worker(workers: Sequence[WorkerInfo]) -> None:
    """Raise ValueError if more than one worker takes part in the left-looking order."""
    if len(workers) > 1:
        raise ValueError(f"order='left' is for one worker, not for {workers_text(workers)}")


def _streamed_layouts(decided: Decisions) -> Iterator[TileLayout]:
    """Yield layouts of a run with some columns in memory, with smaller and smaller tiles."""
    # The rows of parts are complete when left swaps, which come last here, have been done to them;
    # in two levels, they would have to be done at the end of each block.
    layout = replace(decided.layout, parts=1, tail=1, per_block=1)
    yield layout
    nb = max(layout.column_widths, default=0)
    while decided.options.nb is None and nb > _LEAST_NB:
        nb = max(nb // 2, _LEAST_NB)
        yield replace(layout, nb=nb)


@functools.lru_cache(maxsize=16)
def follow_up(plan: Plan, routine: str, nrhs: int) -> Plan:
    """Plan a run that uses the factors that a run of `plan` has left with its workers.

    Parameters
    ----------
    plan : Plan
        Plan of the factorization.
    routine : str
        Routine that reads its factors.
    nrhs : int
        Number of right-hand sides.
    """
    ROUTINES[routine].require_shape(routine, plan.layout.m, plan.layout.n)
    layout = replace(plan.layout, nrhs=nrhs, parts=1)
    return assemble(
        _changed(plan, routine=routine, layout=layout, host_arrays=False, checked=False)
    )


def resume(plan: Plan, workers: tuple[WorkerInfo, ...], step: int) -> Plan:
    """Plan the remaining steps of a run, for other workers.

    Parameters
    ----------
    plan : Plan
        Plan of the whole run.
    workers : tuple of WorkerInfo
        Workers that can take part.
    step : int
        First step that is still to be done.
    """
    options = plan.options
    if options.panel not in {worker.kind for worker in workers}:
        # The worker that was to factor panels may be the lost one.
        options = replace(options, panel=PanelDevice.AUTO)
    given = Given(plan.host_arrays, plan.source, mapped=plan.mapped)
    roles = assign_roles(workers, options, given.on_host)
    team = choose_team(
        ROUTINES[plan.routine], lambda owners: plan.layout, plan.dtype, options, roles, given
    )
    travels = plan.host_arrays and team.owners[0].kind == "gpu"
    decided = _changed(plan, options=options, host_arrays=travels, **team._asdict())
    return assemble(decided, done=step)


def resume_visits(plan: Plan, done: int) -> Plan:
    """Plan what is left of a run with some columns in memory at a time, from a visit on."""
    assert plan.groups is not None
    return assemble(_changed(plan), widths=plan.groups.capacities, visits=done)


def assemble(
    decided: Decisions, done: int = 0, together: int = 1, widths: Sequence[int] = (),
    visits: int = 0,
) -> Plan:  # fmt: skip
    """Make the plan from all decisions; the steps before `done` are left out.

    With `widths`, the workers' shards have room for so many element columns at a time, and visits
    to columns before number `visits` are left out.
    """
    layout, team, owners = decided.layout, decided.workers, decided.owners
    # In shared memory only columns that are adjacent in the matrix can be merged into one call.
    shared = [] if widths else sharing_memory(team)
    distribution = Distribution.cyclic(
        layout.nt + layout.rt, decided.speeds, alternating=shared == owners, together=together
    )
    groups = ColumnGroups.fill(layout, distribution, widths) if widths else None
    left = decided.options.order == "left" and not done and groups is None
    order = ColumnGroups.single(layout) if left else groups
    with _no_garbage_collection():
        tasks = _tasks(decided)
        if done:
            tasks = tasks.remaining(done)
        programs, traffic = build_programs(
            tasks, Placement(tasks, distribution, decided.panel_worker), distribution, len(team),
            depth=decided.lookahead, shared=shared,
            arrival=arrival_steps(decided) if decided.host_arrays and not done else None,
            checkpoints=_checkpoints(tasks, decided.options, team), groups=order, done=visits,
            panels_alone=decided.panels_alone and order is None,
        )  # fmt: skip
    graph = PlannedGraph(tasks, decided, distribution)
    return Plan(
        **vars(decided), distribution=distribution, graph=graph, programs=programs,
        traffic=traffic, groups=groups,
    )  # fmt: skip


def _tasks(decided: Decisions) -> TaskGraph:
    routine = ROUTINES[decided.routine]
    build = routine.checked_tasks if decided.checked else routine.tasks
    assert build is not None
    return build(decided.layout)


def _changed(plan: Plan, **changes: Any) -> Decisions:
    """Return the decisions of a plan, without what it has made of them, and with some changed."""
    return Decisions(**{f.name: getattr(plan, f.name) for f in fields(Decisions)} | changes)


def _checkpoints(graph: TaskGraph, options: Options, team: tuple[WorkerInfo, ...]) -> Sequence[int]:
    """Return the steps before which to save; none if all workers are threads of this process."""
    interval = saved_every(options, team)
    if interval is None or not graph.blocks:
        return ()
    steps = [block.step for block in graph.blocks]
    first, block = min(steps), graph.layout.block
    every = range(interval, max(steps) + 1, interval)
    # Inside a block its panels run ahead of columns whose state before it is still to be saved.
    return sorted(begin for begin in {block(step)[0] for step in every} if begin > first)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which would search thousands of objects that all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
