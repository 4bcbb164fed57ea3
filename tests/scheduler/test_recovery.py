"""Runs over processes: any cluster, and lost, late, paused and failing workers."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from distributed import Client, Future
from numpy.typing import NDArray

import hetero_la
from hetero_la.execution.execute import execute
from hetero_la.execution.report import Timing
from hetero_la.scheduler.cluster.clients import install, worker_infos
from hetero_la.scheduler.on_dask import wait
from hetero_la.scheduler.on_dask.held_shard import HeldShard, drop_shards
from hetero_la.scheduler.on_dask.inputs import InputBuffer
from hetero_la.scheduler.on_dask.run_tasks import (
    begin_shard,
    close_shard,
    open_shard,
    run_slice,
    save_shard,
)
from hetero_la.scheduler.recovery import losses, restart
from hetero_la.scheduler.recovery.forget_clients import ForgetClients
from hetero_la.scheduler.run.job import PackedJob
from hetero_la.scheduler.run.local_storage import LocalStorage, whole_spans
from hetero_la.scheduler.run.runner import Runner
from hetero_la.tiles.arrays.errors import RunAbortedError, StaleShardError
from hetero_la.tiles.kernels.cpu.device import VirtualGpu
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.scheduler.recovery import (
    Hosts,
    at_rest,
    break_kernel,
    connections,
    die_at,
    kill_later,
    local_cluster,
    mend,
    pause_for,
    set_status,
    shards,
    slow_down,
    soon,
    wait_for_workers,
)
from tests.support import assert_close, problem, random

N, NB, WORKERS = 240, 8, 3


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    with local_cluster(WORKERS) as client:
        yield client


@pytest.fixture
def processes(shared: Client, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Three workers, all of them there; what a test leaves behind is looked at."""
    wait_for_workers(shared, WORKERS)
    before = shared.run_on_scheduler(connections)
    yield shared
    if "closed_client" not in request.node.name:
        assert shared.run_on_scheduler(connections) <= before  # the last test's may go meanwhile
    shared.run(mend, on_error="ignore")
    assert at_rest(shared)


def check_lu(client: Client, n: int = N, seed: int = 0, **options: Any) -> hetero_la.LUFactors:
    a = random(n, seed=seed)
    kept = a.copy()
    factors = hetero_la.lu_factor(a, nb=NB, client=client, **options)
    lu, piv = scipy.linalg.lu_factor(kept)
    assert np.array_equal(factors.piv, piv)
    assert_close(factors.lu, lu)
    assert np.array_equal(a, kept)
    return factors


def victim(client: Client, number: int) -> str:
    return worker_infos(client)[number].address


# --- any moment

MOMENTS = {
    "at the start": ("open_shard", 1),
    "first panel": ("getrf", 1),
    "mid-way": ("getrf", 5),
    "in a checkpoint": ("save_shard", 2),
    "last step": ("laswp", 1),
    "at the end": ("close_shard", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_dies(processes: Client, moment: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": 4} if moment == "in a checkpoint" else {}
    processes.run(die_at, *MOMENTS[moment], workers=[victim(processes, 0)])
    factors = check_lu(processes, **options)
    assert len(factors.timing.losses) == 1
    assert "cpu0" in factors.timing.losses[0].reason
    assert "left the cluster" in str(factors.timing)


@pytest.mark.parametrize("folder", [False, True])
def test_a_run_goes_on_from_its_last_checkpoint(
    processes: Client, tmp_path: Path, folder: bool
) -> None:
    processes.run(die_at, "getrf", 6, workers=[victim(processes, 1)])
    factors = check_lu(processes, checkpoint=4, checkpoint_folder=tmp_path if folder else None)
    (loss,) = factors.timing.losses
    assert loss.step % 4 == 0
    assert loss.step > 0
    assert {task.step for task in factors.plan.graph.tasks} == set(range(loss.step, N // NB + 1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_worker_after_worker(processes: Client) -> None:
    """Each dies in another place of the same run, the last one while it makes up for others."""
    for number, count in enumerate((2, 4, 6)):
        processes.run(die_at, "getrf", count, workers=[victim(processes, number)])
    factors = check_lu(processes, checkpoint=3)
    assert len(factors.timing.losses) == 3
    steps = [loss.step for loss in factors.timing.losses]
    assert steps == sorted(steps)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_worker_that_dies_while_results_are_gathered(
    processes: Client, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Some columns of the result are there already, perhaps in the place of the input."""
    stored: list[int] = []
    real = ArrayStorage.store

    def store(self: Any, device: Device, start: int, *rest: Any) -> None:
        real(self, device, start, *rest)
        stored.append(start)
        if len(stored) == 1:
            os.kill(worker_infos(processes)[2].pid, signal.SIGKILL)

    monkeypatch.setattr(ArrayStorage, "store", store)
    a = np.asfortranarray(random(N))
    expected = scipy.linalg.lu_factor(a)[0]
    factors = hetero_la.lu_factor(a, nb=NB, client=processes, overwrite_a=overwrite)
    assert_close(factors.lu, expected)
    assert (factors.lu is a) == overwrite
    # Where the input is overwritten, nothing is before all results are with the client.
    assert len(factors.timing.losses) == (0 if overwrite else 1)
    assert (len(stored) > N // NB) != overwrite


def test_an_input_that_is_overwritten_is_there_until_the_end(processes: Client) -> None:
    processes.run(die_at, "close_shard", workers=[victim(processes, 0)])
    a = np.asfortranarray(random(N))
    expected = scipy.linalg.lu_factor(a)[0]
    factors = hetero_la.lu_factor(a, nb=NB, client=processes, overwrite_a=True)
    assert len(factors.timing.losses) == 1
    assert factors.lu is a
    assert_close(a, expected)


#: Rows, columns and right-hand sides.
RUNS = {"lu": (N, N, 0), "solve": (N, N, 20), "solve_positive": (N, N, 20),
        "lstsq": (N, N // 2, 20), "explicit_q": (N, N // 2, N // 2)}  # fmt: skip


def check_run(client: Client, routine: str, **options: Any) -> Timing:
    given = problem(routine, TileLayout(*RUNS[routine][:2], NB, RUNS[routine][2]))
    columns = given.layout.nrhs if given.b is None else 0
    result = execute(routine, given.a, given.b, columns=columns, nb=NB, client=client, **options)
    assert_close(result.array, given.expected, limit=1e-8)
    return result.report.timing


@pytest.mark.slow
@pytest.mark.parametrize("routine", RUNS)
@pytest.mark.parametrize("count", [3, 8])
def test_any_routine_goes_on(processes: Client, routine: str, count: int) -> None:
    processes.run(die_at, "run_slice", count, workers=[victim(processes, 1)])
    assert len(check_run(processes, routine, checkpoint=3).losses) == 1


def kill_at_a_random_moment(client: Client, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {"lookahead": int(rng.integers(3))}
    if rng.random() < 0.6:
        options["checkpoint"] = int(rng.integers(1, 8))
        options["checkpoint_folder"] = tmp_path if rng.random() < 0.5 else None
    killer = kill_later(client, int(rng.integers(8)), rng.uniform(0, 0.7))
    began = time.perf_counter()
    try:
        check_run(client, str(rng.choice(list(RUNS))), **options)
    finally:
        killer.join()
    assert time.perf_counter() - began < 40
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(2))
def test_any_worker_at_any_moment(processes: Client, seed: int, tmp_path: Path) -> None:
    kill_at_a_random_moment(processes, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_any_worker_at_twenty_moments(processes: Client, seed: int, tmp_path: Path) -> None:
    kill_at_a_random_moment(processes, seed, tmp_path)


def test_the_only_worker_dies_and_is_restarted() -> None:
    with local_cluster(1) as client:
        for place, count in (("getrf", 3), ("close_shard", 1)):
            wait_for_workers(client, 1)
            client.run(die_at, place, count)
            assert len(check_lu(client, checkpoint=2).timing.losses) == 1
        assert at_rest(client)


# --- hosts, workers that nobody restarts, and workers that come late


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Hosts]:
    with Hosts(["127.0.0.1", "127.0.0.2", "127.0.0.2"]) as hosts:
        yield hosts


@pytest.fixture
def client_of_hosts(two_hosts: Hosts) -> Iterator[Client]:
    with Client(two_hosts.address, set_as_default=False) as client:
        client.wait_for_workers(3, timeout=60)
        yield client


@pytest.mark.exhaustive
def test_two_hosts_with_different_numbers_of_workers(client_of_hosts: Client) -> None:
    client = client_of_hosts
    factors = check_lu(client)
    hosts = [info.address.split("://")[1].split(":")[0] for info in factors.plan.workers]
    assert sorted(hosts) == ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
    assert all(worker.calls for worker in factors.timing.workers)
    check_run(client, "solve")
    assert at_rest(client)


@pytest.mark.slow
def test_nobody_restarts_a_worker(two_hosts: Hosts, client_of_hosts: Client) -> None:
    """Those that remain go on, and one that joins meanwhile is not in the way."""
    client = client_of_hosts
    client.run(slow_down, 0.005)
    names = {info.name for info in worker_infos(client)}
    client.run(die_at, "getrf", 5, workers=[victim(client, 0)])
    two_hosts.add("127.0.0.3")
    factors = check_lu(client, checkpoint=3)
    (loss,) = factors.timing.losses
    assert len(names & set(loss.workers)) == 2
    wait_for_workers(client, 3)
    late = check_lu(client)
    assert {info.address.split("://")[1].split(":")[0] for info in late.plan.workers} > {
        "127.0.0.3"
    }
    assert at_rest(client)


@pytest.mark.exhaustive
def test_no_worker_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_RESTART_SECONDS", 1.0)
    with Hosts(["127.0.0.1"]) as hosts, Client(hosts.address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=60)
        client.run(die_at, "getrf", 3)
        began = time.perf_counter()
        with pytest.raises(RunAbortedError, match=r"left the cluster .* no worker was left, and"):
            check_lu(client)
        assert time.perf_counter() - began < 10
        with pytest.raises(ValueError, match="no running workers"):
            check_lu(client)


def test_too_many_losses(processes: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "_MOST_LOSSES", 0)
    processes.run(die_at, "getrf", 2, workers=[victim(processes, 0)])
    with pytest.raises(RunAbortedError, match="given up after 1 losses: worker cpu0"):
        check_lu(processes)


@pytest.mark.slow
def test_a_worker_that_joins_late() -> None:
    """It takes part from the next run on."""
    with local_cluster(2) as client:
        client.run(slow_down, 0.01)
        client.cluster.scale(3)
        factors = check_lu(client)
        assert factors.timing.losses == ()
        assert len(factors.plan.workers) == 2
        wait_for_workers(client, 3)
        assert len(check_lu(client).plan.workers) == 3
        assert at_rest(client)


# --- workers that pause


@pytest.mark.slow
def test_a_worker_that_pauses_for_a_while(processes: Client) -> None:
    processes.run(slow_down, 0.005)
    processes.run(pause_for, 1.5, workers=[victim(processes, 1)])
    time.sleep(0.3)  # the scheduler hears of it
    began = time.perf_counter()
    factors = check_lu(processes)
    assert len(factors.plan.workers) == WORKERS - 1  # a paused worker gets no part
    assert time.perf_counter() - began < 20
    assert soon(lambda: len(worker_infos(processes)) == WORKERS)
    processes.run(slow_down, 0.02)  # the pause falls into the run, on slow machines as well
    later = threading.Timer(0.3, processes.run, (pause_for, 1.0))
    later.start()
    began = time.perf_counter()
    factors = check_lu(processes)
    assert time.perf_counter() - began > 1.0  # its results wait for the workers
    later.join()
    assert factors.timing.losses == ()


@pytest.mark.slow
def test_a_worker_that_stays_paused(processes: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "_PAUSE_LIMIT", 0.5)
    processes.run(slow_down, 0.02)
    address = victim(processes, 1)
    later = threading.Timer(0.3, processes.run, (set_status, "paused"), {"workers": [address]})
    later.start()
    try:
        (loss,) = check_lu(processes, checkpoint=2).timing.losses
        assert "has been paused for 0.5 s" in loss.reason
        assert len(loss.workers) == WORKERS - 1
    finally:
        later.join()
        processes.run(set_status, "running", workers=[address])


# --- what ends a run


@contextlib.contextmanager
def a_slow_run(client: Client) -> Iterator[list[BaseException]]:
    """A run in a thread, until it has ended; what it raised."""
    client.run(slow_down, 0.02)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            check_lu(client, checkpoint=2)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    deadline = time.monotonic() + 15
    while not any("-run-" in str(key) for key in list(client.futures)):
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)  # on into it
    assert thread.is_alive()
    yield errors
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.exhaustive
def test_cancelled_futures_end_a_run(processes: Client) -> None:
    with a_slow_run(processes) as errors:
        keys = [key for key in list(processes.futures) if "-run-" in str(key)]
        processes.cancel([Future(key, processes) for key in keys])
    assert isinstance(errors[0], RunAbortedError)
    assert "was cancelled" in str(errors[0])
    processes.run(mend)
    check_lu(processes)


@pytest.mark.slow
def test_a_closed_client_ends_a_run(processes: Client) -> None:
    """Nobody is left to tell the workers, and still they give the memory back."""
    with (
        Client(processes.scheduler.address, set_as_default=False) as client,
        a_slow_run(client) as errors,
    ):
        client.close()
    assert isinstance(errors[0], RunAbortedError)
    assert at_rest(processes)
    processes.run(mend)
    check_lu(processes)


@pytest.mark.exhaustive
def test_data_that_arrives_for_a_closed_client_is_let_go(processes: Client) -> None:
    """Dask alone keeps it for ever."""
    with Client(processes.scheduler.address, set_as_default=False) as client:
        install(client, ForgetClients)
        data = np.ones(20_000_000)

        def send() -> None:
            with contextlib.suppress(OSError):
                client.scatter(data, hash=False)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        time.sleep(0.05)
        client.close()
    thread.join(20)
    assert not thread.is_alive()
    time.sleep(0.5)
    assert at_rest(processes)


def test_an_error_in_a_kernel_is_not_taken_for_a_loss(processes: Client) -> None:
    """Each worker fails in its own process; the run is not started again."""
    processes.run(break_kernel, "getrf")
    with pytest.raises(ArithmeticError, match=r"^out of order$"):
        check_lu(processes, checkpoint=2)
    assert at_rest(processes)
    processes.run(mend)
    check_lu(processes)


# --- tasks that are run twice, or too late


@pytest.fixture
def opened() -> Iterator[tuple[HeldShard, int, NDArray]]:
    """A shard of a run in this process, and how many instructions its program has."""
    a = random(40)
    job = hetero_la.plan("lu", a.shape, nb=NB).job()
    blocks = {start: a[:, start : start + NB] for start in range(0, 40, NB)}
    run = f"lu-{uuid.uuid4()}"
    yield (
        open_shard(run, run, PackedJob(job), 0, blocks=blocks),
        len(job.programs[0].instructions),
        a,
    )
    drop_shards(run)
    assert not shards()


def test_no_slice_runs_twice(opened: tuple[HeldShard, int, NDArray]) -> None:
    held, stop, a = opened
    begin_shard(held, [])
    with pytest.raises(StaleShardError, match="has begun"):
        begin_shard(held, [])
    run_slice(held, 0, 9, [], None)
    with pytest.raises(StaleShardError, match="at instruction 9, not at 0"):
        run_slice(held, 0, 9, [], None)
    with pytest.raises(StaleShardError, match="has given away its checkpoint of step 2"):
        save_shard(held, 2, None, None)
    run_slice(held, 9, stop, [], None)
    finished = close_shard(held)
    assert_close(finished.storage.array, scipy.linalg.lu_factor(a)[0])
    assert finished.values.keys() >= {("ipiv", 0)}
    for task in (partial(close_shard, held), partial(save_shard, held, 2, None, None)):
        with pytest.raises(StaleShardError, match="does not hold its shard"):
            task()


def test_an_end_tells_what_has_ended_the_run() -> None:
    """Another worker may fail when this one has come to its program's end."""
    job = hetero_la.plan("lu", (40, 40), nb=NB).job()
    run = f"lu-{uuid.uuid4()}"
    held = open_shard(run, run, PackedJob(job), 0, blocks={}, fed=True)
    assert held.group is not None
    held.group.inbox.abort(ArithmeticError("kernel out of order"))
    with pytest.raises(ArithmeticError, match=r"^kernel out of order$"):
        close_shard(held)
    assert held.empty


def test_a_run_that_is_given_up_takes_its_shards_along(
    opened: tuple[HeldShard, int, NDArray],
) -> None:
    held, *_ = opened
    pickle.loads(pickle.dumps(held))
    drop_shards("another run")
    assert shards()
    drop_shards(held.attempt)
    assert not shards()
    with pytest.raises(StaleShardError, match="does not hold its shard"):
        run_slice(held, 0, 9, [], None)


def test_a_shard_that_nobody_wants_waits_for_its_device() -> None:
    waits = SimpleQueue[int]()

    class Device(VirtualGpu):
        def synchronize(self) -> None:
            waits.put(threading.get_ident())
            super().synchronize()

    job, device = hetero_la.plan("lu", (9, 9), nb=NB).job(), Device("gpu0")
    storage = LocalStorage(np.zeros((9, 9), order="F"), whole_spans(job.layout))
    state = Runner(job, 0, device, storage), InputBuffer(storage.array)
    held = HeldShard(device, "attempt", "share", state)
    state[0].run(0, 1)
    while not waits.empty():
        waits.get()
    del held, state
    # Another thread than this one, which may hold any lock when garbage is collected.
    assert waits.get(timeout=10) != threading.get_ident()
