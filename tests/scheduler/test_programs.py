"""Programs: what is merged, what travels, and that they end, whoever runs them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg

from hetero_la.scheduler.costs import MachineModel
from hetero_la.scheduler.simulate import simulate
from hetero_la.scheduler.workers import WorkerInfo
from hetero_la.tiles.kernels.cpu import CpuDevice, VirtualGpu
from hetero_la.tiles.layout import TileLayout
from tests.support import (
    Engine,
    LazyGpu,
    Setup,
    assert_close,
    pivots,
    random,
    run_by_messages,
    run_in_threads,
    set_up,
)

NB = 4
#: Tile rows, tile columns, elements cut off the last tiles, tile columns of right-hand sides.
SHAPES = [
    *((m, n, cut, 0) for m, n in itertools.product((1, 2, 4, 7), repeat=2) for cut in (0, 1)),
    *((n, n, cut, r) for n in (1, 2, 3, 5, 8) for cut in (0, 1) for r in (1, 2, 3)),
]  # fmt: skip
#: Owners, whether one more worker factors panels, look-ahead, whether they share memory.
TEAMS = [
    (owners, panel, depth, shared)
    for owners, panel, depth, shared in itertools.product(
        (1, 2, 3, 5), (False, True), (0, 1, 2, 3), (False, True)
    )
    if not (shared and panel)
]


def layout_of(mt: int, nt: int, cut: int, rt: int) -> TileLayout:
    return TileLayout(mt * NB - cut, nt * NB - cut, NB, max(rt * NB - cut, 0))


def model_of(owners: int, panel: bool, *, virtual: bool) -> MachineModel:
    kinds = ["gpu"] * owners + ["cpu"] * panel
    return MachineModel.nominal(
        tuple(WorkerInfo(f"w{i}", kind, virtual=virtual) for i, kind in enumerate(kinds))
    )


# --- that they end


@pytest.mark.parametrize(("owners", "panel", "depth", "shared"), TEAMS)
def test_programs_end(owners: int, panel: bool, depth: int, shared: bool) -> None:
    models = [model_of(owners, panel, virtual=virtual) for virtual in (True, False)]
    for shape in SHAPES:
        made = set_up(layout_of(*shape), owners, panel_worker=panel, depth=depth, shared=shared)
        for model in models:
            run = simulate(made.programs, made.traffic, made.graph, model)
            assert run.makespan > 0


def check(made: Setup, found: tuple[np.ndarray, dict], a: np.ndarray, b: np.ndarray | None) -> None:
    array, values = found
    layout = made.graph.layout
    lu, piv = scipy.linalg.lu_factor(a)
    assert np.array_equal(pivots(values, layout), piv)
    assert_close(array[:, : layout.n], lu)
    if b is not None:
        assert_close(array[:, layout.n :], np.linalg.solve(a, b), limit=1e-8)


def problem(layout: TileLayout) -> tuple[np.ndarray, np.ndarray | None]:
    b = random(layout.m, layout.nrhs, seed=2) if layout.nrhs else None
    return random(layout.m, layout.n, seed=1), b


REAL_SHAPES = [(1, 1, 1, 0), (5, 5, 1, 0), (7, 3, 1, 0), (3, 7, 1, 0), (6, 6, 1, 1), (5, 5, 0, 3)]
REAL_TEAMS = [team for team in TEAMS if team[0] != 5 and team[2] < 3]


@pytest.mark.parametrize(("owners", "panel", "depth", "shared"), REAL_TEAMS)
def test_threads_compute_the_factors(owners: int, panel: bool, depth: int, shared: bool) -> None:
    for shape in REAL_SHAPES:
        layout = layout_of(*shape)
        made = set_up(layout, owners, panel_worker=panel, depth=depth, shared=shared)
        kind = CpuDevice if shared else VirtualGpu
        devices = [kind() for _ in range(owners)] + [CpuDevice()] * panel
        a, b = problem(layout)
        check(made, run_in_threads(made, devices, a, b), a, b)


@pytest.mark.parametrize(
    ("owners", "panel", "depth"), [team[:3] for team in REAL_TEAMS if not team[3]]
)
def test_messages_are_all_that_slices_need(owners: int, panel: bool, depth: int) -> None:
    for seed, shape in enumerate(REAL_SHAPES):
        layout = layout_of(*shape)
        made = set_up(layout, owners, panel_worker=panel, depth=depth)
        a, b = problem(layout)
        check(made, run_by_messages(made, a, b, seed), a, b)


@pytest.mark.parametrize(
    ("owners", "panel", "depth"), [team[:3] for team in TEAMS if team[0] != 5 and not team[3]]
)
def test_events_order_the_queues(owners: int, panel: bool, depth: int) -> None:
    for shape in REAL_SHAPES:
        layout = layout_of(*shape)
        made = set_up(layout, owners, panel_worker=panel, depth=depth)
        a, b = problem(layout)
        for seed in range(4):
            engine = Engine(seed)
            devices = [LazyGpu(engine) for _ in range(owners)] + [CpuDevice()] * panel
            check(made, run_in_threads(made, devices, a, b), a, b)
