"""Decisions taken from sizes and the machine model: tile size, look-ahead."""

from __future__ import annotations

import functools
import math
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from hetero_la.algorithms.routine import Tiling
from hetero_la.algorithms.routines import ROUTINES, heading_of, title_of
from hetero_la.checks.limits import MAX_TASKS_PLANNED, require_few_tasks
from hetero_la.planning.options import Options
from hetero_la.planning.teams import merged_columns
from hetero_la.scheduler.machine.device import in_effect
from hetero_la.scheduler.machine.model import MachineModel, Source
from hetero_la.scheduler.machine.profile import Profile, Tuning
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.scheduler.placement.placement import panels_alone
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes, workers_text
from hetero_la.scheduler.predict.estimate import Stages
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.tiles.arrays.counted import a_matrix, counted
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes, clipped

#: Tile sizes of GPUs and CPU workers that all own columns, the best ones of simulations: a CPU's
#: panels are to be short, and what it has of GPUs' products wide.
_MIXED_TILES = (Tiling(6144, 512), Tiling(0, 256))
#: Order up to which LAPACK may be faster on one thread than on all.
_ON_ONE_THREAD = 512
#: Seconds for which the calls for one tile hold Python's lock, while every worker of the process
#: waits; and workers up to which that was measured.
_LOCKED, _MOST_WAITING = 8e-6, 16
#: Right-hand sides up to which a run refines them: each takes n words for every tile column.
_FEW_CHECKED = 16
#: A tuning is used for matrices whose sides differ from its own by at most this factor.
_SIZE_TOLERANCE = 1.25


class Problem(NamedTuple):
    """Routine, matrix shape, right-hand sides and dtype for which a plan is made."""

    routine: str
    m: int
    n: int
    nrhs: int
    dtype: Any

    @property
    def user_shape(self) -> tuple[int, int]:
        """Shape of the matrix for which the routine is called: this one's, or its adjoint's."""
        return (self.n, self.m) if ROUTINES[self.routine].of_adjoint else (self.m, self.n)

    @property
    def title(self) -> str:
        """What is computed."""
        matrix = a_matrix(*self.user_shape, np.dtype(self.dtype).name)
        return f"{title_of(self.routine)} of {matrix}"


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """What is decided before the graph is built; see `Plan` for the attributes."""

    routine: str
    layout: TileLayout
    dtype: np.dtype[Any]
    options: Options
    workers: tuple[WorkerInfo, ...]
    panel_worker: int | None
    model: MachineModel
    speeds: tuple[float, ...]
    lookahead: int
    host_arrays: bool
    source: Source
    checked: bool
    mapped: bool

    def __repr__(self) -> str:
        tiles = f"nb = {self.layout.nb_text}"
        return one_line(type(self).__name__, self.title, tiles, workers_text(self.workers))

    @property
    def title(self) -> str:
        """What is computed."""
        return self.problem.title

    @property
    def heading(self) -> str:
        """What is computed, of which tiles, and on what: the heading of pictures."""
        layout, (m, n) = self.layout, self.problem.user_shape
        given = layout.nrhs and not ROUTINES[self.routine].makes
        beside = f" with {counted(layout.nrhs, 'column')} beside it" if given else ""
        kind = "" if self.dtype == np.float64 else f", {self.dtype.name}"
        machine = f" of {self.model.name}" if self.model.name else ""
        return (
            f"{heading_of(self.routine)} of {m} × {n}{beside}{kind}, "
            f"tiles of {layout.tiles_text}, {workers_text(self.workers)}{machine}"
        )

    @property
    def problem(self) -> Problem:
        """The problem for which they are."""
        layout = self.layout
        return Problem(self.routine, layout.m, layout.n, layout.nrhs, self.dtype)

    @property
    def owners(self) -> list[int]:
        """The workers that own columns, as indices into `workers`."""
        return [g for g in range(len(self.workers)) if g != self.panel_worker]

    @property
    def panels_alone(self) -> bool:
        """Whether a panel is factored with all of its GPU, as other GPUs wait for it."""
        return panels_alone([self.workers[g].kind for g in self.owners], self.panel_worker)

    def stages(self) -> Stages:
        """Return quick estimates of the run."""
        routine, owners = ROUTINES[self.routine], self.owners
        return Stages(
            routine.tasks, self.layout, self.model, owners, self.panel_worker, self.dtype,
            merged_columns(routine, [self.workers[g] for g in owners]),
            [self.speeds[g] for g in owners],
        )  # fmt: skip


def can_check(problem: Problem, options: Options, workers: Sequence[WorkerInfo]) -> bool:
    """Return whether a run can also do what follows it (`Routine.checked_tasks`).

    CPU workers of this process leave that to the calling thread, which has their memory; those of
    other processes on this host leave solves to it, since there the vectors' many short messages
    take longer than the factors' way to the calling thread, and LAPACK on them.
    """
    known = ROUTINES[problem.routine]
    far = over_processes(workers) if known.factors else any(map(_elsewhere, workers))
    apart = far or any(worker.kind == "gpu" for worker in workers)
    few = bool(known.factors) or 0 < problem.nrhs <= min(_FEW_CHECKED, problem.n // 8)
    return bool(apart and few and known.checked_tasks) and options.checkpoint is None


def _elsewhere(worker: WorkerInfo) -> bool:
    return worker.host not in ("", platform.node())


def arrival_steps(decided: Decisions) -> Callable[[int], int]:
    """Return a function that gives the step by which a column has arrived on its GPU."""
    stages = decided.stages()
    steps = stages.steps_while_loading(decided.source)
    before = [0, *accumulate(stages.elements_loaded())]
    return lambda column: before[column] * steps // max(before[-1], 1)


def team_name(owners: Sequence[WorkerInfo]) -> str:
    """Return the name under which a profile stores tunings for these owners.

    Examples
    --------
    >>> team_name([WorkerInfo("cpu0", "cpu"), WorkerInfo("cpu1", "cpu")])
    '2 cpu x 1 threads'
    """
    counts = Counter(map(_role, owners))
    return " and ".join(f"{count} {role}" for role, count in counts.items())


def _role(worker: WorkerInfo) -> str:
    if worker.has_gpu:
        return "gpu"
    return f"{worker.kind_text} x {worker.blas_threads} threads"


def find_tuning(
    profile: Profile | None, problem: Problem, owners: Sequence[WorkerInfo]
) -> Tuning | None:
    """Return the tuning for the problem nearest in size, if one is near enough.

    A tuning with several tile sizes is used only for exactly its own size.
    """
    if profile is None or not profile.tunings:
        return None
    team, dtype = team_name(owners), np.dtype(problem.dtype).name

    def distance(tuning: Tuning) -> float:
        there = (tuning.m, tuning.n, tuning.n + tuning.nrhs)
        here = (problem.m, problem.n, problem.n + problem.nrhs)
        sizes = zip(there, here, strict=True)
        return max(abs(math.log(max(one, 1) / max(other, 1))) for one, other in sizes)

    fitting = [
        tuning
        for tuning in profile.tunings
        if (tuning.routine, tuning.workers, tuning.dtype) == (problem.routine, team, dtype)
        and distance(tuning) <= math.log(_SIZE_TOLERANCE)
        and (isinstance(tuning.nb, int) or distance(tuning) == 0)
    ]
    return min(fitting, key=lambda tuning: (distance(tuning), tuning.seconds), default=None)


def saved_every(options: Options, workers: Sequence[WorkerInfo]) -> int | None:
    """Return after how many steps a run is saved; None if all its workers are in this process."""
    return options.checkpoint if over_processes(workers) else None


def choose_tiles(
    problem: Problem,
    options: Options,
    owners: Sequence[WorkerInfo],
    profile: Profile | None,
    travels: bool = False,
) -> tuple[TileLayout, int]:
    """Choose tiles and look-ahead depth: those asked for, else tuned ones, else the defaults.

    Raises
    ------
    ValueError
        If the tiles would make too many tasks.
    """
    routine, m, n, nrhs, _ = problem
    tuned = find_tuning(profile, problem, owners)
    nb = options.sizes or (tuned.nb if tuned else default_nb(routine, m, n, owners, travels))
    depth = options.lookahead
    if depth is None and options.nb is None and tuned:
        depth = tuned.lookahead
    if depth is None and owners[0].kind == "gpu":
        depth = _tiling(routine, min(m, n), owners, travels).lookahead
    # A sequence of sizes determines the last tile itself.
    merges = owners[0].kind == "gpu" and isinstance(nb, int)
    tail = ROUTINES[routine].gpu_tail if merges else 1
    coarse = options.coarse
    if tuned and options.nb is None and options.order == "right":  # then it is None
        coarse = tuned.coarse
    if coarse and not ROUTINES[routine].two_levels:
        raise ValueError(f"coarse is for LU with partial pivoting, and not for {routine}")
    panels = coarse // nb if coarse and isinstance(nb, int) else 1
    layout = TileLayout(m, n, clipped(nb, max(m, n, nrhs, 1)), nrhs, tail, panels)
    require_few_tasks(layout, "planned", most=MAX_TASKS_PLANNED)
    return layout, 1 if depth is None else depth


def default_nb(
    routine: str, m: int, n: int, owners: Sequence[WorkerInfo], travels: bool = False
) -> TileSizes:
    """Return default tile sizes, found by measurements: see ``docs/appendix/journal.md``.

    With `travels`, the matrix is copied from host memory to the GPUs and back.
    """
    size = max(min(m, n), 1)
    if owners[0].has_gpu:
        return _tiling(routine, size, owners, travels).sizes(size)
    if len(owners) == 1:
        # A single panel is not worth splitting: it would also split a wide part beside it.
        return 384 if size <= 384 else 128 if size < 2048 else 256
    # Three columns per worker keep all workers busy until near the end.
    share = size // (3 * len(owners)) // 32 * 32
    return min(max(share, 96), 192)


def _tiling(routine: str, order: int, owners: Sequence[WorkerInfo], travels: bool) -> Tiling:
    known = ROUTINES[routine]
    tiles = known.one_gpu_tiles if len(owners) == 1 else known.gpu_tiles
    if owners[-1].kind == "cpu":
        tiles = _MIXED_TILES
    fitting = (tiling for tiling in tiles if not (travels and tiling.resident))
    return next(tiling for tiling in fitting if order >= tiling.order)


def quick_estimate(problem: Problem, options: Options, worker: WorkerInfo) -> float:
    """Estimate the seconds of a run on one worker, without planning it."""
    # Free memory changes from run to run and does not matter here: it is no part of the cache key.
    return _estimate(problem, options, replace(worker, memory=0), current_profile())


@functools.lru_cache(maxsize=64)
def _estimate(
    problem: Problem, options: Options, worker: WorkerInfo, profile: Profile | None
) -> float:
    return _stages(problem, options, (worker,), profile).seconds()


def team_estimate(
    problem: Problem, workers: Sequence[WorkerInfo], options: Options | None = None
) -> float:
    """Estimate the seconds of a run on CPU workers of this process, without planning it."""
    stages = _stages(problem, options or Options(), workers, current_profile())
    model, layout, waiting = stages.model, stages.layout, min(len(workers), _MOST_WAITING)
    threads = sum(worker.blas_threads for worker in workers)
    alone = sum(in_effect(worker.blas_threads) for worker in workers)
    sharing = alone / in_effect(threads) if model.unmeasured else 1.0
    calls = _LOCKED * waiting * layout.kt * layout.nt
    return model.dask.start + model.dask.hop + sharing * stages.seconds() + calls


def _stages(
    problem: Problem, options: Options, workers: Sequence[WorkerInfo], profile: Profile | None
) -> Stages:
    layout, _ = choose_tiles(problem, options, workers, profile)
    model = machine_model(workers, problem.dtype, measure=False).computing(options.products)
    tasks = ROUTINES[problem.routine].tasks
    return Stages(tasks, layout, model, range(len(workers)), None, problem.dtype)


def library_estimate(problem: Problem, worker: WorkerInfo) -> float:
    """Estimate the seconds of a routine by one call: of LAPACK, or on a GPU mostly of cuSOLVER.

    LAPACK's algorithm is that of the task graph, in panels of a width of its own, where no call
    costs more than its work; on one thread, where several would wait for each other.
    """
    routine, m, n, nrhs, dtype = problem
    model, known = machine_model((worker,), dtype, measure=False), ROUTINES[routine]
    if worker.kind == "gpu":
        flops = known.flops(m, n, nrhs)
        return model.devices[0].library_seconds(
            known.panel_kernel, m, n, flops, dtype, forms_q=known.library == "qr_and_q"
        )
    if worker.blas_threads > 1 and min(m, n) < _ON_ONE_THREAD:
        alone = library_estimate(problem, replace(worker, blas_threads=1))
    else:
        alone = math.inf
    free = replace(model.devices[0], call_seconds=0.0, issue_seconds=0.0)
    width = known.lapack_width or default_nb(routine, m, n, (worker,))
    layout = TileLayout(m, n, clipped(width, max(m, n, nrhs, 1)), nrhs)
    free_calls = replace(model, devices=(free,))
    seconds = Stages(known.tasks, layout, free_calls, range(1), None, dtype).seconds()
    share = known.lapack_share * known.lapack_types.get(dtype.char, 1.0)
    return min(share * seconds, alone)


def nearby_problem(problem: Problem) -> Problem:
    """Return the problem that stands for others of about its size: few predictions are enough."""
    m, n, nrhs = map(rounded_size, problem[1:4])
    return problem._replace(m=m, n=n, nrhs=nrhs)


def rounded_size(size: int) -> int:
    """Return the next size with three binary digits.

    Examples
    --------
    >>> [rounded_size(size) for size in (0, 7, 10, 1000, 1025)]
    [0, 7, 10, 1024, 1280]
    """
    shift = max(size.bit_length() - 3, 0)
    return -(-size >> shift) << shift
