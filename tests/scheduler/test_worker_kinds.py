"""What workers of any cluster say of themselves, and runs on those that say they have a GPU."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from distributed import Client, LocalCluster

import hetero_la
from hetero_la.scheduler.cluster import devices
from hetero_la.scheduler.cluster.clients import running_addresses, worker_infos
from hetero_la.scheduler.cluster.devices import describe, device_of
from hetero_la.scheduler.placement.workers import (
    Transport,
    WorkerInfo,
    calling_thread,
    over_processes,
    transport_of,
)
from hetero_la.tiles.kernels.cpu.device import CpuDevice, VirtualGpu
from tests.dask_support import chunked, nothing_left
from tests.scheduler.recovery import Hosts, at_rest, die_at
from tests.slow_gpus import MEASURED, everybody_owns_columns, known
from tests.support import assert_close, random


class FirstGpu(CpuDevice):
    """Stands for the first GPU that a process sees."""

    kind = "gpu"
    pci_address = "0000:17:00.0"

    def __init__(self, index: int, name: str) -> None:
        super().__init__(name)
        self.index = index


RMMSetup = type("RMMSetup", (), {"__module__": "dask_cuda.plugins"})


def worker(resources: dict[str, float], *plugins: Any) -> Any:
    """As much of a Dask worker as its kind depends on."""
    return SimpleNamespace(
        name=3,
        address="tcp://127.0.0.1:1",
        state=SimpleNamespace(total_resources=resources, nthreads=1),
        plugins={str(i): plugin for i, plugin in enumerate(plugins)},
        memory_manager=SimpleNamespace(memory_limit=1000),
    )


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_count", lambda: 4)
    monkeypatch.setattr(devices, "GpuDevice", FirstGpu)


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("said", [({"GPU": 1.0},), ({}, RMMSetup())], ids=["resource", "dask-cuda"])
def test_a_worker_with_a_gpu_has_the_first_that_its_process_sees(said: tuple[Any, ...]) -> None:
    info = describe(worker(*said))
    assert (info.kind, info.device, info.name, info.virtual) == ("gpu", 0, "gpu3", False)
    assert info.gpu == "0000:17:00.0"
    assert info.memory > 1000  # the limit is the host's


@pytest.mark.usefixtures("a_gpu")
def test_a_worker_that_says_nothing_leaves_the_gpu_to_others() -> None:
    info = describe(worker({"memory": 1.0}, object()))
    assert (info.kind, info.device, info.name, info.gpu) == ("cpu", -1, "cpu3", "")
    assert info.memory == 1000


def test_without_a_gpu_nobody_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_count", lambda: 0)
    assert type(device_of(worker({"GPU": 1.0}, RMMSetup()))) is CpuDevice
    assert type(device_of(worker({"virtual-GPU": 1.0}))) is VirtualGpu


@pytest.mark.parametrize(("threads", "allowed", "used"), [(4, 1, 1), (4, 4, 4), (2, 8, 2)])
def test_blas_has_as_many_threads_as_dask_and_the_environment_allow(
    threads: int, allowed: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "blas_threads", lambda: allowed)
    one = worker({})
    one.state.nthreads = threads
    assert describe(one).blas_threads == used


# --- runs


@pytest.fixture(scope="module")
def mixed() -> Iterator[Client]:
    """A CPU worker and two virtual GPUs, each in a process."""
    with Hosts(["127.0.0.1"]) as hosts:
        for _ in range(2):
            hosts.add("127.0.0.2", "--resources", "virtual-GPU=1")
        with Client(hosts.address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=60)
            yield client


@contextlib.contextmanager
def all_known(client: Client) -> Iterator[None]:
    """Let plans have measured models of all workers, and give columns to all of them."""
    models = {
        info.name: replace(MEASURED, by_reference=not info.virtual) for info in worker_infos(client)
    }
    with known(models), everybody_owns_columns():
        yield


def test_kinds_are_found(mixed: Client) -> None:
    infos = worker_infos(mixed)
    assert [(info.kind, info.virtual) for info in infos] == [("gpu", True)] * 2 + [("cpu", False)]
    assert len({info.pid for info in infos}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("lookahead", [0, 2])
def test_runs_over_processes_of_both_kinds(mixed: Client, panel: str, lookahead: int) -> None:
    a, options = random(200), {"nb": 16, "panel": panel, "lookahead": lookahead}
    factors = hetero_la.lu_factor(a, client=mixed, **options)
    lu, piv = scipy.linalg.lu_factor(a)
    assert np.array_equal(factors.piv, piv)
    assert_close(factors.lu, lu)
    owners = {info.kind for info, p in zip(factors.plan.workers, factors.plan.programs, strict=True)
              if p.columns}  # fmt: skip
    assert owners == {"gpu"}
    assert factors.plan.panel == panel
    assert at_rest(mixed)
    lazy = mixed.compute(hetero_la.lu_factor(chunked(a, 60), client=mixed, **options))
    assert_close(lazy[0].result(60), lu)
    assert np.array_equal(lazy[1].result(60), piv)
    del lazy
    assert nothing_left(mixed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, {"checkpoint": 4}])
def test_cpu_workers_own_columns_beside_gpus_in_other_processes(
    mixed: Client, options: dict[str, int]
) -> None:
    a = random(200)
    with all_known(mixed):
        factors = hetero_la.lu_factor(a, client=mixed, nb=16, **options)
        lazy = mixed.compute(hetero_la.lu_factor(chunked(a, 60), client=mixed, nb=16))
    lu, piv = scipy.linalg.lu_factor(a)
    assert [worker.kind for worker in factors.plan.workers] == ["gpu", "gpu", "cpu"]
    assert all(len(program.columns) >= 4 for program in factors.plan.programs)
    for found in (factors, [future.result(60) for future in lazy]):
        assert_close(found[0], lu)
        assert np.array_equal(found[1], piv)
    del lazy, found
    assert nothing_left(mixed)


@pytest.mark.parametrize(
    "lost", [0, pytest.param(-1, marks=pytest.mark.exhaustive)], ids=["gpu", "cpu"]
)
def test_one_of_mixed_owners_is_lost(lost: int) -> None:
    with Hosts(["127.0.0.1"]) as hosts:
        hosts.add("127.0.0.2", "--resources", "virtual-GPU=1")
        with Client(hosts.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            a, infos = random(200), worker_infos(client)
            client.run(die_at, "getrf", 4, workers=[infos[lost].address])
            with all_known(client):
                factors = hetero_la.lu_factor(a, nb=16, client=client, checkpoint=2)
    (loss,) = factors.timing.losses
    assert loss.step > 0
    assert [worker.name for worker in factors.plan.workers] == [infos[1 + lost].name]
    assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])


def test_a_worker_with_a_gpu_is_lost(mixed: Client) -> None:
    a = random(200)
    mixed.run(die_at, "getrf", 3, workers=[worker_infos(mixed)[0].address])
    lazy = mixed.compute(hetero_la.lu_factor(chunked(a, 60), nb=16, panel="gpu", client=mixed))
    assert_close(lazy[0].result(60), scipy.linalg.lu_factor(a)[0])
    assert len(running_addresses(mixed)) == 2


@pytest.mark.exhaustive
def test_those_who_go_on_are_those_who_work(caplog: pytest.LogCaptureFixture) -> None:
    with Hosts(["127.0.0.1"]) as hosts:
        for _ in range(2):
            hosts.add("127.0.0.2", "--resources", "virtual-GPU=1")
        with Client(hosts.address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=60)
            lost, other, _ = worker_infos(client)
            client.run(die_at, "getrf", 3, workers=[lost.address])
            factors = hetero_la.lu_factor(random(200), nb=16, panel="gpu", client=client)
    (loss,) = factors.timing.losses
    assert loss.workers == (other.name,)  # a CPU worker has no part in it
    assert [worker.name for worker in factors.plan.workers] == [other.name]
    assert "resuming from step 0 on 1 worker" in caplog.text


@pytest.mark.parametrize("panel", ["cpu", pytest.param("gpu", marks=pytest.mark.exhaustive)])
def test_the_only_worker_for_panels_is_lost(panel: str) -> None:
    """The run goes on with the other kind; the next one is told that there is none."""
    with Hosts(["127.0.0.1"]) as hosts:
        hosts.add("127.0.0.2", "--resources", "virtual-GPU=1")
        with Client(hosts.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            (last,) = [info for info in worker_infos(client) if info.kind == panel]
            client.run(die_at, "getrf", 3, workers=[last.address])
            a = random(200)
            factors = hetero_la.lu_factor(a, nb=16, panel=panel, client=client)
            assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])
            (loss,) = factors.timing.losses
            assert loss.workers == tuple(worker.name for worker in factors.plan.workers)
            with pytest.raises(ValueError, match=f"panel='{panel}' needs a {panel.upper()} worker"):
                hetero_la.lu_factor(a, nb=16, panel=panel, client=client)


def test_processes_of_two_hosts_may_have_one_number() -> None:
    """As in containers, where the first process is number 1."""
    here = calling_thread()
    assert here.here
    assert not over_processes([here, replace(here, host="")])
    assert over_processes([here, replace(here, host="another")])
    assert over_processes([here, replace(here, pid=here.pid + 1)])


def test_data_takes_the_fastest_way_that_two_workers_have() -> None:
    cpu = WorkerInfo("cpu0", "cpu", pid=1, host="a")
    gpu = WorkerInfo("gpu0", "gpu", pid=1, host="a", device=0, gpu="0000:18:00.0")
    virtual = replace(cpu, kind="gpu", virtual=True)
    others = {
        Transport.ONE_PROCESS: [
            (cpu, gpu),
            (cpu, virtual),
            (gpu, replace(gpu, gpu="0000:2A:00.0")),
        ],
        Transport.NCCL: [
            (gpu, replace(gpu, pid=2, gpu="0000:2A:00.0")),
            (gpu, replace(gpu, host="b")),  # of the same number on its own host
        ],
        Transport.SHARED_MEMORY: [
            (cpu, replace(cpu, pid=2)),
            (cpu, replace(gpu, pid=2)),
            (virtual, replace(virtual, pid=2)),
            (gpu, replace(gpu, pid=2)),  # two processes use one GPU
        ],
        Transport.DASK: [(cpu, replace(cpu, host="b")), (cpu, replace(gpu, host="b"))],
    }
    for transport, pairs in others.items():
        for first, second in pairs:
            assert transport_of(first, second) is transport_of(second, first) is transport


def count_overlaps(dask_worker: Any) -> None:
    """Let the worker count calls that another thread makes at the same time on its device."""
    inside: set[int] = set()
    counts = dask_worker.hetero_counts = {"calls": 0, "overlaps": 0}

    def call(device: VirtualGpu, *args: Any) -> None:
        counts["calls"] += 1
        counts["overlaps"] += bool(inside - {threading.get_ident()})
        inside.add(threading.get_ident())
        try:
            CpuDevice.call(device, *args)
        finally:
            inside.discard(threading.get_ident())

    VirtualGpu.call = call  # type: ignore[method-assign]


def test_the_device_of_a_worker_with_several_threads_serves_one_at_a_time() -> None:
    a = random(500)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=3, resources={"virtual-GPU": 1},
            dashboard_address=None,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        client.run(count_overlaps)
        factor = functools.partial(hetero_la.lu_factor, a, client=client, nb=20)
        with ThreadPoolExecutor(3) as pool:
            found = [future.result() for future in [pool.submit(factor) for _ in range(3)]]
        (counts,) = client.run(lambda dask_worker: dask_worker.hetero_counts).values()
    for factors in found:
        assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])
    assert counts["calls"] > 3 * 25
    assert counts["overlaps"] == 0
