"""Search for the tile sizes and look-ahead with the shortest predicted run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.planning.decisions import Problem, default_nb, team_name
from hetero_la.planning.options import Options
from hetero_la.planning.planner import plan
from hetero_la.planning.teams import assign_roles, merged_columns
from hetero_la.scheduler.machine.profile import Tuning
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.estimate import Stages
from hetero_la.scheduler.predict.tile_sizes import SearchRule, best_sizes
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.arrays.displayed import one_line
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_of_cut, tiles_texts

#: Tile sizes and look-ahead depths to try, and the largest size of the last tile.
_SIZES = {"cpu": range(64, 513, 32), "gpu": range(128, 2049, 128)}
_DEPTHS = {"cpu": (0, 1, 2), "gpu": (1, 2, 3)}
_LARGEST = {"cpu": 512, "gpu": 4096}
#: Number of tile sizes, the best by a quick estimate, whose whole run is simulated.
_SIMULATED = 8
#: Panels in a block of two-level blocking, and number of the best pairs of widths to simulate.
_BLOCKS, _TWO_LEVELS = (2, 4), 4
#: Number of tasks of a graph beyond which its simulation takes too long.
_MOST_TASKS = 300_000
#: Number of possible tile starts beyond which the grid of tile sizes is made coarser.
_MOST_PLACES = 256


class Candidate(NamedTuple):
    """Tile sizes, look-ahead depth and two-level blocking, with the predicted seconds."""

    nb: TileSizes
    lookahead: int
    seconds: float
    coarse: int | None = None

    def __repr__(self) -> str:
        tiles = tiles_texts(self.nb, self.coarse, self.lookahead)
        return one_line("Candidate", *tiles, in_seconds(self.seconds))


def search(
    problem: Problem,
    workers: Sequence[WorkerInfo],
    *,
    sizes: Sequence[TileSizes] | None = None,
    depths: Sequence[int] | None = None,
    report: Callable[[Candidate], None] = lambda candidate: None,
) -> list[Candidate]:
    """Simulate a run with several tile sizes and depths of look-ahead.

    Parameters
    ----------
    problem : Problem
        The problem.
    workers : sequence of WorkerInfo
        Workers that can take part; this machine's profile must contain them.
    sizes : sequence of int or tuple of int, optional
        Tile sizes to simulate; by default those of a plan, the eight best uniform sizes by a
        quick estimate, the four best in two levels, and the best sequences of sizes: see
        `best_sizes`.
    depths : sequence of int, optional
        Look-ahead depths; by default 0 to 2 on CPUs, and 1 to 3 on GPUs.
    report : callable, optional
        Called with each candidate.

    Returns
    -------
    list of Candidate
        The shortest first.

    Raises
    ------
    ValueError
        If the workers were not measured: nominal rates are too inexact to compare tile sizes.
    """
    routine, m, n, nrhs, dtype = problem
    require_measured(workers, dtype)
    found = []
    for nb, depth, coarse in _candidates(problem, _owners(workers), sizes, depths):
        planned = plan(
            routine, (m, n), dtype, nrhs=nrhs, workers=workers, nb=nb, lookahead=depth,
            coarse=coarse,
        )  # fmt: skip
        found.append(Candidate(planned.nb, depth, planned.predicted_seconds, coarse))
        report(found[-1])
    return sorted(found, key=lambda candidate: candidate.seconds)


def _candidates(
    problem: Problem,
    owners: Sequence[WorkerInfo],
    sizes: Sequence[TileSizes] | None,
    depths: Sequence[int] | None,
) -> list[tuple[TileSizes, int, int | None]]:
    """Return the tile sizes, look-ahead depths and widths of blocks of panels to simulate."""
    kind = _device_kind(owners)
    depths = depths or _DEPTHS[kind]
    if sizes is not None:
        return list(itertools.product(sizes, depths, [None]))
    order = max(min(problem.m, problem.n), 1)
    uniform = [nb for nb in _SIZES[kind] if nb <= order] or [order]
    stages = _stages(problem, owners)
    default = default_nb(problem.routine, problem.m, problem.n, owners)
    found: list[tuple[TileSizes, int]] = []
    if _can_be_simulated(problem, default):
        found += itertools.product([default], depths)
    found += itertools.product(_best_uniform_sizes(problem, stages, uniform), depths)
    rules = [SearchRule(bool(depth), shrinking) for depth in depths for shrinking in (False, True)]
    rules = list(dict.fromkeys(rules))
    cuts = best_sizes(stages, order, _coarsened(uniform, order), _LARGEST[kind], rules)
    for rule, (_, widths) in zip(rules, cuts, strict=True):
        nb = sizes_of_cut(widths)  # without the ragged last size, which must not repeat
        if _can_be_simulated(problem, nb):
            found += [(nb, depth) for depth in depths if bool(depth) == rule.lookahead]
    blocked = _best_two_levels(problem, owners, uniform)
    two_levels = [(nb, depth, coarse) for nb, coarse in blocked for depth in depths]
    return [*((nb, depth, None) for nb, depth in dict.fromkeys(found)), *two_levels]


def _owners(workers: Sequence[WorkerInfo]) -> tuple[WorkerInfo, ...]:
    """Return the workers that own columns."""
    return assign_roles(tuple(workers), Options())[0]


def _device_kind(owners: Sequence[WorkerInfo]) -> str:
    """Return the device kind that the owners compute on."""
    return "cpu" if owners[0].virtual else owners[0].kind


def largest_size(workers: Sequence[WorkerInfo]) -> int:
    """Return the largest tile size that `search` tries by default: it makes the fewest tasks."""
    return max(_SIZES[_device_kind(_owners(workers))])


def _coarsened(sizes: Sequence[int], order: int) -> Sequence[int]:
    """Drop tile sizes until the rest have a common divisor that leaves few places for tiles."""
    while len(sizes) > 4 and order > _MOST_PLACES * math.gcd(*sizes):
        sizes = [nb for nb in sizes if nb % (2 * math.gcd(*sizes)) == 0]
    return sizes


def require_measured(workers: Sequence[WorkerInfo], dtype: Any) -> None:
    """Raise ValueError unless this machine's profile contains the owners of columns."""
    owners = _owners(workers)
    if machine_model(owners, dtype, measure=False).unmeasured:
        who = team_name(owners)
        raise ValueError(f"no profile of this machine knows {who}: run 'hetero-la probe' first")


def _stages(
    problem: Problem, owners: Sequence[WorkerInfo], layout: TileLayout | None = None
) -> Stages:
    """Return the costs of the stages of a run, with as many calls merged as programs merge."""
    routine = ROUTINES[problem.routine]
    model = machine_model(owners, problem.dtype, measure=False)
    layout = layout or _layout(problem, max(problem.m, problem.n, 1))
    return Stages(
        routine.tasks, layout, model, range(len(owners)), None, problem.dtype,
        merged_columns(routine, owners),
    )  # fmt: skip


def _best_uniform_sizes(problem: Problem, stages: Stages, sizes: Sequence[int]) -> list[int]:
    """Return the best tile sizes by the quick estimate, of graphs that are not too large."""

    def estimate(nb: int) -> float:
        layout = _layout(problem, nb)
        return stages.seconds(layout.column_widths[: layout.kt])

    small = [nb for nb in sizes if _can_be_simulated(problem, nb)]
    return sorted(sorted(small or [max(sizes)], key=estimate)[:_SIMULATED])


def _best_two_levels(
    problem: Problem, owners: Sequence[WorkerInfo], sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the best widths of panels, and of blocks of them, by the quick estimate."""
    if not ROUTINES[problem.routine].two_levels:
        return []

    def estimate(widths: tuple[int, int]) -> float:
        nb, coarse = widths
        layout = replace(_layout(problem, nb), per_block=coarse // nb)
        return _stages(problem, owners, layout).seconds()

    pairs = [
        (nb, times * nb) for nb in sizes for times in _BLOCKS if _can_be_simulated(problem, nb)
    ]
    fitting = [pair for pair in pairs if 2 * pair[1] <= min(problem.m, problem.n)]
    return sorted(fitting, key=estimate)[:_TWO_LEVELS]


def _can_be_simulated(problem: Problem, nb: TileSizes) -> bool:
    """Return whether a graph has few enough tasks to be simulated."""
    layout = _layout(problem, nb)
    return 3 * layout.kt * layout.nt < 2 * _MOST_TASKS


def _layout(problem: Problem, nb: TileSizes) -> TileLayout:
    return TileLayout(problem.m, problem.n, nb, problem.nrhs)


def tunings_of(
    problem: Problem, workers: Sequence[WorkerInfo], found: Sequence[Candidate]
) -> list[Tuning]:
    """Return the tunings that a profile keeps: the best, and the best with one tile size.

    `found` is in order.  A sequence of sizes is used for its very size only, one tile size also
    for matrices that are about as large.
    """
    routine, m, n, nrhs, dtype = problem
    uniform = [one for one in found if isinstance(one.nb, int)]
    team = team_name(_owners(workers))
    return [
        Tuning(routine, team, np.dtype(dtype).name, m, n, nrhs, *one)
        for one in dict.fromkeys([*found[:1], *uniform[:1]])
    ]
