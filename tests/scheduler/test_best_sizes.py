"""Tile sizes by dynamic programming: the least of all, and what the simulator says of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.machine.device import H200, DeviceModel, cores
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.predict.estimate import Stage, Stages, Trailing
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.predict.tile_sizes import SearchRule, best_sizes
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_of_cut
from tests.support import set_up

RULES = [SearchRule(*choice) for choice in itertools.product((False, True), repeat=2)]
#: The host is not in the model of stages.
GPU = replace(H200, launch_seconds=0.0, panel_launch_seconds=0.0, reflector_launch_seconds=0.0)


def stages_of(
    routine: str, m: int, n: int, device: DeviceModel = GPU, owners: int = 1, nrhs: int = 0,
    neighbours: int = 0,
) -> Stages:  # fmt: skip
    model = MachineModel((device,) * owners)
    build = ROUTINES[routine].tasks
    layout = TileLayout(m, n, 512, nrhs)
    return Stages(build, layout, model, range(owners), None, "float64", neighbours)


class Runs:
    """Runs, stage by stage; the stages that they have in common are computed once."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._stage, self._trailing = functools.cache(self._stage_at), functools.cache(self._beyond)

    def seconds(self, sizes: tuple[int, ...], rule: SearchRule) -> float:
        start, before, total = 0, 0, 0.0
        for nb in sizes:
            total += self._stage(start, before, nb).of(rule.lookahead)
            start, before = start + nb, nb
        return total + self._trailing(start - before, before).seconds

    def _stage_at(self, start: int, before: int, nb: int) -> Stage:
        trailing = self._trailing(start - before, before) if before else None
        return self._stages.stage(trailing, self._stages.panel(self._stages.tile(start, nb)))

    def _beyond(self, start: int, nb: int) -> Trailing:
        return self._stages.trailing(self._stages.tile(start, nb))


def all_sizes(order: int, sizes: list[int], largest: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a matrix."""
    if order <= largest or all(nb >= order for nb in sizes):
        yield (order,)
    for nb in sizes:
        if nb < order:
            for rest in all_sizes(order - nb, sizes, largest):
                yield nb, *rest


def follows(rule: SearchRule, sizes: tuple[int, ...]) -> bool:
    inner = sizes[1:-1]
    return not rule.shrinking or all(a >= b for a, b in itertools.pairwise(inner))


@pytest.mark.parametrize("device", [GPU, cores(1)], ids=["gpu", "cpu"])
@pytest.mark.parametrize("owners", [1, 3])
@pytest.mark.parametrize(
    ("routine", "m", "n", "nrhs"),
    [("lu", 700, 700, 0), ("lu", 730, 1500, 0), ("cholesky", 690, 690, 300), ("qr", 900, 700, 0),
     ("lu", 60, 60, 0)],
)  # fmt: skip
def test_no_other_sizes_are_better(
    routine: str, m: int, n: int, nrhs: int, owners: int, device: DeviceModel
) -> None:
    stages = stages_of(routine, m, n, device, owners, nrhs)
    order, sizes = min(m, n), [64, 128, 192]
    found, runs = best_sizes(stages, order, sizes, 256, RULES), Runs(stages)
    for rule, (seconds, best) in zip(RULES, found, strict=True):
        widths = tuple(best)
        assert sum(widths) == order
        assert runs.seconds(widths, rule) == pytest.approx(seconds, rel=1e-12)
        assert follows(rule, widths)
        every = [one for one in all_sizes(order, sizes, 256) if follows(rule, one)]
        least = min(runs.seconds(one, rule) for one in every)
        assert seconds == pytest.approx(least, rel=1e-12)
    assert found[2][0] <= found[0][0]  # look-ahead
    assert found[2][0] <= found[3][0]  # freedom


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize(
    ("n", "sizes", "tolerance"),
    [(16384, 512, 0.02), (16384, 1024, 0.02), (20480, (512,) + (1024,) * 12 + (512,), 0.02),
     (20480, (2048, 1024, 256, 1024, 256, 1024, 512), 0.03), (5000, (512, 640, 512, 384), 0.05)],
)  # fmt: skip
def test_stages_add_up_to_what_the_programs_take(
    routine: str, n: int, sizes: TileSizes, tolerance: float
) -> None:
    layout = TileLayout(n, n, sizes)
    made = set_up(layout, 1, routine=routine)
    run = simulate(made.programs, made.traffic, made.graph, MachineModel((GPU,)))
    estimate = stages_of(routine, n, n).seconds(layout.column_widths)
    assert estimate == pytest.approx(run.makespan, rel=tolerance)


#: Columns to the right of the last tile: wide matrices, and right-hand sides.
BESIDE = [
    *(("lu", m, 40000, 0) for m in (4096, 4000)),
    *(("qr", m, 8192, 0) for m in (2048, 2000)),
    *((routine, 4096, 4096, 4096) for routine in ("lu", "cholesky", "qr")),
    *((routine, 4096, 4096, nrhs) for routine in ("solve", "solve_positive") for nrhs in (1, 8192)),
    *((routine, 3000, 3000, 3000) for routine in ("inverse", "inverse_positive")),
]


@pytest.mark.parametrize(("routine", "m", "n", "nrhs"), BESIDE)
@pytest.mark.parametrize("sizes", [512, (1024, 512, 640, 384), 4096], ids=str)
def test_what_is_beside_the_matrix_counts(
    routine: str, m: int, n: int, nrhs: int, sizes: TileSizes
) -> None:
    layout = TileLayout(m, n, sizes, nrhs)
    made = set_up(layout, 1, routine=routine)
    run = simulate(made.programs, made.traffic, made.graph, MachineModel((GPU,)))
    stages = stages_of(routine, m, n, nrhs=nrhs)
    estimate = stages.seconds(layout.column_widths[: layout.kt])
    assert estimate == pytest.approx(run.makespan, rel=0.05)


@pytest.mark.parametrize(
    ("routine", "m", "n", "nrhs"),
    [("lu", 4096, 40000, 0), ("qr", 2048, 8192, 0), ("solve", 2048, 2048, 4096)],
)
def test_the_last_tile_is_not_the_largest_where_others_follow(
    routine: str, m: int, n: int, nrhs: int
) -> None:
    sizes = [256, 512, 1024]
    stages = stages_of(routine, m, n, nrhs=nrhs)
    _, best = best_sizes(stages, m, sizes, m, [SearchRule(True, False)])[0]

    def seconds(nb: TileSizes) -> float:
        made = set_up(TileLayout(m, n, nb, nrhs), 1, routine=routine)
        return simulate(made.programs, made.traffic, made.graph, MachineModel((GPU,))).makespan

    assert len(best) > 1
    assert seconds(sizes_of_cut(best)) < min(map(seconds, sizes))


@pytest.mark.parametrize("routine", ["solve", "solve_positive"])
@pytest.mark.parametrize("owners", [2, 4])
def test_right_hand_sides_are_dealt_out(routine: str, owners: int) -> None:
    layout = TileLayout(2048, 2048, 128, 2048)
    made = set_up(layout, owners, shared=True, routine=routine)
    model = MachineModel((cores(1),) * owners)
    run = simulate(made.programs, made.traffic, made.graph, model, source="in place")
    stages = stages_of(routine, 2048, 2048, cores(1), owners, 2048, 1)
    assert stages.seconds(layout.column_widths[:16]) == pytest.approx(run.makespan, rel=0.1)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize(("owners", "shared"), [(1, True), (2, True), (4, True), (4, False)])
def test_so_they_do_on_cpus(routine: str, owners: int, shared: bool) -> None:
    layout = TileLayout(4096, 4096, (256,) * 8 + (128,))
    made = set_up(layout, owners, shared=shared, routine=routine)
    model = MachineModel((cores(1),) * owners)
    run = simulate(made.programs, made.traffic, made.graph, model, source="in place")
    neighbours = 1 if owners > 1 and (shared or routine == "cholesky") else 0
    stages = stages_of(routine, 4096, 4096, cores(1), owners, neighbours=neighbours)
    # Columns do not divide evenly.
    assert stages.seconds(layout.column_widths) == pytest.approx(run.makespan, rel=0.15)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_the_best_sizes_are_faster_where_the_programs_run(routine: str) -> None:
    n, sizes = 12288, [256, 512, 1024]
    stages = stages_of(routine, n, n)
    _, best = best_sizes(stages, n, sizes, 2048, [SearchRule(True, False)])[0]

    def seconds(nb: TileSizes) -> float:
        made = set_up(TileLayout(n, n, nb), 1, routine=routine)
        return simulate(made.programs, made.traffic, made.graph, MachineModel((GPU,))).makespan

    assert seconds(tuple(best)) < min(map(seconds, sizes))


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr", "solve"])
@pytest.mark.parametrize(
    ("device", "owners", "panel_worker"),
    [(H200, 1, False), (H200, 2, False), (H200, 2, True), (cores(8), 1, False)],
    ids=["gpu", "two", "with-cpu", "cpu"],
)
def test_quick_estimates_are_near_what_the_programs_take(
    routine: str, device: DeviceModel, owners: int, panel_worker: bool
) -> None:
    layout = TileLayout(8192, 8192, 512, 512 if routine == "solve" else 0)
    made = set_up(layout, owners, panel_worker=panel_worker, routine=routine)
    model = MachineModel((device,) * owners + (cores(8),) * panel_worker)
    run = simulate(made.programs, made.traffic, made.graph, model, source="in place")
    at = owners if panel_worker else None
    stages = Stages(ROUTINES[routine].tasks, layout, model, range(owners), at, "float64")
    assert stages.seconds() == pytest.approx(run.makespan, rel=0.05)
