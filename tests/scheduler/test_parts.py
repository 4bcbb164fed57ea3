"""Results of LU in parts of the rows, which leave for the host while the run goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.planning.decisions import Problem as Planned
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.machine.device import H200
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.lookahead import Order
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.program.instructions import CallKernel, StoreRows
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import (
    DTYPES,
    Values,
    arriving,
    assert_lu_of_scipy,
    covering,
    priorities,
    problem,
    random_order,
    run_by_messages,
    run_in_all_ways,
    set_up,
)

#: Rows, columns, panels in a block, and parts: as many as steps, fewer, more.
CASES = [
    (38, 38, 1, 2), (38, 38, 1, 13), (38, 38, 1, 50), (38, 38, 3, 4), (41, 26, 1, 3),
    (26, 41, 1, 3), (26, 41, 2, 4), (5, 5, 1, 2), (2, 2, 1, 2),
]  # fmt: skip
Case = tuple[int, int, int, int]


def layout_of(case: Case) -> TileLayout:
    m, n, per_block, parts = case
    return TileLayout(m, n, 3, per_block=per_block, parts=parts)


@pytest.mark.parametrize(("case", "dtype"), covering(CASES, DTYPES))
@pytest.mark.parametrize("granularity", ["column", "tile"])
def test_any_order_gives_scipy_s_result(case: Case, granularity: str, dtype: str) -> None:
    given = problem("lu", layout_of(case), dtype)
    graph = ROUTINES["lu"].tasks(given.layout, granularity)
    for seed in range(2):
        array, order = given.a.copy(order="F"), random_order(graph, seed)
        assert_lu_of_scipy(
            given, array, run_in_order(graph, order, array, CpuDevice(), KernelOptions())
        )


@pytest.mark.parametrize("pace", [1, 2, 4])
@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("case", CASES)
def test_what_late_columns_read_is_overwritten_after_that(
    case: Case, depth: int, pace: int
) -> None:
    graph = ROUTINES["lu"].tasks(layout_of(case))
    keys = priorities(Order(graph, depth, arriving(graph.layout, pace)), graph)
    assert graph.is_topological(sorted(range(len(graph)), key=keys.__getitem__))


@pytest.mark.parametrize(
    ("case", "owners", "panel", "depth", "late"),
    covering(CASES, (1, 2, 3), (False, True), range(3), (False, True)),
)
def test_programs_give_scipy_s_result(
    case: Case, owners: int, panel: bool, depth: int, late: bool
) -> None:
    given = problem("lu", layout_of(case))
    arrival = arriving(given.layout) if late else None
    made = set_up(given.layout, owners, panel_worker=panel, depth=depth, arrival=arrival)
    simulate(made.programs, made.traffic, made.graph, MachineModel((H200,) * (owners + panel)))
    for found, values in run_in_all_ways("lu", given, owners, panel, depth, arrival):
        assert_lu_of_scipy(given, found, values)


@pytest.mark.parametrize("done", [1, 4, 5, 9])
def test_a_run_goes_on_inside_a_part(done: int) -> None:
    given = problem("lu", layout_of((38, 38, 1, 3)))
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


@pytest.mark.parametrize(("m", "n", "owners"), [(48, 48, 1), (60, 48, 2), (48, 60, 3)])
def test_rows_of_a_part_are_stored_before_the_steps_of_the_next(
    m: int, n: int, owners: int
) -> None:
    layout = TileLayout(m, n, 3, parts=4)
    made = set_up(layout, owners)
    for program in made.programs:
        stored = {column: np.zeros(layout.mt, int) for column in program.columns}
        reached = 0
        for i in program.instructions:
            if isinstance(i, CallKernel):
                reached = max(reached, i.step)
            if isinstance(i, StoreRows):
                _, column, start, stop = i.region
                stored[column][start:stop] += 1
                # The first rows are on their way long before the last step.
                assert stop > layout.part_ends[-2] or reached <= stop + 2
        assert all((rows == 1).all() for rows in stored.values())


def planned(kinds: str, n: int, on_host: bool) -> Plan:
    workers = tuple(
        WorkerInfo(f"{kind}{at}", kind, f"inproc://{at}", device=at)  # type: ignore[arg-type]
        for at, kind in enumerate(kinds.split())
    )
    asked = Planned("lu", n, n, 0, np.dtype(float))
    return make_plan(asked, Options(nb=100), workers, Given(on_host))


@pytest.mark.parametrize(
    ("kinds", "n", "on_host", "parts"),
    [
        ("gpu", 3200, True, 8), ("gpu gpu", 3200, True, 8), ("gpu", 1600, True, 4),
        ("gpu", 300, True, 1), ("gpu", 3200, False, 1), ("cpu", 3200, True, 1),
    ],
)  # fmt: skip
def test_where_results_leave_in_parts(kinds: str, n: int, on_host: bool, parts: int) -> None:
    plan = planned(kinds, n, on_host)
    assert plan.layout.parts == parts
    if parts > 1:
        before = replace(plan.layout, parts=1)
        assert len(ROUTINES["lu"].tasks(before).blocks) < len(plan.graph.blocks)
