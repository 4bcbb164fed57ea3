"""Two-level blocking of LU: in any order, in programs, by messages, lost workers, predictions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from distributed import Client

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.planning.planner import plan
from hetero_la.scheduler.machine.device import H200
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.lookahead import Order
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.testing.residuals import lu_ratio
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from tests.scheduler.recovery import die_at, local_cluster
from tests.support import (
    DTYPES,
    Values,
    arriving,
    assert_lu_of_scipy,
    covering,
    priorities,
    problem,
    random,
    random_order,
    run_by_messages,
    run_in_all_ways,
    set_up,
)

NB = 3
#: Routine, rows, columns, right-hand sides, and panels in a block: no block, one, several.
CASES = [
    *(("lu", m, n, 0, per_block) for m, n in ((5, 5), (38, 38), (41, 26), (26, 41))
      for per_block in (2, 3, 4)),
    ("lu", 20, 9, 0, 20), ("solve", 37, 37, 5, 2), ("solve", 37, 37, 40, 3),
    ("inverse", 37, 37, 37, 3),
]  # fmt: skip
Case = tuple[str, int, int, int, int]


def layout_of(case: Case) -> TileLayout:
    return TileLayout(*case[1:3], NB, case[3], per_block=case[4])


def test_panels_of_the_first_half_are_in_blocks() -> None:
    layout = layout_of(("lu", 38, 38, 0, 2))
    blocks = {layout.block(k) for k in range(13)}
    assert sorted(blocks) == [(0, 2), (2, 4), (4, 6), *((k, k + 1) for k in range(6, 13))]
    graph = ROUTINES["lu"].tasks(layout)
    wide = [task for task in graph.tasks if task.kind == "gemm_block"]
    assert {task.step for task in wide} == {1, 3, 5}
    assert {task.column for task in wide if task.step == 3} == set(range(4, 13))


@pytest.mark.parametrize(("case", "dtype"), covering(CASES, DTYPES))
@pytest.mark.parametrize("granularity", ["column", "tile"])
def test_any_order_gives_scipy_s_result(case: Case, granularity: str, dtype: str) -> None:
    given = problem(case[0], layout_of(case), dtype)
    graph = ROUTINES[case[0]].tasks(given.layout, granularity)
    right = np.full((case[1], case[3]), np.nan, dtype) if given.b is None else given.b
    for seed in range(2):
        array = np.asfortranarray(np.hstack([given.a, right]))
        order = random_order(graph, seed)
        assert_lu_of_scipy(
            given, array, run_in_order(graph, order, array, CpuDevice(), KernelOptions())
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_priorities_are_a_topological_order_and_blocks_look_ahead(case: Case) -> None:
    graph = ROUTINES[case[0]].tasks(layout_of(case))
    for depth, pace in itertools.product(range(4), (None, 0, 2, 50)):
        order = Order(graph, depth, None if pace is None else arriving(graph.layout, pace))
        keys = priorities(order, graph)
        places = sorted(range(len(graph)), key=lambda index: keys[index])
        assert graph.is_topological(places)
        if depth and pace is None and graph.layout.blocked > case[4]:
            # All panels of the second block come before the trailing update with the first one.
            tasks = [graph.tasks[index] for index in places]
            panels = [at for at, t in enumerate(tasks) if t.kind == "getrf"]
            rest = (case[4] - 1, graph.layout.nt - 1)
            update = [(t.step, t.column) if t.kind == "gemm_block" else None for t in tasks]
            assert sum(at < update.index(rest) for at in panels) >= 2 * case[4]


@pytest.mark.parametrize(
    ("case", "owners", "panel", "depth"), covering(CASES, (1, 2, 3), (False, True), range(4))
)
def test_programs_give_scipy_s_result(case: Case, owners: int, panel: bool, depth: int) -> None:
    given = problem(case[0], layout_of(case))
    made = set_up(given.layout, owners, panel_worker=panel, depth=depth, routine=case[0])
    run = simulate(
        made.programs, made.traffic, made.graph, MachineModel((H200,) * (owners + panel))
    )
    assert run.makespan > 0  # and nobody waits for ever
    for found, values in run_in_all_ways(case[0], given, owners, panel, depth):
        assert_lu_of_scipy(given, found, values)


@pytest.mark.parametrize("done", [1, 2, 3, 5, 7])
def test_a_run_goes_on_inside_a_block(done: int) -> None:
    given = problem("lu", layout_of(("lu", 38, 38, 0, 3)))
    saved: dict[int, Values] = {}
    made = set_up(given.layout, 2, routine="lu", checkpoints=[done])
    assert_lu_of_scipy(given, *run_by_messages(made, given.a, None, saved=saved))
    array = given.a.copy(order="F")
    for (name, index), block in saved[done].items():
        if name == "A":
            array[:, slice(*given.layout.columns(index))] = block
    values = {key: value for key, value in saved[done].items() if key[0] != "A"}
    left = set_up(given.layout, 3, routine="lu", done=done)
    found, later = run_by_messages(left, array, None, given=values)
    assert_lu_of_scipy(given, found, values | later)


@pytest.mark.parametrize("checkpoint", [None, 1, 7])
@pytest.mark.exhaustive
def test_a_lost_worker(checkpoint: int | None) -> None:
    a = random(240)
    with local_cluster(3) as client:
        client.run(die_at, "getrf", 3, workers=[sorted(client.scheduler_info()["workers"])[1]])
        found = factored(a, client, checkpoint=checkpoint)
    assert len(found.timing.losses) == 1


def factored(a: np.ndarray, client: Client, **options: int | None) -> hetero_la.LUFactors:
    found = hetero_la.lu_factor(a, nb=8, coarse=24, client=client, **options)
    assert found.plan.layout.blocked == 15
    assert lu_ratio(a, *found) < 1
    assert np.array_equal(found.piv, scipy.linalg.lu_factor(a)[1])
    return found


def test_threads_and_virtual_gpus() -> None:
    for workers in ({"cpus": 2}, {"cpus": 1, "virtual_gpus": 2}):
        with hetero_la.Cluster(**workers, gpus=0) as cluster:
            for lookahead, panel in itertools.product((0, 1, 2), ("auto", "cpu")):
                if panel == "auto" or "virtual_gpus" in workers:
                    factored(random(240), cluster, lookahead=lookahead, panel=panel)


@pytest.mark.parametrize("dtype", "fdFD")
def test_tiles_of_one_column(dtype: str) -> None:
    """Of which NumPy does not know the order in memory."""
    a = random(21, dtype=dtype)
    assert lu_ratio(a, *hetero_la.lu_factor(a, nb=1, coarse=3)) < 1


def test_a_singular_matrix_has_lapack_s_info() -> None:
    a = np.ones((48, 48))
    with pytest.warns(scipy.linalg.LinAlgWarning, match="exactly zero"):
        one = hetero_la.lu_factor(a, nb=4)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="exactly zero"):
        two = hetero_la.lu_factor(a, nb=4, coarse=8)
    assert np.array_equal(one.piv, two.piv)
    assert np.array_equal(one.lu, two.lu)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coarse": 16}, "coarse must be a multiple of nb, .* coarse=16 and nb=None"),
        ({"nb": 8, "coarse": 12}, "coarse=12 and nb=8"),
        ({"nb": "2x8+4", "coarse": 16}, r"coarse=16 and nb=2x8\+4"),
        ({"nb": 8, "coarse": 0}, "coarse must be a positive integer or None, not 0"),
        ({"nb": 8, "coarse": 16.0}, "coarse must be a positive integer or None, not 16.0"),
        ({"nb": 8, "coarse": 16, "order": "left"}, "coarse is for the right-looking order"),
    ],
)
def test_bad_widths(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hetero_la.Options(**options)


def test_other_factorizations_have_no_two_levels() -> None:
    with pytest.raises(ValueError, match=r"coarse is for LU with partial pivoting, .* cholesky"):
        hetero_la.cho_factor(np.eye(40), nb=8, coarse=16)


def test_predictions_know_the_wider_update() -> None:
    """On a GPU whose products of few columns are slow, two levels win: in all predictions."""
    workers = [WorkerInfo("gpu0", "gpu", device=0)]
    one, two = (
        plan("lu", (20480, 20480), workers=workers, panel="gpu", nb=256, coarse=coarse)
        for coarse in (None, 1024)
    )
    assert "; the first 40 in blocks of 4" in two.explain()
    slow = MachineModel((replace(H200, gemm_inner_half=400.0),))
    seconds = [simulate(p.programs, p.traffic, p.graph, slow, p.dtype).makespan for p in (one, two)]
    assert seconds[1] < 0.9 * seconds[0]
    for planned in (one, two):
        quick = planned.stages().seconds()
        assert quick == pytest.approx(planned.simulate().makespan, rel=0.05)
