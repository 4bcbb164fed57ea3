"""Tiles of several sizes: in any order, in programs, by messages, with values and predictions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.machine.device import H200
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes
from tests.support import (
    DTYPES,
    Problem,
    Values,
    assert_close,
    covering,
    pivots,
    problem,
    random_order,
    run_by_messages,
    run_in_all_ways,
    run_in_threads,
    set_up,
)

#: Growing, shrinking, in turns, one that is cut off, one for all, first one larger than all.
SIZES: list[TileSizes] = [(1, 3, 9, 14), (11, 6, 2), (2, 7, 2, 7, 2, 7), (5, 40), (4,), (50, 3)]
#: Routine, rows, columns, right-hand sides: nothing, tiny, ragged, tall, wide, many columns.
CASES = [
    *(("lu", *shape) for shape in ((0, 0, 0), (1, 1, 0), (23, 23, 0), (31, 12, 0), (12, 31, 0))),
    *(("solve", n, n, nrhs) for n, nrhs in ((1, 1), (23, 1), (19, 30))),
    *(("inverse", n, n, n) for n in (1, 19)),
    *(("cholesky", n, n, nrhs) for n, nrhs in ((0, 0), (23, 0), (19, 5))),
    *(("solve_positive", n, n, nrhs) for n, nrhs in ((19, 1), (23, 29))),
    *(("qr", *shape) for shape in ((0, 3, 0), (23, 23, 0), (31, 12, 6), (12, 31, 3))),
    *(("explicit_q", *shape) for shape in ((19, 19, 19), (31, 12, 31), (31, 12, 12), (12, 31, 12))),
    *((routine, m, n, nrhs) for routine in ("lstsq", "minimum_norm")
      for m, n, nrhs in ((1, 1, 1), (31, 12, 7), (24, 23, 30))),
]  # fmt: skip
CUT = [*itertools.product(CASES, SIZES)]
#: Owners, whether one more worker factors panels, look-ahead.
TEAMS = [(1, False, 0), (1, True, 1), (2, False, 2), (3, True, 1)]
Case = tuple[str, int, int, int]


def given_for(case: Case, sizes: TileSizes, dtype: str = "float64") -> Problem:
    return problem(case[0], TileLayout(*case[1:3], sizes, case[3]), dtype)


def check(given: Problem, found: np.ndarray, values: Values) -> None:
    """The array, pivots and reflectors are those of SciPy, however the matrix is cut."""
    limit = 1e-10 if np.finfo(found.dtype).eps < 1e-10 else 2e-2
    assert_close(found, given.expected, limit=limit)
    names, layout = {name for name, _ in values}, given.layout
    if "ipiv" in names and layout.kt:
        assert np.array_equal(pivots(values, layout), scipy.linalg.lu_factor(given.a)[1])
    if "tau" in names and layout.kt:
        tau = np.concatenate([values["tau", k] for k in range(layout.kt)])
        assert_close(tau, scipy.linalg.qr(given.a, mode="raw")[0][1], limit=limit)


@pytest.mark.parametrize(("sizes", "dtype"), covering(SIZES, DTYPES))
@pytest.mark.parametrize("granularity", ["column", "tile"])
def test_any_order_gives_scipy_s_result(granularity: str, sizes: TileSizes, dtype: str) -> None:
    for case in CASES:
        given = given_for(case, sizes, dtype)
        graph = ROUTINES[case[0]].tasks(given.layout, granularity)
        right = np.full((case[1], case[3]), np.nan, dtype) if given.b is None else given.b
        for seed in range(2):
            array = np.asfortranarray(np.hstack([given.a, right]))
            order = random_order(graph, seed)
            check(given, array, run_in_order(graph, order, array, CpuDevice(), KernelOptions()))


@pytest.mark.parametrize(("case", "sizes", "team"), covering(CASES, SIZES, TEAMS))
def test_programs_give_scipy_s_result(
    case: Case, sizes: TileSizes, team: tuple[int, bool, int]
) -> None:
    given = given_for(case, sizes)
    for found, values in run_in_all_ways(case[0], given, *team):
        check(given, found, values)


@pytest.mark.parametrize(("case", "sizes"), CUT, ids=str)
def test_programs_are_simulated_with_the_shapes_that_they_have(
    case: Case, sizes: TileSizes
) -> None:
    layout = TileLayout(*case[1:3], sizes, case[3])
    made = set_up(layout, 2, depth=2, routine=case[0])
    run = simulate(made.programs, made.traffic, made.graph, MachineModel((H200, H200)))
    assert run.makespan > 0 or not len(made.graph)
    work = sum(sum(program.call_flops(made.graph).values()) for program in made.programs)
    assert work == pytest.approx(sum(map(made.graph.flops, made.graph.tasks)))


@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_left_of_a_run_has_the_same_tiles(sizes: TileSizes) -> None:
    """A run that goes on from a checkpoint."""
    given = given_for(("qr", 31, 23, 5), sizes)
    layout = given.layout
    done = layout.kt // 2
    saved: dict[int, Values] = {}
    made = set_up(layout, 2, routine="qr", checkpoints=[done] if done else [])
    check(given, *run_by_messages(made, given.a, given.b, saved=saved))
    if not done:
        return
    array = np.asfortranarray(np.hstack([given.a, given.b]))
    for (name, index), block in saved[done].items():
        if name == "A":
            array[:, slice(*layout.columns(index))] = block
    values = {key: value for key, value in saved[done].items() if key[0] != "A"}
    left = set_up(layout, 3, routine="qr", done=done)
    found, made_later = run_by_messages(
        left, array[:, :23], np.asfortranarray(array[:, 23:]), given=values
    )
    check(given, found, values | made_later)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_cut_gives_the_same_factors(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for routine in ("lu", "qr", "cholesky"):
        for _ in range(10):
            n = int(rng.integers(1, 40))
            sizes = tuple(rng.integers(1, 20, size=rng.integers(1, 6)).tolist())
            given = given_for((routine, n, n, 0), sizes, dtype)
            made = set_up(given.layout, 2, routine=routine)
            check(given, *run_in_threads(made, [VirtualGpu(), VirtualGpu()], given.a))
