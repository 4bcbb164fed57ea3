"""The cluster, the clients that runs use, and waits that end."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import dask
import numpy as np
import pytest
import scipy.linalg
import threadpoolctl
from distributed import Client, LocalCluster, Status, Worker

import hetero_la
from hetero_la.configs import available_presets, load_preset
from hetero_la.execution import executor_choice
from hetero_la.planning.teams import with_all_cores
from hetero_la.scheduler.cluster import clients, sizing
from hetero_la.scheduler.cluster.clients import (
    embedded_client,
    running_client,
    started_client,
    worker_infos,
)
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.cluster.devices import current_worker, device_of
from hetero_la.scheduler.cluster.sizing import (
    ClusterSize,
    default_blas_threads,
    default_cpu_workers,
)
from hetero_la.scheduler.on_dask import wait
from hetero_la.scheduler.on_dask.wait import wait_all
from hetero_la.tiles.arrays.errors import DeviceUnavailableError, RunAbortedError
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import CpuDevice

ROOT = str(Path(__file__).parents[2])


_over = threading.Event()


def last(seconds):
    """A task that ends with its test, at the latest."""
    _over.wait(seconds)


@pytest.fixture(autouse=True)
def over():
    """End what a test leaves behind: it would bound BLAS in the tests that follow."""
    _over.clear()
    yield
    _over.set()


@pytest.fixture
def cluster():
    with Cluster(cpus=1, gpus=0, virtual_gpus=2) as running:
        yield running


@pytest.fixture
def embedded():
    yield
    clients._close_embedded()


def script(text: str, **kwargs: object) -> subprocess.Popen[str]:
    """Start a Python program, which prints ``ready`` first."""
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def run_script(text: str) -> str:
    process = script(text)
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    return out


# --- sizes


@pytest.mark.parametrize(
    ("cores", "cpus", "gpus", "virtual", "threads"),
    [(2, 1, 0, 0, 2), (2, 1, 0, 2, 1), (16, 4, 0, 0, 4), (16, 1, 4, 0, 11), (2, 1, 4, 0, 1),
     (64, 2, 1, 0, 31), (8, 0, 1, 0, 6)],
)  # fmt: skip
def test_cores_are_shared_out(cores, cpus, gpus, virtual, threads):
    assert default_blas_threads(cores, cpus, gpus, virtual) == threads


def test_sizes_that_are_left_open(monkeypatch):
    monkeypatch.setattr(sizing, "gpu_count", lambda: 2)
    assert ClusterSize.choose({}, 8) == ClusterSize(1, 2, 0, 5)
    assert ClusterSize.choose({"virtual_gpus": 3}, 8) == ClusterSize(1, 0, 3, 2)
    assert ClusterSize.choose({"gpus": 0}, 8) == ClusterSize(default_cpu_workers(8), 0, 0, 1)
    assert ClusterSize.choose({"gpus": 1, "blas_threads": 3}, 8) == ClusterSize(1, 1, 0, 3)


def test_more_gpus_than_there_are():
    there = gpu_count()
    before = threading.active_count()
    with pytest.raises(DeviceUnavailableError, match=rf"has {there} GPUs?, but {there + 5} were"):
        Cluster(gpus=there + 5)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"cpus": 999}, "this machine has 8 cores, but 999 CPU workers were asked for"),
     ({"virtual_gpus": 65}, "virtual_gpus must be at most 64, not 65")],
)  # fmt: skip
def test_more_workers_than_can_be_of_use(wanted, said):
    with pytest.raises(ValueError, match=said):
        ClusterSize.choose({"gpus": 0, **wanted}, 8)
    assert ClusterSize.choose({"gpus": 0, "cpus": 8}, 8).cpus == 8


@pytest.mark.parametrize(
    "arguments",
    [{"cpus": -1}, {"gpus": -1}, {"virtual_gpus": -2}, {"blas_threads": 0}, {"cpus": 1.5},
     {"cpus": 0, "gpus": 0}, {"cpus": True}, {"preset": "nonsense"}],
)  # fmt: skip
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError, match=r"at least|preset"):
        Cluster(**arguments)


# --- presets


@pytest.mark.parametrize("name", available_presets())
def test_presets_name_known_settings(name):
    preset = load_preset(name)
    assert set(preset) == {"cluster", "options"}
    assert set(preset["cluster"]) == {"cpus", "gpus", "virtual-gpus", "blas-threads"}
    assert set(preset["options"]) == {"panel", "lookahead", "nb"}


def test_presets_are_listed_and_others_refused():
    assert available_presets() == ["cpu-panel", "four-gpus", "laptop", "one-gpu"]
    with pytest.raises(ValueError, match="no preset 'x'; there are cpu-panel, four-gpus, "):
        load_preset("x")


def test_explicit_arguments_win_over_preset_and_preset_over_configuration():
    with (
        dask.config.set({"hetero-la.cluster.cpus": 3, "hetero-la.options.nb": 96}),
        Cluster(preset="cpu-panel", gpus=0, blas_threads=1) as cluster,
    ):
        assert cluster.size == ClusterSize(cpus=1, gpus=0, virtual_gpus=0, blas_threads=1)
        assert cluster.options["panel"] == "cpu"
    with dask.config.set({"hetero-la.cluster": {"cpus": 2, "gpus": 0}}), Cluster() as cluster:
        assert cluster.size.cpus == 2
    with (
        dask.config.set({"hetero-la.cluster.gpu": 2}),
        pytest.raises(ValueError, match="unknown cluster setting 'gpu'"),
    ):
        Cluster()


# --- the cluster


def test_workers_are_described_in_their_order(cluster):
    client = cluster.private_client()
    infos = worker_infos(client)
    assert [info.name for info in infos] == ["gpu0", "gpu1", "cpu0"]
    assert [info.kind for info in infos] == ["gpu", "gpu", "cpu"]
    assert [info.virtual for info in infos] == [True, True, False]
    assert {info.pid for info in infos} == {os.getpid()}
    assert all(info.memory > 0 and info.device == -1 for info in infos)
    for info in infos:
        device = client.submit(
            lambda: device_of(current_worker()), workers=[info.address], pure=False
        ).result()
        assert device is cluster.workers[info.name].hetero_device
        assert (device.name, device.kind) == (info.name, info.kind)


def test_workers_have_our_settings_and_the_user_keeps_theirs():
    before = copy.deepcopy(dask.config.config)
    handlers = logging.getLogger("distributed").handlers
    filters = [list(handler.filters) for handler in handlers]
    with Cluster(cpus=2, gpus=0, dashboard_address=None) as cluster:
        assert dask.config.config == before
        assert "stealing" not in cluster.scheduler.extensions
        assert cluster.scheduler.no_workers_timeout == 60
        assert not cluster.scheduler.services
        client = cluster.private_client()
        assert client.scheduler_comm.interval == 0
        assert cluster.scheduler.client_comms[client.id].interval == 0
        for worker in cluster.workers.values():
            assert worker.batched_stream.interval == 0
            assert cluster.scheduler.stream_comms[worker.address].interval == 0
            assert "profile" not in worker.periodic_callbacks
            assert worker.memory_manager.memory_limit is None
            assert worker.state.nthreads == 1
            assert not worker.services
        with Client(cluster) as client:
            assert client.submit(abs, -1).result() == 1
        assert "http" not in repr(cluster)
        assert cluster.runs_link == ""
    assert dask.config.config == before
    assert [list(handler.filters) for handler in handlers] == filters


def test_dashboard_and_the_page_of_runs():
    before = copy.deepcopy(dask.config.config)
    with Cluster(gpus=0, dashboard_address="127.0.0.1:0") as cluster:
        assert cluster.runs_link.startswith("http://127.0.0.1:")
        assert cluster.runs_link in repr(cluster)
        assert cluster.runs_link in cluster._repr_html_()
        if importlib.util.find_spec("bokeh") is None:
            assert cluster.dashboard_link == ""
        else:
            assert cluster.dashboard_link == cluster.runs_link.replace("hetero-la", "status")
            with urllib.request.urlopen(cluster.dashboard_link, timeout=30) as shown:
                assert 'href="hetero-la"' in shown.read().decode()
        with urllib.request.urlopen(cluster.runs_link, timeout=30) as shown:
            assert "Runs of hetero-la" in shown.read().decode()
    assert dask.config.config == before


def test_results_go_by_reference(cluster):
    with Client(cluster) as client:
        made = client.submit(bytearray, 8, workers=["gpu0"])
        seen = client.submit(id, made, workers=["gpu1"])
        assert seen.result() == id(made.result())


def blas_threads():
    info = threadpoolctl.threadpool_info()
    return [entry["num_threads"] for entry in info if entry["user_api"] == "blas"]


def test_blas_is_bounded_in_tasks_only():
    before = blas_threads()
    with Cluster(cpus=2, gpus=0, blas_threads=1) as cluster:
        client = cluster.private_client()
        assert set(client.submit(blas_threads, pure=False).result()) == {1}
        wait_all(client, [client.submit(time.sleep, 0.02, pure=False) for _ in range(8)], [])
        time.sleep(0.05)
        assert blas_threads() == before
        with threadpoolctl.threadpool_limits(1):  # the user's own bound still works
            assert set(blas_threads()) == {1}
    with Cluster(cpus=1, gpus=0, blas_threads=10**3) as cluster:  # a bound, not a wish
        assert cluster.private_client().submit(blas_threads).result() == before


def test_a_cpu_worker_whose_others_have_no_part_in_a_run_has_their_cores(monkeypatch):
    """As one that factors panels for GPUs."""
    seen, call = set(), CpuDevice.call

    def noted(self, *args):
        seen.update(blas_threads())
        call(self, *args)

    def first(client, **options):
        info, other = worker_infos(client, **options)
        return [with_all_cores(info, [info, other])]

    monkeypatch.setattr(CpuDevice, "call", noted)
    before = blas_threads()
    with Cluster(cpus=2, gpus=0, blas_threads=1) as own:
        monkeypatch.setattr(executor_choice, "worker_infos", first)
        plan = hetero_la.lu_factor(np.eye(50), nb=10, client=own).plan
    assert [worker.blas_threads for worker in plan.workers] == [2]
    assert seen == {min(2, threads) for threads in before}
    assert blas_threads() == before


def test_one_after_another_quickly():
    before = threading.active_count()
    began = time.perf_counter()
    for _ in range(10):
        with Cluster(gpus=0, virtual_gpus=2) as cluster:
            cluster.private_client()
        cluster.close()
    assert time.perf_counter() - began < 10
    assert threading.active_count() <= before + 1


def test_a_heartbeat_that_goes_on_when_its_worker_has_ended_is_no_error(monkeypatch):
    with Cluster(gpus=0, cpus=1) as cluster:
        (worker,) = cluster.workers.values()

    async def refused(self):
        raise RuntimeError("ConnectionPool is closed")

    monkeypatch.setattr(Worker, "heartbeat", refused)
    asyncio.run(worker.heartbeat())
    monkeypatch.setattr(worker, "status", Status.running)
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(worker.heartbeat())


def test_a_cluster_gets_no_more_workers(cluster):
    with pytest.raises(ValueError, match=r"keeps the workers .* scale can only make it smaller"):
        cluster.scale(5)
    with pytest.raises(ValueError, match=r"keeps the workers .* it cannot adapt"):
        cluster.adapt(minimum=1, maximum=5)
    assert len(cluster.worker_spec) == 3
    cluster.scale(2)
    assert len(cluster.worker_spec) == 2


def test_two_constructed_at_once_leave_the_configuration_alone():
    before = copy.deepcopy(dask.config.config)
    threads = [
        threading.Thread(target=lambda: Cluster(gpus=0).close(), daemon=True) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert dask.config.config == before


def test_closing_does_not_wait_for_a_running_task():
    with Cluster(gpus=0) as cluster:
        cluster.private_client().submit(last, 10)
        time.sleep(0.1)
        began = time.perf_counter()
    assert time.perf_counter() - began < 5


def test_unclosed_at_exit_is_quiet():
    out = run_script("""
        from hetero_la.scheduler.cluster.cluster import Cluster
        from distributed import Client
        cluster = Cluster(gpus=0, virtual_gpus=2)
        client = Client(cluster)
        future = client.submit(abs, -1)
        print(future.result())
    """)
    assert out == "1\n"


# --- workers of other clusters


@pytest.fixture(scope="module")
def processes():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_workers_that_others_started_are_described_too(processes):
    infos = worker_infos(processes)
    assert [info.name for info in infos] == ["cpu0", "cpu1"]
    assert len({info.pid for info in infos} | {os.getpid()}) == 3
    assert all(info.kind == "cpu" and info.blas_threads == 1 for info in infos)
    limits = [w["memory_limit"] for w in processes.scheduler_info()["workers"].values()]
    assert all(0 < info.memory <= limit for info, limit in zip(infos, limits, strict=True))

    def drives() -> tuple[str, bool]:
        device = device_of(current_worker())
        return device.name, device_of(current_worker()) is device

    assert processes.submit(drives).result() in [("cpu0", True), ("cpu1", True)]


def test_messages_of_a_cluster_s_clients_leave_at_once(cluster):
    with cluster.get_client() as client:
        assert Client.current() is client
        for one in (client, cluster.private_client()):
            assert one.scheduler_comm.interval == 0
            assert cluster.scheduler.client_comms[one.id].interval == 0


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_infos_are_kept_while_the_workers_are_the_same(where, cluster, processes, monkeypatch):
    client = cluster.private_client() if where == "here" else processes
    first = worker_infos(client)
    infos, asked = {info.address: info for info in first}, []
    monkeypatch.setattr(
        clients, "describe", lambda worker: asked.append(worker) or infos[worker.address]
    )
    monkeypatch.setattr(client, "run", lambda f, **_: asked.append(f) or infos)
    assert worker_infos(client) == first
    assert asked == []
    assert worker_infos(client, refresh=True) == first
    # Workers of this process are not asked through Dask, which would take a millisecond.
    assert len(asked) == (len(first) if where == "here" else 1)


# --- which client


def test_the_current_worker_is_that_of_a_task(cluster):
    assert current_worker() is None
    assert cluster.private_client().submit(lambda: current_worker() is not None).result()


def test_the_running_client_is_the_current_one_or_the_cluster_s_own(cluster):
    assert running_client() is None
    private = running_client(cluster)
    assert private is cluster.private_client()
    assert running_client() is None
    with Client(cluster) as client:
        assert running_client() is client
        assert running_client(client) is client
        assert running_client(cluster) is private
        assert private.submit(lambda: running_client() is None, pure=False).result()
    assert running_client() is None
    with pytest.raises(ValueError, match="not running: it is closed"):
        running_client(client)
    with pytest.raises(TypeError, match="not str"):
        running_client("inproc://")
    cluster.close()
    with pytest.raises(ValueError, match="cluster that was given is closed"):
        running_client(cluster)


def test_asynchronous_clients_are_not_used(processes):
    async def check() -> None:
        async with Client(processes.scheduler.address, asynchronous=True) as client:
            assert running_client() is None
            with pytest.raises(ValueError, match="asynchronous"):
                running_client(client)

    asyncio.run(check())


# --- the embedded cluster


def test_embedded_is_one_and_comes_back(embedded):
    assert started_client() is None
    found = []
    threads = [threading.Thread(target=lambda: found.append(embedded_client())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 5
    assert len(set(map(id, found))) == 1
    first = found[0]
    assert started_client() is first
    assert running_client() is None
    first.close()
    second = embedded_client()
    assert second.cluster is first.cluster
    second.cluster.close()
    assert started_client() is None
    third = embedded_client()
    assert third.submit(abs, -2).result() == 2


EMBEDDED = """
import os, signal, sys, threading, time
import numpy as np
import hetero_la
from hetero_la.execution import executor_choice
executor_choice.INLINE_LIMIT["cpu"] = 0.0
def factor(client=None):
    return hetero_la.lu_factor(np.random.default_rng(0).random((90, 90)), nb=30, client=client)
def tell():
    print(factor().plan.workers[0].name)
"""


@pytest.mark.parametrize(
    ("ending", "status", "last_line"),
    [("", 0, ""),
     pytest.param("sys.exit(3)", 3, "", marks=pytest.mark.exhaustive),
     pytest.param("raise KeyError(7)", 1, "KeyError: 7", marks=pytest.mark.exhaustive),
     ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT, "KeyboardInterrupt"),
     ("executor_choice.embedded_client().submit(time.sleep, 0.5); time.sleep(0.2)", 0, ""),
     ("own = hetero_la.Cluster(cpus=1); factor(own); factor()", 0, ""),
     pytest.param("with hetero_la.Cluster(cpus=1) as own: factor(own)", 0, "",
                  marks=pytest.mark.exhaustive)],
    ids=["end", "exit", "exception", "ctrl-c", "busy", "own cluster left open", "own cluster"],
)  # fmt: skip
@pytest.mark.exhaustive
def test_embedded_ends_with_the_program(ending: str, status: int, last_line: str) -> None:
    """Without a word of its own: closed at a wrong moment, it needs threads it cannot have."""
    process = script(f"{EMBEDDED}\ntell()\n{ending}")
    began = time.perf_counter()
    out, err = process.communicate(timeout=30)
    assert process.returncode == status, err
    assert out == "cpu0\n"
    said = [line for line in err.splitlines() if not line.startswith(("  ", "Traceback "))]
    assert said == [last_line] * bool(last_line)
    assert err.count("Traceback") == len(said)
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize("before", ["", pytest.param("tell()", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "how", ["threading.Thread(target=late).start()", "import atexit; atexit.register(late)"]
)
@pytest.mark.exhaustive
def test_the_calling_thread_factors_what_comes_after_the_main_thread(how: str, before: str) -> None:
    """Dask takes no work then, neither from other threads nor from atexit."""
    late = "def late():\n    time.sleep(0.5)\n    tell()"
    out = run_script(f"{EMBEDDED}\n{before}\n{late}\n{how}")
    assert out.splitlines()[-1] == "caller"


def test_a_fork_starts_an_embedded_cluster_of_its_own():
    out = run_script("""
        import os, signal, sys, warnings
        warnings.simplefilter("ignore")
        from hetero_la.scheduler.cluster.clients import embedded_client
        client = embedded_client()
        assert client.submit(abs, -1).result() == 1
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            assert embedded_client() is not client
            del client
            print(embedded_client().submit(abs, -5).result(), flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        print(client.submit(abs, -7).result())
    """)
    assert out == "5\n7\n"


# --- waits


def fail(seconds, message):
    last(seconds)
    raise KeyError(message)


def test_wait_all_returns_when_all_is_done(cluster):
    client = cluster.private_client()
    futures = client.map(abs, range(20), pure=False)
    wait_all(client, futures, [info.address for info in worker_infos(client)])
    assert client.gather(futures) == list(range(20))
    wait_all(client, [], [])


def test_the_end_of_a_run_does_not_wait_for_a_look_at_its_workers(cluster, monkeypatch):
    looks = []

    async def slow_look(watch):
        looks.append(watch)
        await asyncio.sleep(10)

    monkeypatch.setattr(wait._Watch, "look", slow_look)
    client = cluster.private_client()
    future = client.submit(time.sleep, 2 * wait._LOOK_INTERVAL, pure=False)
    began = time.perf_counter()
    wait_all(client, [future], [])
    assert time.perf_counter() - began < 5
    assert len(looks) == 1


def test_the_first_error_is_raised_and_the_rest_cancelled(cluster):
    client = cluster.private_client()
    futures = [
        client.submit(last, 10, workers=["gpu0"]),
        client.submit(fail, 0.1, "first", workers=["gpu1"]),
        client.submit(fail, 8, "second", workers=["cpu0"]),
    ]
    began = time.perf_counter()
    with pytest.raises(KeyError, match="first"):
        wait_all(client, futures, [])
    assert time.perf_counter() - began < 5
    assert futures[0].status == "cancelled"


def test_cancelled_futures_end_the_wait(cluster):
    client = cluster.private_client()
    future = client.submit(last, 5)
    threading.Timer(0.2, client.cancel, [[future]]).start()
    with pytest.raises(RunAbortedError, match="cancelled"):
        wait_all(client, [future], [])


def test_a_worker_that_left_ends_the_wait(cluster):
    client = cluster.private_client()
    infos = worker_infos(client)
    future = client.submit(last, 10, workers=["gpu1"])
    gone = cluster.workers["gpu1"]
    threading.Timer(0.2, lambda: cluster.sync(gone.close, executor_wait=False)).start()
    began = time.perf_counter()
    with pytest.raises(RunAbortedError, match=rf"worker gpu1 \({gone.address}\) left"):
        wait_all(client, [future], [info.address for info in infos])
    assert time.perf_counter() - began < 5
    assert future.status == "cancelled"


def test_a_killed_process_ends_the_wait(processes):
    info = worker_infos(processes)[0]
    future = processes.submit(time.sleep, 20, workers=[info.address])
    time.sleep(0.2)
    os.kill(info.pid, signal.SIGKILL)
    began = time.perf_counter()
    with pytest.raises(RunAbortedError, match=r"cpu0 .* left the cluster"):
        wait_all(processes, [future], [info.address])
    assert time.perf_counter() - began < 5


def test_a_cluster_closed_meanwhile_ends_the_wait():
    with Cluster(gpus=0) as cluster, Client(cluster) as client:
        future = client.submit(last, 10)
        threading.Timer(0.2, cluster.close).start()
        began = time.perf_counter()
        with pytest.raises(RunAbortedError):
            wait_all(client, [future], [])
        assert time.perf_counter() - began < 5


def test_a_client_closed_meanwhile_ends_the_wait():
    """One made from an address has an event loop of its own, which stops with it."""
    with LocalCluster(
        n_workers=1, processes=False, protocol="tcp", dashboard_address=None
    ) as cluster:
        client = Client(cluster.scheduler_address, set_as_default=False)
        future = client.submit(last, 2)
        threading.Timer(0.2, client.close).start()
        began = time.perf_counter()
        with pytest.raises(RunAbortedError):
            wait_all(client, [future], [])
        assert time.perf_counter() - began < wait._CANCEL_SECONDS + 2
        with pytest.raises(RunAbortedError, match="client of the Dask cluster is closed"):
            worker_infos(client)


def test_workers_of_one_name_are_told_apart():
    async def join(cluster):
        return await Worker(cluster.scheduler_address, name="cpu0")

    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        other = cluster.sync(join, cluster)
        names = [info.name for info in worker_infos(client)]
        assert f"cpu0 at {other.address}" in names
        assert len(set(names)) == 2
        a = np.random.default_rng(0).standard_normal((60, 60))
        factors = hetero_la.lu_factor(a, nb=10, client=client)
        assert len(factors.plan.workers) == 2
        assert np.allclose(factors.lu, scipy.linalg.lu_factor(a)[0])
        cluster.sync(other.close)


def test_a_worker_that_cannot_be_described(processes, monkeypatch):
    answers = {"tcp://1": ValueError("no hetero_la"), "tcp://2": OSError("left")}
    monkeypatch.setattr(processes, "run", lambda *args, **kwargs: answers)
    with pytest.raises(RunAbortedError, match="worker tcp://1 could not say what it is"):
        worker_infos(processes, refresh=True)


def test_control_c_ends_a_wait_and_cancels_what_waits():
    process = script("""
        import time
        from hetero_la.scheduler.cluster.clients import embedded_client, worker_infos
        from hetero_la.scheduler.on_dask.wait import wait_all
        client = embedded_client()
        addresses = [info.address for info in worker_infos(client)]
        futures = [client.submit(time.sleep, 20), client.submit(abs, -1, pure=False)]
        print("ready", flush=True)
        try:
            wait_all(client, futures, addresses)
        except KeyboardInterrupt:
            print([future.status for future in futures])
    """)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "['cancelled', 'cancelled']\n", "")
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize("kind", ["cpus", "gpus", "virtual_gpus"])
def test_more_workers_than_can_be_of_use_are_refused_at_once(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind} must be at most [0-9]+, not 100000"):
        Cluster(**{kind: 100_000})
