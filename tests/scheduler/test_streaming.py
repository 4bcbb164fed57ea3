"""Runs with only some columns in memory at a time."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.graph.task_graph import TaskGraph
from hetero_la.scheduler.placement.column_groups import ColumnGroups
from hetero_la.scheduler.placement.distribution import Distribution
from hetero_la.scheduler.placement.placement import Placement
from hetero_la.scheduler.placement.streamed_order import StreamedOrder
from hetero_la.scheduler.program.build import build_programs
from hetero_la.scheduler.program.instructions import LoadColumn, Program, ReadBack, StoreRows
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.tiles.arrays.errors import StaleShardError
from hetero_la.tiles.arrays.transfer import gpu_count, pinned_empty
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage import staging
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.scheduler.late_gpus import LateGpu
from tests.support import covering

RNG = np.random.default_rng(11)
NB = 10


class Case(NamedTuple):
    """A routine and the sizes of its matrix."""

    routine: str
    m: int
    n: int
    nrhs: int = 0

    @property
    def layout(self) -> TileLayout:
        return TileLayout(self.m, self.n, NB, self.nrhs)

    @property
    def graph(self) -> TaskGraph:
        return ROUTINES[self.routine].tasks(self.layout)


CASES = [
    Case("lu", 100, 100), Case("lu", 107, 93), Case("lu", 93, 107), Case("lu_nopivot", 80, 80),
    Case("cholesky", 95, 95), Case("qr", 107, 93), Case("qr", 63, 97),
    Case("solve", 85, 85, 13), Case("solve_positive", 85, 85, 13), Case("lstsq", 97, 63, 13),
    Case("inverse", 80, 80, 80), Case("inverse_positive", 80, 80, 80),
    Case("explicit_q", 97, 73, 73),
]  # fmt: skip


def matrices(case: Case, dtype: Any = float) -> tuple[np.ndarray, np.ndarray | None]:
    a = RNG.standard_normal((case.m, case.n))
    if case.m == case.n:
        a = a @ a.T + case.n * np.eye(case.n)
    b = RNG.standard_normal((case.m, case.nrhs)) if ROUTINES[case.routine].factors == () else None
    made = case.graph.made_columns()
    return a.astype(dtype), None if b is None or made else b.astype(dtype)


def new_target(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype, order="F")


def programs_of(
    case: Case, workers: int, width: int | None, depth: int = 1
) -> tuple[list[Program], Any]:
    layout, graph = case.layout, case.graph
    columns = Distribution.cyclic(layout.nt + layout.rt, [1.0] * workers)
    groups = ColumnGroups.fill(layout, columns, [width] * workers) if width else None
    return build_programs(
        graph, Placement(graph, columns), columns, workers, depth=depth, groups=groups
    )


def run(
    case: Case, a: np.ndarray, b: np.ndarray | None, devices: list[Any], width: int | None,
    depth: int = 1,
) -> tuple[np.ndarray, Outcome]:  # fmt: skip
    programs, traffic = programs_of(case, len(devices), width, depth)
    job = Job(
        case.routine, programs, traffic.messages, (), case.layout, a.dtype, KernelOptions(), 1
    )
    target = new_target((case.m, case.n + case.nrhs), a.dtype)
    target[:] = np.nan
    return target, run_in_threads(job, ArrayStorage(a, target, b), devices)


def assert_same(case: Case, devices: list[Any], width: int, depth: int = 1) -> None:
    a, b = matrices(case)
    given = a.copy()
    expected, whole = run(case, a, b, [VirtualGpu("gpu")], None)
    found, streamed = run(case, a, b, devices, width, depth)
    assert np.array_equal(a, given)
    scale = np.nanmax(abs(expected))
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-10 * scale, equal_nan=True)
    assert whole.values.keys() == streamed.values.keys()
    for name, value in whole.values.items():
        assert np.allclose(streamed.values[name], value, rtol=1e-9, atol=1e-10 * scale), name


@pytest.mark.parametrize(("case", "width", "depth"), covering(CASES, [20, 30, 50], [0, 1, 2]))
def test_results_are_those_of_a_run_in_memory(case: Case, width: int, depth: int) -> None:
    assert_same(case, [VirtualGpu("gpu")], width, depth)


@pytest.mark.parametrize(
    ("case", "workers", "kind", "width"),
    covering(CASES, [2, 3], [VirtualGpu, CpuDevice], [20, 40]),
)
def test_several_workers(case: Case, workers: int, kind: type, width: int) -> None:
    assert_same(case, [kind(f"worker{w}") for w in range(workers)], width)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_left_to_chance(case: Case, workers: int) -> None:
    """What queues and events do not order may be done in any order."""
    for seed in range(3):
        devices = [LateGpu(f"gpu{w}", 10 * seed + w) for w in range(workers)]
        assert_same(case, devices, width=20 + 10 * (seed % 3))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_stores_by_other_threads(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """To pageable memory, a thread copies by pinned buffers what the shard holds meanwhile."""
    monkeypatch.setattr(staging, "_PIECE", 256)
    monkeypatch.setattr(staging, "pinned_empty", np.empty)
    monkeypatch.setattr(staging, "on_device_index", lambda index: contextlib.nullcontext())
    for seed, workers in ((0, 1), (1, 2)):
        devices = [LateGpu(f"gpu{w}", 10 * seed + w, index=w) for w in range(workers)]
        assert_same(case, devices, width=20)


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_gpus(case: Case, workers: int, pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu_count() < workers:
        pytest.skip(f"needs {workers} GPUs")
    if pinned:
        monkeypatch.setattr(f"{__name__}.new_target", pinned_empty)
    for width in (20, 40):
        assert_same(case, [GpuDevice(w, f"gpu{w}") for w in range(workers)], width)


def test_a_missing_wait_is_found() -> None:
    """The device of the test before does show it."""
    case = Case("lu", 100, 100)
    a, _ = matrices(case)
    wrong = 0
    expected, _ = run(case, a, None, [VirtualGpu("gpu")], None)
    for seed in range(10):
        programs, traffic = programs_of(case, 1, 20)
        for read in programs[0].select(ReadBack):
            read.waits = ()
        job = Job("lu", programs, traffic.messages, (), case.layout, a.dtype, KernelOptions(), 1)
        target = np.zeros_like(a, order="F")
        with np.errstate(all="ignore"):
            run_in_threads(job, ArrayStorage(a, target), [LateGpu("gpu", seed)])
        wrong += not np.allclose(target, expected)
    assert wrong


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["lu", "cholesky", "qr", "solve", "inverse", "explicit_q"]),
    st.integers(1, 75), st.integers(1, 75), st.integers(1, 3), st.integers(1, 60),
    st.integers(0, 2),
)  # fmt: skip
def test_the_order_is_topological(
    routine: str, m: int, n: int, workers: int, width: int, depth: int
) -> None:
    if ROUTINES[routine].square:
        m = n
    case = Case(routine, max(m, n) if routine == "explicit_q" else m, n, n if n else 0)
    if routine in ("lu", "cholesky", "qr"):
        case = case._replace(nrhs=0)
    layout, graph = case.layout, case.graph
    columns = Distribution.cyclic(layout.nt + layout.rt, [1.0] * workers)
    groups = ColumnGroups.fill(layout, columns, [max(width, NB)] * workers)
    order = StreamedOrder(graph, depth, groups)
    keyed = sorted(
        (order.key(block, column), block.index(column))
        for block in graph.blocks
        for column in range(block.start, block.stop)
    )
    assert graph.is_topological([index for _, index in keyed])


def test_traffic_is_that_of_a_left_looking_factorization() -> None:
    """Each column goes there and back, and what is left of it is read once for each later group."""
    case = Case("cholesky", 100, 100)
    (program,), _ = programs_of(case, 1, 40)
    groups = ColumnGroups.fill(case.layout, Distribution.cyclic(10, [1.0]), [40])
    assert groups.group == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)
    assert len(program.select(LoadColumn)) == len(program.select(StoreRows)) == 10
    assert len(program.select(ReadBack)) == 4 + 8
    assert {read.region.index for read in program.select(ReadBack)} == set(range(8))
    assert program.capacity == 40
    assert program.largest_read_back(case.layout) <= 100 * NB


def test_a_failed_worker_ends_those_that_wait_for_its_columns() -> None:
    class Failing(VirtualGpu):
        def call(self, kernel: str, *args: Any) -> None:
            if kernel == "getrf":
                raise ZeroDivisionError("lost")
            super().call(kernel, *args)

    case = Case("lu", 100, 100)
    a, _ = matrices(case)
    with pytest.raises((ZeroDivisionError, StaleShardError)):
        run(case, a, None, [VirtualGpu("gpu0"), Failing("gpu1")], 20)
