"""Runs over processes whose GPUs exchange messages in order, as by NCCL."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.linalg
from distributed import Client, wait
from numpy.typing import NDArray

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.exchange import input_exchange
from hetero_la.scheduler.exchange.communicators import CommunicatorMaker, Contact
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.tiles.arrays.errors import RunAbortedError
from tests.dask_support import chunked
from tests.scheduler import linked_gpus
from tests.scheduler.linked_gpus import link_gpus
from tests.scheduler.recovery import at_rest, die_at, local_cluster, soon, wait_for_workers
from tests.support import assert_close, positive, random

N, NB, WORKERS = 200, 16, 3


@pytest.fixture
def gpus() -> Iterator[Client]:
    with local_cluster(WORKERS) as client, client.as_current():
        link_all(client)
        yield client


def link_all(client: Client) -> None:
    client.run(link_gpus)
    assert {info.kind for info in worker_infos(client, refresh=True)} == {"gpu"}


def check_lu(client: Client, seed: int = 0) -> hetero_la.LUFactors:
    a = random(N, seed=seed)
    factors = hetero_la.lu_factor(a, nb=NB, client=client)
    assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])
    return factors


def counts(client: Client) -> list[tuple[int, int]]:
    return sorted(client.run(linked_gpus.counts).values())


def test_runs_share_the_communicators_of_their_workers(gpus: Client) -> None:
    factors = check_lu(gpus)
    assert len(factors.timing.workers) == WORKERS
    assert counts(gpus) == [(2 * (WORKERS - 1), 0)] * WORKERS
    a, b = random(N), random(N, 30)
    for got, expected in (
        (hetero_la.solve(a, b, nb=NB, client=gpus), np.linalg.solve(a, b)),
        (hetero_la.solve(a, b[:, :2], nb=NB, client=gpus), np.linalg.solve(a, b[:, :2])),
        (hetero_la.solve(positive(N), b[:, 0], assume_a="pos", nb=NB, client=gpus),
         np.linalg.solve(positive(N), b[:, 0])),
        (hetero_la.lu_factor(a, nb=8, coarse=24, client=gpus).lu, scipy.linalg.lu_factor(a)[0]),
        (hetero_la.qr_factor(a, nb=NB, client=gpus).r, np.triu(scipy.linalg.qr(a)[1])),
        (hetero_la.cholesky(positive(N), nb=NB, client=gpus, lower=True),
         scipy.linalg.cholesky(positive(N), lower=True)),
        (hetero_la.lstsq(random(N, 90), b, nb=NB, client=gpus)[0],
         np.linalg.lstsq(random(N, 90), b)[0]),
    ):  # fmt: skip
        assert_close(got, expected, limit=1e-8)
    assert counts(gpus) == [(2 * (WORKERS - 1), 0)] * WORKERS


def test_runs_of_several_clients_take_turns(gpus: Client) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with Client(gpus.scheduler.address, set_as_default=False) as client:
                for k in range(4):
                    check_lu(client, seed + k)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(10 * i,), daemon=True) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []
    assert at_rest(gpus)


def fail_at(number: int) -> None:
    linked_gpus.failing.add(number)


def test_what_cannot_communicate_exchanges_through_the_host(gpus: Client) -> None:
    for number, info in enumerate(worker_infos(gpus)[:2]):
        gpus.run(fail_at, number, workers=[info.address])
    for _ in range(2):
        check_lu(gpus)


def connect_alone(device: linked_gpus.LinkedGpu, inbox: WaitTable) -> None:
    """Connect to a worker that says no more than that it knows of no communicator."""
    contacts = [Contact(process, "", "", "", gpu=process) for process in ("first", "second")]
    maker = CommunicatorMaker(0, device, contacts, inbox, lambda *_, **__: None, lasting=False)
    inbox.put(("known", (0, 1)), ())
    maker.connect(0, 1)


def test_a_run_that_has_ended_says_nothing_of_nccl(caplog: pytest.LogCaptureFixture) -> None:
    inbox = WaitTable()

    class Ending(linked_gpus.LinkedGpu):
        def communicator(self, name: bytes, *, sends: bool) -> Any:
            inbox.abort(ValueError("a: array must not contain infs or NaNs"))
            raise RuntimeError("unhandled system error")

    with pytest.raises(RunAbortedError, match="another worker of this run has failed"):
        connect_alone(Ending("gpu0"), inbox)
    assert not caplog.records


@pytest.mark.parametrize("lost_while", ["it is made", "it connects"])
def test_a_communicator_to_a_lost_worker_is_aborted(lost_while: str) -> None:
    """Its first message may be on the GPU already, and would wait there for ever."""
    inbox, connecting, aborted = WaitTable(), threading.Event(), threading.Event()

    class Waiting:
        def connect(self) -> None:
            connecting.set()
            inbox.abort(RunAbortedError("the worker was lost"))
            aborted.wait(20)

        def abort(self) -> None:
            aborted.set()

    class Gpu(linked_gpus.LinkedGpu):
        def communicator(self, name: bytes, *, sends: bool) -> Any:
            if lost_while == "it is made":
                inbox.abort(RunAbortedError("the worker was lost"))
                time.sleep(0.2)  # the run's thread sees it first
            return Waiting()

    with pytest.raises(RunAbortedError):
        connect_alone(Gpu("gpu0"), inbox)
    assert aborted.wait(10)
    assert connecting.is_set() == (lost_while == "it connects")


@pytest.mark.parametrize(
    ("kernel", "count"), [("getrf", 2), pytest.param("gemm", 9, marks=pytest.mark.exhaustive)]
)
def test_a_lost_worker_takes_its_communicators_along(gpus: Client, kernel: str, count: int) -> None:
    check_lu(gpus)
    victim = worker_infos(gpus)[1]
    gpus.run(die_at, kernel, count, workers=[victim.address])
    factors = check_lu(gpus)
    assert len(factors.timing.losses) == 1
    wait_for_workers(gpus, WORKERS)
    others = [info.address for info in worker_infos(gpus) if info.kind == "gpu"]
    assert all(aborted >= 2 for _, aborted in gpus.run(linked_gpus.counts, workers=others).values())
    assert at_rest(gpus)
    assert soon(lambda: not any(gpus.run(linked_gpus.bytes_in_use, workers=others).values()))
    link_all(gpus)
    check_lu(gpus)
    assert at_rest(gpus)


def test_a_dask_array_s_run_begins_again(gpus: Client) -> None:
    a = random(N)
    victim = worker_infos(gpus)[2]
    gpus.run(die_at, "getrf", 3, workers=[victim.address])
    lu, _ = hetero_la.lu_factor(chunked(a, 70), nb=NB, client=gpus)
    assert isinstance(lu, da.Array)
    assert_close(gpus.compute(lu).result(60), scipy.linalg.lu_factor(a)[0])
    wait_for_workers(gpus, WORKERS)


@pytest.mark.exhaustive
def test_a_worker_that_stops_is_lost_once_the_scheduler_has_not_heard_of_it() -> None:
    with dask.config.set({"distributed.scheduler.worker-ttl": "2s"}), local_cluster(2) as client:
        link_all(client)
        check_lu(client)
        victim = worker_infos(client)[1]
        client.run(die_at, "getrf", 3, signal.SIGSTOP, workers=[victim.address])
        began = time.perf_counter()
        assert len(check_lu(client).timing.losses) == 1
        assert time.perf_counter() - began < 30
        wait_for_workers(client, 2)
        link_all(client)
        check_lu(client)
        assert at_rest(client)


def break_kernel(_: Any = None) -> None:
    from hetero_la.tiles.kernels import registry

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ArithmeticError("out of order")

    kernels = registry._IMPLEMENTATIONS
    kernels.update({key: broken for key in kernels if key[1] == "gemm"})


def test_an_error_ends_the_run_of_all(gpus: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    gpus.run(break_kernel, workers=[worker_infos(gpus)[0].address])
    began = time.perf_counter()
    with pytest.raises(ArithmeticError, match="out of order"):
        check_lu(gpus)
    assert time.perf_counter() - began < 20
    assert at_rest(gpus)


# --- input that is on the GPUs


def keys_brought(dask_worker: Any) -> list[str]:
    """The results that Dask has brought to a worker."""
    return [str(key) for entry in dask_worker.transfer_incoming_log for key in entry["keys"]]


def forget_transfers(dask_worker: Any) -> None:
    dask_worker.transfer_incoming_log.clear()


class SlowLinks:
    """What expects to move 1 byte/s between workers, and does not learn from what is moved."""

    @property
    def bandwidth(self) -> float:
        return 1.0

    @bandwidth.setter
    def bandwidth(self, _: float) -> None:
        pass


def be_far_apart(dask_scheduler: Any) -> None:
    """Have Dask work where arrays are, as it does with large ones."""
    kind = type(dask_scheduler)
    if not issubclass(kind, SlowLinks):
        dask_scheduler.__class__ = type(kind.__name__, (SlowLinks, kind), {})


def take_little_at_a_time() -> None:
    input_exchange._ROUND = 6000


def on_workers(client: Client, a: NDArray, chunks: Any) -> da.Array:
    """A Dask array whose chunks are on the workers, by turns, in the order of `a`."""
    homes = itertools.cycle([[info.address] for info in worker_infos(client)])
    spans = [
        [slice(*span) for span in itertools.pairwise((0, *itertools.accumulate(sizes)))]
        for sizes in da.core.normalize_chunks(chunks, a.shape)
    ]
    blocks = [
        [client.scatter(a[rows, columns].copy("K"), workers=next(homes)) for columns in spans[1]]
        for rows in spans[0]
    ]
    made = [
        [da.from_delayed(dask.delayed(block), (r.stop - r.start, c.stop - c.start), a.dtype)
         for c, block in zip(spans[1], row, strict=True)]
        for r, row in zip(spans[0], blocks, strict=True)
    ]  # fmt: skip
    there = client.persist(da.block(made))
    wait(there)
    return there


@pytest.mark.parametrize(
    ("rounds", "linked"),
    [("several", True), pytest.param("several", False, marks=pytest.mark.exhaustive)],
)
def test_blocks_go_from_gpu_to_gpu(gpus: Client, rounds: str, linked: bool) -> None:
    gpus.run_on_scheduler(be_far_apart)
    if rounds == "several":
        gpus.run(take_little_at_a_time)
    if not linked:  # through the host, but not by Dask
        for number, info in enumerate(worker_infos(gpus)[:2]):
            gpus.run(fail_at, number, workers=[info.address])
    for dtype, chunks, order in (
        ("float64", 70, "C"), ("complex64", (N, 33), "F"), ("float32", (45, N), "C"),
        ("float64", N, "F"), ("complex128", 40, "C"),
    ):  # fmt: skip
        a = np.asarray(random(N, dtype=dtype), order=order)  # type: ignore[call-overload]
        b = random(N, 90, dtype)  # in chunks larger than what workers tell each other
        x, y = on_workers(gpus, a, chunks), on_workers(gpus, b, (50, 90))
        gpus.run(forget_transfers)
        options: dict[str, Any] = {"nb": NB, "client": gpus}
        run = [*hetero_la.lu_factor(x, **options), hetero_la.solve(x, y, **options)]
        lu, piv, solution = gpus.gather(gpus.compute(gpus.persist(run)))
        brought = [key for keys in gpus.run(keys_brought).values() for key in keys]
        expected = scipy.linalg.lu_factor(a)
        assert_close(lu, expected[0])
        assert np.array_equal(piv, expected[1])
        assert_close(a @ solution, b, limit=1e4)
        assert not [key for key in brought if x.name in key or y.name in key]
        del x, y, run
        assert at_rest(gpus)


@pytest.mark.parametrize("chunks", [70, (N, NB)])  # (N, NB): columns that need no change
def test_a_chunk_that_is_not_finite_is_found_where_it_is(gpus: Client, chunks: Any) -> None:
    a = np.asfortranarray(random(N))
    a[150, 0] = np.nan
    x = on_workers(gpus, a, chunks)
    with pytest.raises(ValueError, match="a: array must not contain infs or NaNs"):
        hetero_la.lu_factor(x, nb=NB, client=gpus)[0].compute()
    lu = hetero_la.lu_factor(x, check_finite=False, nb=NB, client=gpus)[0]
    assert np.isnan(lu.compute()).any()
    del x, lu
    gc.collect()  # the error's frames hold futures
    assert at_rest(gpus)


@pytest.mark.parametrize(
    "place",
    ["_exchange_input", *(pytest.param(place, marks=pytest.mark.exhaustive)
                          for place in ("hold_chunk", "begin_shard"))],
)  # fmt: skip
def test_a_worker_that_is_lost_while_blocks_are_exchanged(gpus: Client, place: str) -> None:
    a = random(N)
    x = chunked(a, 70)  # which Dask can make again
    victim = worker_infos(gpus)[1]
    gpus.run(die_at, place, 1, workers=[victim.address])
    lu = hetero_la.lu_factor(x, nb=NB, client=gpus)[0]
    assert_close(gpus.compute(lu).result(60), scipy.linalg.lu_factor(a)[0])
    del lu
    wait_for_workers(gpus, WORKERS)
    assert at_rest(gpus)


def report_no_copies(dask_worker: Any) -> None:
    """Do not tell the scheduler what a worker has fetched, as if the message was still to come."""
    stream = dask_worker.batched_stream
    send = stream.send

    def some(*messages: dict[str, Any]) -> None:
        send(*(message for message in messages if message["op"] != "add-keys"))

    stream.send = some


@pytest.mark.parametrize(
    "place", ["hold_chunk", pytest.param("_exchange_input", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_new_attempt_uses_no_copies_of_an_old_one_s_results(
    gpus: Client, place: str, victim: int
) -> None:
    """Not even of its name, and how to reach workers, that Dask does not know of."""
    gpus.run(report_no_copies)
    a = random(N)
    gpus.run(die_at, place, 1, workers=[worker_infos(gpus)[victim].address])
    lu = hetero_la.lu_factor(chunked(a, 70), nb=NB, client=gpus)[0]
    assert_close(gpus.compute(lu).result(30), scipy.linalg.lu_factor(a)[0])
    del lu
    wait_for_workers(gpus, WORKERS)
    assert at_rest(gpus)


def lose_the_sender_of_a_name(pid: int, dask_worker: Any) -> None:
    """Kill who has sent the name of an attempt, which arrives once Dask wants another one here."""
    gather, tasks = dask_worker.gather_dep, dask_worker.state.tasks

    async def late(worker: str, to_gather: Any, **kwargs: Any) -> Any:
        arrived = await gather(worker, to_gather, **kwargs)
        for key in to_gather:
            if "-begin-" in str(key):
                await asyncio.sleep(0.5)  # others go on by that name
                os.kill(pid, signal.SIGKILL)
                dask_worker.gather_dep = gather
                while tasks[key].state != "resumed":
                    await asyncio.sleep(0.01)
        return arrived

    dask_worker.gather_dep = late


def test_a_new_attempt_does_not_take_the_name_of_an_old_one(gpus: Client) -> None:
    """Dask takes a result that arrives for one of the task that it has been told to run."""
    a = random(N)
    first, *others = worker_infos(gpus)
    new_home = min(info.address for info in others)
    gpus.run(lose_the_sender_of_a_name, first.pid, workers=[new_home])
    lu = hetero_la.lu_factor(chunked(a, 70), nb=NB, client=gpus)[0]
    assert_close(gpus.compute(lu).result(30), scipy.linalg.lu_factor(a)[0])
    del lu
    wait_for_workers(gpus, WORKERS)
    assert at_rest(gpus)
