"""Dask arrays on the GPUs of one process: one task does the run, and blocks stay where they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of, wait
from numpy.typing import NDArray

import hetero_la
from hetero_la import Cluster
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.cluster.placement_plugin import RunTask
from hetero_la.scheduler.on_dask import inputs, run_graph, run_tasks
from hetero_la.scheduler.on_dask.inputs import Declared, Piece, TeamBuffer
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.run.local_storage import LocalStorage, Span
from hetero_la.tiles.arrays.errors import InsufficientMemoryError, StaleShardError
from hetero_la.tiles.arrays.transfer import device_index, gpu_count, on_device_of
from hetero_la.tiles.kernels.cpu.device import VirtualGpu
from tests.dask_support import any_shape_cases, assert_same, nothing_left, on_host, square_cases
from tests.support import DTYPES, host, random

NB = 16


@pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> ModuleType:
    return np if request.param == "virtual" else pytest.importorskip("cupy")


@pytest.fixture
def client(xp: ModuleType) -> Iterator[Client]:
    """Of a cluster of two GPUs, or of as many as there are."""
    kinds = {"virtual_gpus": 2} if xp is np else {"gpus": gpu_count()}
    with Cluster(cpus=0, **kinds) as cluster, cluster.get_client() as connected:
        yield connected


@pytest.fixture
def in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of a run comes in many tasks, however little it is."""
    monkeypatch.setattr(run_graph, "_LEAST_PORTION", 1)
    monkeypatch.setattr(run_graph, "_LEAST_GPU_PORTION", 1)


def chunked(xp: ModuleType, a: NDArray, chunks: Any = 13, order: Any = "C") -> da.Array:
    """A Dask array of a copy, whose chunks are on one GPU after the other."""

    def move(block: NDArray, block_id: tuple[int, ...]) -> Any:
        if xp is np:
            return np.array(block, order=order)
        with xp.cuda.Device(sum(block_id) % gpu_count()):
            return xp.array(block, order=order)

    x = da.from_array(a.copy(), chunks=chunks)
    return x.map_blocks(move, dtype=a.dtype, meta=xp.empty((0,) * a.ndim, a.dtype))


@pytest.mark.usefixtures("in_portions")
@pytest.mark.parametrize(
    ("order", "dtype"),
    [pytest.param("C", "float32", marks=pytest.mark.exhaustive), ("F", "float64"),
     ("C", "complex64"), pytest.param("F", "complex128", marks=pytest.mark.exhaustive)],
)  # fmt: skip
def test_all_functions_give_the_result_of_arrays(
    client: Client, xp: ModuleType, order: str, dtype: str
) -> None:
    cases = [*any_shape_cases(50, 33, dtype), *any_shape_cases(33, 50, dtype)]
    cases += square_cases(40, dtype)
    made = [
        case.call(lambda a: chunked(xp, a, 20, order=order), nb=NB, client=client) for case in cases
    ]
    for case, found in zip(cases, dask.compute(*made), strict=True):
        expected = case.call(nb=NB)
        expected = tuple(expected) if isinstance(expected, tuple) else expected
        found = tuple(found) if isinstance(found, tuple) else found
        assert_same(on_host(found), expected, dtype)
    assert nothing_left(client)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1), (2, 1)])
def test_small_and_empty_arrays(client: Client, xp: ModuleType, shape: tuple[int, int]) -> None:
    a = random(*shape)
    x = chunked(xp, a, 2)
    found = on_host(dask.compute(*hetero_la.lu_factor(x, client=client)))
    assert_same(found, tuple(hetero_la.lu_factor(a)))
    found = on_host(dask.compute(*hetero_la.qr(x, mode="economic", client=client)))
    assert_same(found, tuple(hetero_la.qr(a, mode="economic")))


def kinds_of_tasks(x: da.Array) -> dict[str, int]:
    """How many tasks of each kind of a run there are."""
    keys = sorted(
        str(key[0]).rsplit("-", 1)[0] for key, task in x.dask.to_dict().items()
        if isinstance(task, RunTask)
    )  # fmt: skip
    return {kind: len(list(some)) for kind, some in itertools.groupby(keys)}


def owners(client: Client) -> list[WorkerInfo]:
    """The worker of each block of factors of seven tile columns: pairs, if there are several."""
    workers = [worker for worker in worker_infos(client) if worker.kind == "gpu"]
    return [workers[j % len(workers)] for j in range(7 if len(workers) == 1 else 4)]


@pytest.mark.usefixtures("in_portions")
def test_one_task_does_the_run_and_blocks_stay_with_their_gpus(
    client: Client, xp: ModuleType
) -> None:
    a = random(100)
    factors = hetero_la.lu_factor(chunked(xp, a, 25), nb=NB, client=client)
    by_owner = owners(client)
    expected = {"open": 1, "load": 16, "run": 1, "check": 1, "result": len(by_owner)}
    found = kinds_of_tasks(factors.lu)
    assert {f"lu-{kind}": count for kind, count in expected.items()} == found
    factors = factors.persist()
    wait(list(factors))
    blocks = [future.result() for future in futures_of(factors.lu)]
    places = [client.who_has(future)[future.key] for future in futures_of(factors.lu)]
    assert [place for (place,) in places] == [worker.address for worker in by_owner]
    if xp is np:  # views of two shards
        assert len({id(block.base) for block in blocks}) == 2
    else:
        assert [device_index(block) for block in blocks] == [worker.device for worker in by_owner]
    found = hetero_la.lu_factor(a, nb=NB)
    assert_same(on_host(dask.compute(*factors)), tuple(found))
    del factors, blocks
    assert nothing_left(client)


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
def test_a_cpu_may_factor_the_panels(xp: ModuleType, panel: str) -> None:
    a = random(100)
    kinds = {"virtual_gpus": 2} if xp is np else {"gpus": gpu_count()}
    with Cluster(cpus=1, **kinds) as cluster, cluster.get_client() as client:
        lazy = hetero_la.lu_factor(chunked(xp, a, 30), nb=NB, panel=panel, client=client)
        assert_same(on_host(dask.compute(*lazy)), tuple(hetero_la.lu_factor(a, nb=NB)))


@pytest.mark.gpu
@pytest.mark.parametrize("cpus", [1, 2])
def test_workers_of_the_host_use_a_gpu_for_blocks_there(cpus: int) -> None:
    cupy = pytest.importorskip("cupy")
    a = random(100)
    with Cluster(cpus=cpus, gpus=0) as cluster, cluster.get_client() as client:
        lazy = hetero_la.lu_factor(chunked(cupy, a, 30), nb=NB, client=client)
        found = dask.compute(*lazy)
    assert {type(part) for part in found} == {cupy.ndarray}
    assert_same(on_host(found), tuple(hetero_la.lu_factor(a, nb=NB)))


@pytest.mark.usefixtures("in_portions")
def test_numbers_and_shapes_are_checked(client: Client, xp: ModuleType) -> None:
    a = random(60)
    a[50, 17] = np.nan
    x = chunked(xp, a)
    with pytest.raises(ValueError, match="a: array must not contain infs or NaNs"):
        hetero_la.lu_factor(x, client=client, nb=NB)[0].compute()
    found = hetero_la.lu_factor(x, client=client, nb=NB, check_finite=False)[0].compute()
    assert np.isnan(host(found)).any()
    short = x.map_blocks(lambda block: block[:1], dtype=a.dtype)
    with pytest.raises(ValueError, match=r"chunk .* of a has shape \(1, \d+\)"):
        hetero_la.lu_factor(short, client=client, nb=NB)[0].compute()
    assert nothing_left(client)


@pytest.mark.usefixtures("in_portions")
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_chunks_of_a_smaller_type_are_converted(client: Client, xp: ModuleType, dtype: str) -> None:
    a = random(60)
    wide = np.result_type(dtype, a.dtype)

    def narrow(block: Any) -> Any:
        with on_device_of(block):  # another GPU would not wait for the block
            return block.astype(dtype)

    x = chunked(xp, a.astype(wide)).map_blocks(narrow, dtype=wide, meta=xp.empty((0, 0), wide))
    found = hetero_la.lu_factor(x, client=client, nb=NB)
    assert_same(
        on_host(dask.compute(*found)),
        tuple(hetero_la.lu_factor(a.astype(dtype).astype(wide), nb=NB)),
    )


@pytest.mark.usefixtures("in_portions")
def test_the_graph_also_runs_without_its_workers(client: Client, xp: ModuleType) -> None:
    a = random(100)
    lazy = hetero_la.lu_factor(chunked(xp, a, 30), nb=NB, client=client)
    with dask.config.set(scheduler="threads"):
        found = dask.compute(*lazy)
    assert_same(on_host(found), tuple(hetero_la.lu_factor(a, nb=NB)))


@pytest.mark.usefixtures("in_portions")
def test_two_runs_at_once(client: Client, xp: ModuleType) -> None:
    a, b = random(150), random(150, seed=1)
    lazy = [hetero_la.lu_factor(chunked(xp, x, 40), nb=NB, client=client).lu for x in (a, b)]
    for future, x in zip([client.compute(one) for one in lazy], (a, b), strict=True):
        assert_same(on_host(future.result()), hetero_la.lu_factor(x, nb=NB).lu)
    del future
    assert nothing_left(client)


def test_too_little_memory_is_said_of_the_gpu(
    client: Client, xp: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = hetero_la.lu_factor(chunked(xp, random(100), 30), nb=NB, client=client)
    device = run_tasks.team_of(_job(lazy.lu), xp is not np)[0]  # the last may have a narrow column
    monkeypatch.setattr(device, "free_bytes", lambda: 10_000)
    with pytest.raises(InsufficientMemoryError, match=f"worker {device.name}, which has 10,000"):
        lazy.lu.compute()
    monkeypatch.undo()
    other = hetero_la.lu_factor(chunked(xp, random(90), 30), nb=NB, client=client)
    assert np.isfinite(host(other.lu.compute())).all()


def _job(x: da.Array) -> Any:
    (task,) = (task for key, task in x.dask.to_dict().items() if "-open-" in str(key))
    return task.args[0].job


def test_portions_come_in_any_order_and_only_before_the_run() -> None:
    devices = VirtualGpu("gpu0"), VirtualGpu("gpu1")
    spans: list[dict[int, Span]] = [{0: (0, 1), 2: (1, 2)}, {3: (0, 1), 1: (1, 2)}]
    arrays = [np.zeros((2, 2), order="F") for _ in spans]
    buffer = TeamBuffer(list(zip(devices, map(LocalStorage, arrays, spans), strict=True)))
    given = np.arange(8.0).reshape(2, 4)

    def portion(start: int, stop: int) -> list[tuple[Piece, NDArray]]:
        declared = Declared("a", (0, 0), (2, stop - start))
        return [(Piece(0, (((0, stop - start), (start, stop)),), declared), given[:, start:stop])]

    buffer.fill(1, portion(1, 4))
    with pytest.raises(StaleShardError, match=r"portions \[1\] of the input have filled a shard"):
        buffer.begin([0, 1])
    buffer.fill(0, portion(0, 1))
    storage = buffer.begin([0, 1])
    assert storage.nbytes == given.nbytes
    for column in range(4):
        assert np.array_equal(storage.block(column), given[:, column : column + 1])
    assert np.array_equal(arrays[0], given[:, [0, 2]])
    assert np.array_equal(arrays[1], given[:, [3, 1]])
    with pytest.raises(StaleShardError, match="work on the input has begun"):
        buffer.fill(0, [])


def test_a_failed_run_leaves_nothing(
    client: Client, xp: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = random(100)
    lazy = hetero_la.lu_factor(chunked(xp, a, 30), nb=NB, client=client)

    def fail(self: Any, call: Any) -> None:
        raise MemoryError("no more")

    with monkeypatch.context() as patch:
        patch.setattr("hetero_la.scheduler.run.runner.Runner._call", fail)
        with pytest.raises(MemoryError, match="no more"):
            lazy.lu.compute()
    assert nothing_left(client)
    assert_same(on_host(dask.compute(*lazy)), tuple(hetero_la.lu_factor(a, nb=NB)))


# --- copies


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (33, 31), (64, 64), (70, 1), (1000, 515)])
def test_row_major_blocks_are_turned_on_their_way(shape: tuple[int, int], dtype: str) -> None:
    """On one GPU, and from one to the other; as a part of a larger matrix."""
    cupy = pytest.importorskip("cupy")
    from hetero_la.tiles.kernels.gpu.device import GpuDevice
    from hetero_la.tiles.storage.staging import Staging

    (m, n), last = shape, gpu_count() - 1
    given = (1000 * random(m + 5, n + 3)).astype(dtype)
    expected = given[2 : m + 2, 1 : n + 1]
    device = GpuDevice(0)
    for here, others in [(0, []), (last, []), (last, [GpuDevice(last)])]:
        with cupy.cuda.Device(here):
            source = cupy.array(given, order="C")[2 : m + 2, 1 : n + 1]
            cupy.cuda.Device(here).synchronize()
        with device.activate():
            for memory in (cupy.empty((m, n), dtype, "F"), cupy.empty((m + 7, n), dtype, "F")):
                target = memory[-m:]
                staging = Staging(device, others)
                staging.upload(target, source)
                staging.flush()
                assert np.array_equal(target.get(), expected)


@pytest.mark.gpu
def test_blocks_of_another_gpu_take_no_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not go through the host."""
    cupy = pytest.importorskip("cupy")
    if gpu_count() < 2:
        pytest.skip("needs two GPUs")
    from hetero_la.tiles.kernels.gpu.device import GpuDevice
    from hetero_la.tiles.storage import staging

    monkeypatch.setattr(staging, "pinned_empty", None)
    given = random(300, 200)
    with cupy.cuda.Device(1):
        sources = [cupy.array(given, order=order) for order in "CF"]
        cupy.cuda.Device(1).synchronize()
    device = GpuDevice(0)
    with device.activate():
        for source in sources:
            target, copies = cupy.empty(given.shape, order="F"), staging.Staging(device)
            copies.upload(target, source)
            copies.flush()
            assert np.array_equal(target.get(), given)


def test_a_chunk_is_checked_once_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(inputs, "require_finite", lambda a, name: seen.append(id(a)))
    with Cluster(cpus=0, virtual_gpus=2) as cluster, cluster.get_client() as client:
        hetero_la.lu_factor(chunked(np, random(100), 50), nb=NB, client=client)[0].compute()
    assert len(seen) == len(set(seen)) == 4
