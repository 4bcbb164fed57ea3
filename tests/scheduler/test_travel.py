"""What is copied between the host and GPUs, counted with virtual ones: of triangles only these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hetero_la
from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.exchange.columns import Collector
from hetero_la.scheduler.links.link_ends import Sender
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from hetero_la.tiles.kernels.device import Array, Queue
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.scheduler.recovery import local_cluster
from tests.support import DTYPES, assert_close, covering, host, positive, random

N, NB = 150, 10
GPUS = tuple(WorkerInfo(f"gpu{i}", "gpu", virtual=True) for i in range(2))


class CountingGpu(VirtualGpu):
    """Counts the bytes that it copies to and from an array of the user's."""

    def __init__(self, name: str, loaded: Array, stored: Array) -> None:
        super().__init__(name)
        self.arrays, self.nbytes = (loaded, stored), [0, 0]

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        for place, (array, end) in enumerate(zip(self.arrays, (source, target), strict=True)):
            if np.shares_memory(array, end):
                self.nbytes[place] += source.nbytes
        super().copy(target, source, queue)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory in which nothing has been written does not pass for zeros."""
        array = super().empty(shape, dtype)
        array.fill(np.nan if array.dtype.kind in "fc" else -1)
        return array


def run(
    routine: str, a: NDArray, b: NDArray | None = None, workers: tuple[WorkerInfo, ...] = GPUS
) -> tuple[Plan, NDArray, list[int]]:
    """The plan of a run, its result, and the bytes of the matrix that it has loaded and stored."""
    nrhs = 0 if b is None else b.shape[1]
    problem = Problem(routine, *a.shape, nrhs, a.dtype)
    plan = make_plan(problem, Options(nb=NB), workers, Given(True))
    target = np.full((len(a), a.shape[1] + nrhs), np.inf, a.dtype, order="F")
    inside = target[:, : a.shape[1]]
    devices: list[Any] = [
        CountingGpu(w.name, a, inside) if w.kind == "gpu" else CpuDevice(w.name) for w in workers
    ]
    run_in_threads(plan.job(), ArrayStorage(a, target, b), devices)
    counted = [device.nbytes for device in devices if isinstance(device, CountingGpu)]
    return plan, target, [sum(one) for one in zip(*counted, strict=True)]


def below(layout: TileLayout, itemsize: int) -> int:
    """Bytes of the matrix's tile columns from their diagonal tiles down."""
    columns = map(layout.columns, range(layout.nt))
    return sum((layout.m - start) * (stop - start) for start, stop in columns) * itemsize


@pytest.mark.parametrize(("order", "dtype"), covering(["F", "C"], DTYPES))
def test_cholesky_copies_tile_columns_from_the_diagonal_down(order: Any, dtype: str) -> None:
    a = np.array(positive(N, dtype), order=order)
    a[np.triu_indices(N, NB)] = 7  # nobody reads it
    plan, found, nbytes = run("cholesky", a)
    expected = below(plan.layout, a.itemsize)
    assert nbytes == [expected, expected]
    assert expected < 0.65 * a.nbytes
    assert plan.simulate().bytes_host.sum() == sum(nbytes)
    factor = np.linalg.cholesky(positive(N, dtype))
    assert_close(np.tril(found), factor, limit=1e-4 if dtype in DTYPES[::2] else 1e-12)
    above = np.triu_indices(N, 2 * NB)
    assert np.array_equal(found[above], a[above])  # as in LAPACK's result


def test_a_positive_solve_loads_the_triangle_and_all_right_hand_sides() -> None:
    a, b = np.asfortranarray(positive(N)), random(N, 3)
    plan, found, nbytes = run("solve_positive", a, b)
    assert nbytes == [below(plan.layout, 8)] * 2
    assert_close(found[:, N:], np.linalg.solve(a, b))
    assert plan.simulate().bytes_host.sum() == sum(nbytes) + 2 * b.nbytes


@pytest.mark.parametrize("routine", ["lu", "qr"])
def test_full_matrices_are_copied_whole(routine: str) -> None:
    a = random(N)
    plan, _, nbytes = run(routine, a)
    assert nbytes == [a.nbytes, a.nbytes]
    assert plan.simulate().bytes_host.sum() == sum(nbytes)


def test_workers_that_share_the_result_also_copy_what_no_task_touches() -> None:
    cpus = tuple(WorkerInfo(f"cpu{i}", "cpu") for i in range(2))
    a = positive(N)
    for workers in (cpus, (*GPUS[:1], *cpus[:1])):
        _, found, _ = run("cholesky", a, workers=workers)
        assert_close(np.tril(found), np.linalg.cholesky(a))
        assert np.array_equal(np.triu(found, NB), np.triu(a, NB))


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("virtual_gpus", "numpy"),
        pytest.param("gpus", "numpy", marks=pytest.mark.gpu),
        pytest.param("gpus", "cupy", marks=pytest.mark.gpu),
    ],
)
def test_the_other_triangle_stays_in_place_and_is_copied_elsewhere(
    kind: str, module: str, order: Any, lower: bool
) -> None:
    xp = pytest.importorskip(module)
    a = np.array(positive(N), order=order)
    unread = np.triu_indices(N, 1) if lower else np.tril_indices(N, -1)
    a[unread] = -3
    workers = {kind: 2 if kind == "virtual_gpus" else gpu_count()}
    with hetero_la.Cluster(cpus=0, **workers) as cluster:
        # Where the array has the other order, the factor in its place is that of the transpose.
        for overwrite in {False, lower == (order == "F")}:
            given = xp.array(a, order=order)
            factors = hetero_la.cho_factor(
                given, lower, overwrite_a=overwrite, client=cluster, nb=NB
            )
            c = host(factors.c)
            assert (c[unread] == -3).all()
            assert_close(np.tril(c) if lower else np.triu(c).T, np.linalg.cholesky(positive(N)))


def test_what_is_expected_to_arrive_is_what_travels() -> None:
    plan = make_plan(Problem("cholesky", N, N, 0, np.float64), Options(nb=NB), GPUS, Given(True))
    elements = plan.stages().elements_loaded()
    assert sum(elements) * 8 == below(plan.layout, 8)


def test_between_processes_only_the_triangle_is_sent_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    received: list[int] = []
    put, receive = Sender.put, Collector._receive

    def counting_put(self: Any, topic: str, header: Any, arrays: Any, *rest: Any) -> None:
        sent.extend(array.nbytes for array in arrays)
        put(self, topic, header, arrays, *rest)

    def counting_receive(self: Any, header: Any, arrays: Any, release: Any) -> None:
        received.extend(array.nbytes for array in arrays)
        receive(self, header, arrays, release)

    monkeypatch.setattr(Sender, "put", counting_put)
    monkeypatch.setattr(Collector, "_receive", counting_receive)
    a = positive(N)
    with local_cluster(2) as client:
        factors = hetero_la.cho_factor(a, lower=True, client=client, nb=NB)
    triangle = below(TileLayout(N, N, NB), 8)
    assert (sum(sent), sum(received)) == (triangle, triangle)
    assert_close(np.tril(factors.c), np.linalg.cholesky(a))
    assert np.array_equal(np.triu(factors.c, NB), np.triu(a, NB))
