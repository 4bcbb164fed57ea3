"""Finds the tile size and look-ahead with which a run is predicted to be the shortest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero_la.options import Options
from hetero_la.planner import plan
from hetero_la.routines import ROUTINES
from hetero_la.scheduler.estimate import estimate_seconds
from hetero_la.scheduler.probes import machine_model
from hetero_la.scheduler.profile import Tuning
from hetero_la.scheduler.workers import WorkerInfo
from hetero_la.tiles.layout import TileLayout
from hetero_la.tiles.tile_sizes import TileSizes
from hetero_la.tuning import Problem, roles, team_name

#: Tile sizes that are looked at, and depths of look-ahead.
_SIZES = {"cpu": range(64, 513, 32), "gpu": range(128, 2049, 128)}
_DEPTHS = {"cpu": (0, 1, 2), "gpu": (1, 2, 3)}
#: Tile sizes whose whole run is simulated: the best ones by a quick estimate.
_SIMULATED = 8
#: Tasks of a graph beyond which its simulation takes longer than it is worth.
_MOST_TASKS = 300_000


class Candidate(NamedTuple):
    """A way to do a run, and the seconds that it is predicted to take."""

    nb: TileSizes
    lookahead: int
    seconds: float


def search(
    problem: Problem,
    workers: Sequence[WorkerInfo],
    *,
    sizes: Sequence[int] | None = None,
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
    sizes, depths : sequence of int, optional
        Tile sizes and depths; by default those that may be of use, of which only the
        eight best tile sizes by a quick estimate are simulated.
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
    kind = "cpu" if owners[0].virtual else owners[0].kind
    if sizes is None:
        largest = max(min(m, n), 1)
        sizes = [nb for nb in _SIZES[kind] if nb <= largest] or [largest]
        sizes = _promising(problem, owners, sizes)
    found = []
    for nb, depth in itertools.product(sizes, depths or _DEPTHS[kind]):
        planned = plan(
            routine, (m, n), dtype, nrhs=nrhs, workers=workers, nb=nb, lookahead=depth
        )  # fmt: skip
        found.append(Candidate(planned.nb, depth, planned.predicted_seconds))
        told(found[-1])
    return sorted(found, key=lambda candidate: candidate.seconds)


def require_measured(workers: Sequence[WorkerInfo], dtype: Any) -> None:
    """Raise ValueError if this machine's profile does not know the owners of columns."""
    owners, _ = roles(tuple(workers), Options())
    if machine_model(owners, dtype, measure=False).unmeasured:
        who = team_name(owners)
        raise ValueError(f"no profile of this machine knows {who}: run 'hetero-la probe' first")


def _promising(problem: Problem, owners: Sequence[WorkerInfo], sizes: Sequence[int]) -> list[int]:
    """The tile sizes that are best by a quick estimate, of graphs that are not too large."""
    model = machine_model(owners, problem.dtype, measure=False)
    routine = ROUTINES[problem.routine]

    def layout(nb: int) -> TileLayout:
        return TileLayout(problem.m, problem.n, nb, problem.nrhs)

    def estimate(nb: int) -> float:
        team = range(len(owners))
        return estimate_seconds(routine.step, layout(nb), model, team, None, problem.dtype)

    small = [nb for nb in sizes if 3 * layout(nb).kt * layout(nb).nt < 2 * _MOST_TASKS]
    return sorted(sorted(small or [max(sizes)], key=estimate)[:_SIMULATED])


def tuning_of(problem: Problem, workers: Sequence[WorkerInfo], best: Candidate) -> Tuning:
    """What a profile keeps of the best candidate."""
    owners, _ = roles(tuple(workers), Options())
    routine, m, n, nrhs, dtype = problem
    return Tuning(routine, team_name(owners), np.dtype(dtype).name, m, n, nrhs, *best)
