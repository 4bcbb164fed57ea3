"""Runs on workers of hosts other than the client's, to which Dask's connections lead."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from distributed import Client
from numpy.typing import NDArray

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.links.endpoint import endpoint
from hetero_la.scheduler.on_dask import dask_messages
from hetero_la.scheduler.on_dask.dask_messages import DirectSender, accept_messages
from hetero_la.tiles.arrays.errors import LinkLostError
from tests.dask_support import nothing_left
from tests.scheduler.recovery import Hosts, die_at, local_cluster, wait_for_workers
from tests.support import assert_close, lstsq_ratio, positive, random

N, NB = 90, 16
DTYPES = ("float32", "float64", "complex64", "complex128")


def leave_host() -> None:
    """Let this process have no links to others, as on another host."""
    from hetero_la.scheduler.links import endpoint as module

    def fail(self: Any) -> None:
        raise OSError("no links")

    module.Endpoint._listen = fail  # type: ignore[method-assign]
    module.endpoint().close()


def lead_away(client: Client) -> None:
    client.run(leave_host)
    assert {info.link for info in worker_infos(client, refresh=True)} == {""}


@pytest.fixture
def far() -> Iterator[Client]:
    with local_cluster(2) as client:
        lead_away(client)
        yield client


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each message from here to a worker."""
    sizes, real = [], DirectSender.put

    def put(self: DirectSender, topic: str, header: Any, arrays: Any, *how: Any) -> None:
        sizes.append(sum(array.nbytes for array in arrays))
        real(self, topic, header, arrays, *how)

    monkeypatch.setattr(DirectSender, "put", put)
    return sizes


def check_lu(client: Client, a: NDArray) -> hetero_la.LUFactors:
    given = a.copy(order="K")
    factors = hetero_la.lu_factor(a, nb=NB, client=client)
    expected = scipy.linalg.lu_factor(a)
    assert_close(factors.lu, expected[0])
    assert np.array_equal(factors.piv, expected[1])
    assert np.array_equal(a, given)
    return factors


def test_columns_go_straight_to_the_workers(far: Client, sent: list[int]) -> None:
    for dtype in DTYPES:
        for a in (random(N, dtype=dtype), np.asfortranarray(random(N, 40, dtype)),
                  random(2 * N, 2 * N, dtype)[::2, 1::2]):  # fmt: skip
            sent.clear()
            check_lu(far, a)
            assert sum(sent) == a.nbytes
    a, b = random(N), random(N, 30)
    assert_close(hetero_la.solve(a, b, nb=NB, client=far), np.linalg.solve(a, b))
    lower = hetero_la.cholesky(positive(N), lower=True, nb=NB, client=far)
    assert_close(lower, scipy.linalg.cholesky(positive(N), lower=True))
    tall = random(2 * N, N)
    x = hetero_la.lstsq(tall, b := random(2 * N, 3), nb=NB, client=far)[0]
    assert lstsq_ratio(tall, x, b) < 30
    assert nothing_left(far)


def test_a_client_that_must_not_connect_sends_by_the_scheduler(sent: list[int]) -> None:
    with (
        local_cluster(2) as first,
        Client(first.scheduler.address, direct_to_workers=False, set_as_default=False) as client,
    ):
        lead_away(client)
        check_lu(client, random(N))
    assert sent == []


def test_a_client_that_cannot_connect_sends_by_the_scheduler(
    far: Client, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (refused, _) = far.scheduler_info()["workers"]
    real = far.rpc.connect

    async def connect(address: str, *how: Any, **more: Any) -> Any:
        if address == refused:
            raise OSError("no route to host")
        return await real(address, *how, **more)

    monkeypatch.setattr(far.rpc, "connect", connect)
    a = random(N)
    check_lu(far, a)
    assert 0 < sum(sent) < a.nbytes


def test_a_worker_that_is_lost_while_columns_come(far: Client) -> None:
    lost = worker_infos(far)[1].address
    far.run(die_at, "getrf", 1, workers=[lost])
    factors = check_lu(far, random(N))
    assert len(factors.timing.losses) == 1
    wait_for_workers(far, 2)


def check_that_a_loss_ends_a_run(
    client: Client, patch: pytest.MonkeyPatch, loses: Callable[[Any], bool], seconds: float
) -> None:
    """What is sent with some headers is lost."""
    real = dask_messages._send

    async def send(rpc: Any, topic: str, header: Any, *how: Any, **more: Any) -> None:
        if loses(header[0]):
            raise OSError("connection reset")
        await real(rpc, topic, header, *how, **more)

    patch.setattr(dask_messages, "_send", send)
    began = time.monotonic()
    with pytest.raises(LinkLostError, match=r"from the client was lost: OSError.*reset"):
        hetero_la.lu_factor(random(N), nb=NB, client=client)
    assert time.monotonic() - began < seconds
    assert nothing_left(client)


@pytest.mark.exhaustive
def test_a_message_that_is_lost_ends_the_run(far: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [("column", 2 * NB)]
    check_that_a_loss_ends_a_run(
        far, monkeypatch, lambda key: key in left and bool(left.pop()), seconds=10
    )
    check_lu(far, random(N))


def test_a_client_that_cannot_reach_a_worker_any_more_ends_the_run(
    far: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_that_a_loss_ends_a_run(
        far, monkeypatch, lambda key: key == "abort" or key[1] >= 2 * NB, seconds=15
    )


def test_a_client_that_was_closed_sends_nothing() -> None:
    with Client(processes=False, dashboard_address=None, set_as_default=False) as client:
        (address,) = client.run(accept_messages)
    with pytest.raises(LinkLostError, match="no message can be sent to inproc"):
        DirectSender(client, address, print).put("run 1", 0, [])


def test_a_sender_waits_until_messages_are_released() -> None:
    topic, arrived, array = "run 1", queue.SimpleQueue[Any](), random(4)
    with Client(processes=False, dashboard_address=None, set_as_default=False) as client:
        (address,) = client.run(accept_messages)
        endpoint().subscribe(topic, lambda *message: arrived.put(message), arrived.put)
        sender, most = DirectSender(client, address, arrived.put), 2 * array.nbytes
        for place in range(2):
            sender.put(topic, place, [array], most)
        messages_of = [arrived.get(timeout=10) for _ in range(2)]
        assert sorted(header for header, _, _ in messages_of) == [0, 1]
        with pytest.raises(LinkLostError, match="the message was cancelled"):
            sender.put(topic, 2, [array], most, lambda: False)
        for _, arrays, release in messages_of:
            assert np.array_equal(arrays[0], array)
            release()
        sender.put(topic, 3, [array, array, array], most)  # larger than that, and alone
        header, arrays, _ = arrived.get(timeout=10)
        assert (header, len(arrays)) == (3, 3)
        endpoint().unsubscribe(topic)  # also what was not released
        sender.put(topic, 4, [array], most)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Networks of their own, on one bridge whose address ends with 1."""
    tag, subnet = f"hl{os.getpid() % 100000}", f"10.{os.getpid() % 200 + 20}.77"
    names = [f"{tag}n{i}" for i in range(count)]
    with contextlib.ExitStack() as stack:
        try:
            ip("link", "add", tag, "type", "bridge")
            stack.callback(ip, "link", "del", tag)
            ip("addr", "add", f"{subnet}.1/24", "dev", tag)
            ip("link", "set", tag, "up")
            for i, name in enumerate(names):
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
                ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("link", "set", f"{name}h", "master", tag, "up")
                ip("-n", name, "addr", "add", f"{subnet}.{i + 2}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"networks cannot be made here: {error}")
        yield [f"{subnet}.1", *names]


def test_workers_in_networks_of_their_own() -> None:
    with namespaces(2) as (own, *names), Hosts([], own) as hosts:
        for i, name in enumerate(names):
            command = ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c",
                       f'hostname {name}; exec "$@"', "sh")  # fmt: skip
            hosts.add(f"{own[:-1]}{i + 2}", inside=command)
        with Client(hosts.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=30)
            infos = worker_infos(client)
            assert sorted(info.host for info in infos) == names
            check_lu(client, random(N))
            check_lu(client, np.asfortranarray(random(N, 2 * N, "complex64")))
            check_lu(client, random(2 * N, N))
            a = positive(N)
            x = hetero_la.solve(a, np.ones(N), assume_a="pos", nb=NB, client=client)
            assert_close(a @ x, np.ones(N))
            assert nothing_left(client)
