"""Finds the tile sizes and look-ahead with which a run is predicted to be the shortest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.planning.decisions import Problem, default_nb, roles, team_name
from hetero_la.planning.options import Options
from hetero_la.planning.plan import share_memory
from hetero_la.planning.planner import plan
from hetero_la.scheduler.graph.step_kernels import StepKernels
from hetero_la.scheduler.machine.profile import Tuning
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.stages import Stages
from hetero_la.scheduler.predict.tile_sizes import Rule, best_sizes
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_of_cut

#: Tile sizes that are looked at, depths of look-ahead, and how large the last tile may be.
_SIZES = {"cpu": range(64, 513, 32), "gpu": range(128, 2049, 128)}
_DEPTHS = {"cpu": (0, 1, 2), "gpu": (1, 2, 3)}
_LARGEST = {"cpu": 512, "gpu": 4096}
#: Tile sizes whose whole run is simulated: the best ones by a quick estimate.
_SIMULATED = 8
#: Tasks of a graph beyond which its simulation takes longer than it is worth.
_MOST_TASKS = 300_000
#: Places at which a tile may begin, beyond which the grid of tile sizes is made coarser.
_MOST_PLACES = 256


class Candidate(NamedTuple):
    """A way to do a run, and the seconds that it is predicted to take."""

    nb: TileSizes
    lookahead: int
    seconds: float


def search(
    problem: Problem,
    workers: Sequence[WorkerInfo],
    *,
    sizes: Sequence[TileSizes] | None = None,
    depths: Sequence[int] | None = None,
    told: Callable[[Candidate], None] = lambda candidate: None,
) -> list[Candidate]:
    """Simulate a run with several tile sizes and depths of look-ahead.

    Parameters
    ----------
    problem : Problem
        What is to be done.
    workers : sequence of WorkerInfo
        Who can take part; a profile has to know them.
    sizes : sequence of int or tuple of int, optional
        Tile sizes to simulate; by default those that a plan has by default, the eight best of
        those that may be of use, by a quick estimate, and the best sequences of sizes: see
        `best_sizes`.
    depths : sequence of int, optional
        Depths of look-ahead; by default those that may be of use.
    told : callable, optional
        Called with each candidate.

    Returns
    -------
    list of Candidate
        The shortest first.

    Raises
    ------
    ValueError
        If nobody has measured the workers: nominal figures tell tile sizes apart too badly.
    """
    routine, m, n, nrhs, dtype = problem
    owners, _ = roles(tuple(workers), Options())
    require_measured(workers, dtype)
    found = []
    for nb, depth in _candidates(problem, owners, sizes, depths):
        planned = plan(
            routine, (m, n), dtype, nrhs=nrhs, workers=workers, nb=nb, lookahead=depth
        )  # fmt: skip
        found.append(Candidate(planned.nb, depth, planned.predicted_seconds))
        told(found[-1])
    return sorted(found, key=lambda candidate: candidate.seconds)


def _candidates(
    problem: Problem,
    owners: Sequence[WorkerInfo],
    sizes: Sequence[TileSizes] | None,
    depths: Sequence[int] | None,
) -> list[tuple[TileSizes, int]]:
    """Tile sizes and depths of look-ahead to simulate."""
    kind = _kind(owners)
    depths = depths or _DEPTHS[kind]
    if sizes is not None:
        return list(itertools.product(sizes, depths))
    order = max(min(problem.m, problem.n), 1)
    uniform = [nb for nb in _SIZES[kind] if nb <= order] or [order]
    stages = _stages(problem, owners)
    default = default_nb(problem.routine, problem.m, problem.n, owners)
    found: list[tuple[TileSizes, int]] = []
    if _is_small(problem, default):
        found += itertools.product([default], depths)
    found += itertools.product(_promising(problem, stages, uniform), depths)
    rules = [Rule(bool(depth), shrinking) for depth in depths for shrinking in (False, True)]
    rules = list(dict.fromkeys(rules))
    cuts = best_sizes(stages, order, _coarse(uniform, order), _LARGEST[kind], rules)
    for rule, (_, widths) in zip(rules, cuts, strict=True):
        nb = sizes_of_cut(widths)  # beyond them, none is as small as a ragged last one
        if _is_small(problem, nb):
            found += [(nb, depth) for depth in depths if bool(depth) == rule.lookahead]
    return list(dict.fromkeys(found))


def _kind(owners: Sequence[WorkerInfo]) -> str:
    """What the owners compute on."""
    return "cpu" if owners[0].virtual else owners[0].kind


def largest_size(workers: Sequence[WorkerInfo]) -> int:
    """The largest tile size that `search` tries by itself: it makes the fewest tasks."""
    owners, _ = roles(tuple(workers), Options())
    return max(_SIZES[_kind(owners)])


def _coarse(sizes: Sequence[int], order: int) -> Sequence[int]:
    """Tile sizes that are multiples of one, so that tiles begin at not too many places."""
    while len(sizes) > 4 and order > _MOST_PLACES * math.gcd(*sizes):
        sizes = [nb for nb in sizes if nb % (2 * math.gcd(*sizes)) == 0]
    return sizes


def require_measured(workers: Sequence[WorkerInfo], dtype: Any) -> None:
    """Raise ValueError if this machine's profile does not know the owners of columns."""
    owners, _ = roles(tuple(workers), Options())
    if machine_model(owners, dtype, measure=False).unmeasured:
        who = team_name(owners)
        raise ValueError(f"no profile of this machine knows {who}: run 'hetero-la probe' first")


def _stages(problem: Problem, owners: Sequence[WorkerInfo]) -> Stages:
    """What stages of a run cost; its calls take what `programs` can merge."""
    build, neighbours = ROUTINES[problem.routine].tasks, 0
    if len(owners) > 1 and share_memory(owners):
        neighbours = 2  # columns go round the owners there and back
    elif len(owners) > 1 and StepKernels.of(build).trapezoid:
        neighbours = 1
    return Stages(
        build, problem.m, problem.n, problem.nrhs,
        machine_model(owners, problem.dtype, measure=False), range(len(owners)), None,
        problem.dtype, neighbours,
    )  # fmt: skip


def _promising(problem: Problem, stages: Stages, sizes: Sequence[int]) -> list[int]:
    """The tile sizes that are best by a quick estimate, of graphs that are not too large."""

    def estimate(nb: int) -> float:
        layout = _layout(problem, nb)
        return stages.seconds(layout.column_widths[: layout.kt])

    small = [nb for nb in sizes if _is_small(problem, nb)]
    return sorted(sorted(small or [max(sizes)], key=estimate)[:_SIMULATED])


def _is_small(problem: Problem, nb: TileSizes) -> bool:
    """Whether a graph has few enough tasks to be simulated."""
    layout = _layout(problem, nb)
    return 3 * layout.kt * layout.nt < 2 * _MOST_TASKS


def _layout(problem: Problem, nb: TileSizes) -> TileLayout:
    return TileLayout(problem.m, problem.n, nb, problem.nrhs)


def tunings_of(
    problem: Problem, workers: Sequence[WorkerInfo], found: Sequence[Candidate]
) -> list[Tuning]:
    """What a profile keeps of candidates in order: the best, and the best of one tile size.

    Several sizes are for a matrix of the very size that they were found for; one is for
    others that are about as large.
    """
    owners, _ = roles(tuple(workers), Options())
    routine, m, n, nrhs, dtype = problem
    best = found[:1]
    if not isinstance(best[0].nb, int):
        best = [*best, *[one for one in found if isinstance(one.nb, int)][:1]]
    team = team_name(owners)
    return [Tuning(routine, team, np.dtype(dtype).name, m, n, nrhs, *one) for one in best]
