"""Messages to Dask workers of other hosts, by connections of Dask's own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
from distributed import Client, Worker
from distributed.protocol import to_serialize

from hetero_la.scheduler.links.endpoint import endpoint
from hetero_la.tiles.arrays.errors import LinkLostError

#: Seconds in which a worker that a client can reach answers.
_ANSWER_SECONDS = 5.0
#: Seconds between looks at whether a message that waits is still wanted.
_LOOK_SECONDS = 0.25
#: Messages that may be on their way from a client to one worker, or wait there.
_MOST_MESSAGES = 16
_HANDLER = "hetero_la_message"


def accept_messages(dask_worker: Worker) -> None:
    """Let a worker take messages from now on; `Client.run` calls it there."""
    dask_worker.handlers.setdefault(_HANDLER, _deliver)


async def _deliver(
    topic: str, header: bytes, arrays: list[np.ndarray], until_released: bool = False
) -> None:
    """Take a message, and answer at once, or when its arrays are not needed any more."""
    released, loop = asyncio.Event(), asyncio.get_running_loop()

    def release() -> None:
        with contextlib.suppress(RuntimeError):  # the worker has come to its end
            loop.call_soon_threadsafe(released.set)

    endpoint().deliver(topic, pickle.loads(header), arrays, release)
    if until_released:
        await released.wait()


def tell(
    here: Worker | None, address: str, topic: str, header: Any, arrays: Sequence[np.ndarray],
    fail: Callable[[BaseException], None],
) -> None:  # fmt: skip
    """Send a message from a worker to another one at `address`; call `fail` if that fails."""
    copies = [np.array(array, order="F") for array in arrays]
    if here is None:  # without workers, all are in this process
        endpoint().deliver(topic, header, copies)
        return

    def look(sent: Future[None]) -> None:
        if not sent.cancelled() and (error := sent.exception()):
            fail(LinkLostError(f"a message to {address} was lost: {error!r}"))

    sending = _send(here.rpc(address), topic, header, copies)
    asyncio.run_coroutine_threadsafe(sending, here.loop.asyncio_loop).add_done_callback(look)


async def _send(
    rpc: Any, topic: str, header: Any, arrays: Sequence[np.ndarray], **how: bool
) -> None:
    serialized = [to_serialize(array) for array in arrays]
    await rpc.hetero_la_message(topic=topic, header=pickle.dumps(header), arrays=serialized, **how)


class DirectSender:
    """Messages from a client to a worker, without Dask's scheduler; one thread may send them.

    Parameters
    ----------
    client : Client
        The client.
    address : str
        Of a worker that accepts messages, and that the client can reach.
    fail : callable
        Called with an error if the worker cannot even be told that a message was lost.
    """

    def __init__(
        self, client: Client, address: str, fail: Callable[[LinkLostError], None]
    ) -> None:  # fmt: skip
        self._client, self._address, self._fail = client, address, fail
        self._sent: deque[tuple[Future[None], int]] = deque()

    def put(
        self, topic: str, header: Any, arrays: Sequence[np.ndarray], most: int | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Send a message, as a link's `Sender` does; the arrays are read until it has arrived.

        Parameters
        ----------
        topic, header, arrays, wanted
            As for a link.
        most : int, optional
            Bytes that may be on their way, or at the worker and not released yet.

        Raises
        ------
        LinkLostError
            If an earlier message did not arrive, or this one is not wanted any longer.
        """
        size = sum(array.nbytes for array in arrays)
        while self._sent and most is not None and self._full(size, most):
            self._wait_for(self._sent[0][0], wanted)
            self._sent.popleft()
        sending = self._send(topic, header, arrays)
        try:
            sent = asyncio.run_coroutine_threadsafe(sending, self._client.loop.asyncio_loop)
        except RuntimeError as error:  # the client is closed
            sending.close()
            raise LinkLostError(f"no message can be sent to {self._address}: {error}") from error
        self._sent.append((sent, size))

    def _full(self, size: int, most: int) -> bool:
        """Return whether a message of some bytes has to wait: each also takes a connection."""
        return len(self._sent) == _MOST_MESSAGES or size + sum(n for _, n in self._sent) > most

    def _wait_for(self, sent: Future[None], wanted: Callable[[], bool]) -> None:
        while not wait([sent], _LOOK_SECONDS).done:
            if not wanted():
                raise LinkLostError("the message was cancelled")
        if error := sent.exception():
            raise LinkLostError(f"a message to {self._address} was lost: {error!r}") from error

    async def _send(self, topic: str, header: Any, arrays: Sequence[np.ndarray]) -> None:
        send = functools.partial(_send, self._client.rpc(self._address), topic)
        try:
            await send(header, arrays, until_released=True)
        except Exception as error:
            lost = LinkLostError(f"a message from the client was lost: {error!r}")
            try:
                await send(("abort", lost), ())
            except Exception:
                self._fail(lost)
            raise


#: Client -> addresses of workers that it can reach.
_reached: weakref.WeakKeyDictionary[Client, set[str]] = weakref.WeakKeyDictionary()


async def reachable(client: Client, addresses: Sequence[str]) -> set[str]:
    """Return which of these workers can be sent messages by a `DirectSender`."""
    if client.direct_to_workers is False:
        return set()
    known = _reached.setdefault(client, set())
    new = [address for address in addresses if address not in known]
    answers = await asyncio.gather(*(_answers(client, address) for address in new))
    known |= {address for address, answer in zip(new, answers, strict=True) if answer}
    found = [address for address in addresses if address in known]
    return set(await client.run(accept_messages, workers=found, on_error="ignore"))


async def _answers(client: Client, address: str) -> bool:
    try:
        await asyncio.wait_for(client.rpc(address).identity(), _ANSWER_SECONDS)
    except Exception:  # of the network, or for want of what an address of its kind needs
        return False
    return True
