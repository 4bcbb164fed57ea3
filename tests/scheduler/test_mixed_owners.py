"""Programs of GPUs and CPU workers that all own columns, of unequal speed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.storage.layout import TileLayout
from tests.support import (
    DTYPES,
    Engine,
    LazyGpu,
    Problem,
    Setup,
    arriving,
    assert_close,
    covering,
    problem,
    run_by_messages,
    run_in_threads,
    set_up,
)

NB = 4


class Mixed(NamedTuple):
    """Speeds of some GPUs, and of the CPU workers beside them."""

    gpus: tuple[float, ...]
    cpus: tuple[float, ...]

    @property
    def shared(self) -> range:
        """CPU workers have their columns in the memory of the result."""
        return range(len(self.gpus), len(self.gpus) + len(self.cpus))


MIXED = [
    Mixed((1.0,), (1.0,)), Mixed((3.0,), (1.0,)), Mixed((1.0,), (2.0,)),
    Mixed((4.0, 2.0), (1.0,)), Mixed((1.0,), (1.0, 1.0)), Mixed((2.0, 1.0), (1.0, 3.0)),
]  # fmt: skip
#: Rows, columns, right-hand sides.
CASES = {
    "lu": [(1, 1, 0), (31, 31, 0), (39, 22, 0), (22, 39, 0)],
    "solve": [(1, 1, 1), (31, 31, 9)],
    "inverse": [(31, 31, 31)],
    "cholesky": [(1, 1, 0), (35, 35, 0)],
    "solve_positive": [(35, 35, 9)],
    "qr": [(31, 31, 0), (39, 22, 0), (22, 39, 0)],
    "explicit_q": [(39, 22, 39)],
    "lstsq": [(39, 22, 9)],
    "minimum_norm": [(39, 22, 9)],
}


def set_up_mixed(
    routine: str, shape: tuple[int, int, int], team: Mixed, depth: int, late: bool = False
) -> Setup:
    layout = TileLayout(*shape[:2], NB, shape[2])
    return set_up(
        layout, len(team.gpus) + len(team.cpus), depth=depth, routine=routine,
        speeds=[*team.gpus, *team.cpus], shared=team.shared,
        arrival=arriving(layout) if late else None,
    )  # fmt: skip


def check(given: Problem, array: np.ndarray) -> None:
    assert_close(array, given.expected, limit=1e-9 if np.finfo(given.a.dtype).eps < 1e-9 else 2e-2)


def run(made: Setup, gpus: Sequence[Device], team: Mixed, given: Problem) -> np.ndarray:
    devices = [*gpus, *(CpuDevice(f"cpu{i}") for i in range(len(team.cpus)))]
    return run_in_threads(made, devices, given.a, given.b)[0]


@pytest.mark.parametrize("team", MIXED)
@pytest.mark.parametrize(
    "routine",
    [pytest.param(routine, marks=[] if routine in ("lu", "solve") else pytest.mark.exhaustive)
     for routine in CASES],
)  # fmt: skip
def test_columns_are_dealt_out_in_proportion(routine: str, team: Mixed) -> None:
    shape = tuple(120 * bool(size) for size in CASES[routine][-1])
    made = set_up_mixed(routine, shape, team, 1)
    counts = np.array([len(program.columns) for program in made.programs])
    speeds = np.array([*team.gpus, *team.cpus])
    assert np.abs(counts - counts.sum() * speeds / speeds.sum()).max() <= 1


@pytest.mark.parametrize("depth", [0, pytest.param(1, marks=pytest.mark.exhaustive), 2])
@pytest.mark.parametrize("routine", CASES)
@pytest.mark.exhaustive
def test_programs_of_mixed_owners_end(routine: str, depth: int) -> None:
    """A CPU worker is stopped by what it waits for, and a GPU by what it cannot enqueue."""
    for team, late, shape in itertools.product(MIXED, (False, True), CASES[routine]):
        made = set_up_mixed(routine, shape, team, depth, late)
        for virtual in (False, True):
            workers = [WorkerInfo(f"gpu{i}", "gpu", virtual=virtual) for i in range(len(team.gpus))]
            workers += [WorkerInfo(f"cpu{i}", "cpu") for i in range(len(team.cpus))]
            run = simulate(
                made.programs, made.traffic, made.graph, MachineModel.nominal(workers),
                host_arrays=True,
            )  # fmt: skip
            assert run.makespan > 0


@pytest.mark.parametrize(
    ("routine", "team", "dtype", "late"), covering(CASES, MIXED, DTYPES, [False, True])
)
def test_mixed_owners_in_threads_give_scipy_s_result(
    routine: str, team: Mixed, dtype: str, late: bool
) -> None:
    for depth, shape in itertools.product((0, 2), CASES[routine]):
        made = set_up_mixed(routine, shape, team, depth, late)
        given = problem(routine, made.graph.layout, dtype)
        gpus = [VirtualGpu(f"gpu{i}") for i in range(len(team.gpus))]
        check(given, run(made, gpus, team, given))


@pytest.mark.parametrize(("routine", "team", "late"), covering(CASES, MIXED, [False, True]))
def test_events_order_the_queues_beside_cpu_workers(routine: str, team: Mixed, late: bool) -> None:
    for depth, shape in itertools.product((0, 1), CASES[routine]):
        made = set_up_mixed(routine, shape, team, depth, late)
        given, engine = problem(routine, made.graph.layout), Engine(depth)
        check(given, run(made, [LazyGpu(engine) for _ in team.gpus], team, given))


@pytest.mark.parametrize(("routine", "team"), covering(CASES, MIXED))
def test_messages_are_all_that_mixed_owners_need(routine: str, team: Mixed) -> None:
    for in_order, shape in itertools.product((False, True), CASES[routine]):
        made = set_up_mixed(routine, shape, team, 1)
        given = problem(routine, made.graph.layout)
        check(given, run_by_messages(made, given.a, given.b, in_order=in_order)[0])


@pytest.mark.parametrize("routine", [name for name in CASES if name != "cholesky"])
def test_in_the_result_s_memory_only_neighbours_are_merged(routine: str) -> None:
    """Else a CPU worker's call would also change the columns of a GPU between its own."""
    team = Mixed((2.0,), (1.0, 2.0))
    made = set_up_mixed(routine, CASES[routine][-1], team, 1)
    gaps = [
        any(not set(range(call.first, call.last + 1)) <= {*program.columns, call.first}
            for call in program.select(CallKernel))
        for program in made.programs
    ]  # fmt: skip
    assert gaps == [True, False, False]
