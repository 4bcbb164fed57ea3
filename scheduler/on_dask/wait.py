"""Bounded waits for the tasks of a run: a lost or paused worker ends them with an error."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from distributed import Client, Future, rejoin, secede
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.core import Status

from hetero_la.scheduler.cluster.clients import known_infos
from hetero_la.scheduler.cluster.devices import current_worker
from hetero_la.tiles.arrays.errors import RunAbortedError, WorkerLostError

#: Seconds between checks that the workers of a run are still there.
_LOOK_INTERVAL = 0.25
#: Seconds that a worker of a run may be paused: Dask gives it no task meanwhile.
_PAUSE_LIMIT = 60.0

#: Seconds in which Dask's scheduler learns that a worker has left.
NOTICE_SECONDS = 2.0
#: Seconds in which Dask's scheduler can be told that tasks are no longer wanted.
_CANCEL_SECONDS = 5.0


class _UnfinishedError(Exception):
    """The future in `args` will never have a result."""


@contextlib.contextmanager
def thread_given_up(*, back: bool = True) -> Iterator[None]:
    """Release the thread of a Dask task to other tasks in the block, which waits for them.

    As `distributed.worker_client` does.  It may have been left before.  A task that ends with the
    block need not have it `back`.
    """
    try:
        secede()
        given_up = True
    except (ValueError, AttributeError, KeyError):  # no task, none in a thread, or done before
        given_up = False
    # Outside, or errors of the block would carry along this one, which cannot be pickled.
    try:
        yield
    finally:
        if given_up and back:
            rejoin()


def wanted_by_dask() -> Callable[[], bool]:
    """Return a function that tells whether Dask still wants the task that runs in this thread."""
    if (worker := current_worker()) is None:  # nobody can cancel it in Dask's local schedulers
        return lambda: True
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled"

    return wanted


def wait_all(
    client: Client, futures: Sequence[Future], workers: Sequence[str],
    check: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Wait until all `futures` are done, or one of them cannot be.

    Whatever ends the wait early (an error, a lost worker, Ctrl-C) also cancels
    the futures.

    Parameters
    ----------
    client : Client
        Their client.
    futures : sequence of Future
        What to wait for.
    workers : sequence of str
        Addresses of the workers that they are tied to; Dask would wait for ever
        for one that has left (dask/distributed#7346).
    check : callable, optional
        Called from time to time; what it raises ends the wait.

    Raises
    ------
    Exception
        The error of the first task that failed.
    WorkerLostError
        If a worker has left, or was paused for too long.
    RunAbortedError
        If the futures were cancelled, or the cluster is gone.
    """
    try:
        _wait(client, futures, workers, _finish, check)
    except BaseException:
        _cancel(client, futures)
        raise


def fetch_all(
    client: Client, futures: Sequence[Future], workers: Sequence[str],
    check: Callable[[], None] = lambda: None, *, direct: bool | None = None,
) -> list[Any]:  # fmt: skip
    """Wait as `wait_all` does, but cancel nothing, and return the results.

    With `direct` they come from the workers themselves, and not through Dask's scheduler.
    """

    async def fetch(future: Future) -> Any:
        await _finish(future)
        try:
            return await client.gather(future, direct=direct, asynchronous=True)
        except (FutureCancelledError, FuturesCancelledError, OSError) as error:
            raise _cancelled(future) from error  # the result was there, and is no more

    return _wait(client, futures, workers, fetch, check)


def guard(client: Client, start: Callable[[], Awaitable[Any]], workers: Sequence[str]) -> Any:
    """Await `start` in the client's event loop, for as long as `workers` are there.

    Raises
    ------
    Exception
        What it raises.
    RunAbortedError
        As in `wait_all`.
    """
    return client.sync(_settle, client, lambda _: start(), [None], workers)[0]


def _wait(
    client: Client,
    futures: Sequence[Future],
    workers: Sequence[str],
    each: Callable[[Future], Awaitable[Any]],
    check: Callable[[], None],
) -> list[Any]:
    try:
        return list(client.sync(_settle, client, each, futures, workers, check))
    except _UnfinishedError as unfinished:
        reason = _reason(*unfinished.args)
    raise reason  # outside, or it would carry an error along that cannot be pickled


async def _finish(future: Future) -> None:
    await future._state.wait()
    if future.status != "finished":
        raise _UnfinishedError(future)


async def _settle(
    client: Client, each: Callable[[Any], Awaitable[Any]], items: Sequence[Any],
    workers: Sequence[str], check: Callable[[], None] = lambda: None,
) -> list[Any]:  # fmt: skip
    """Await `each` of all items, and return the results; raise if a worker is lost first."""
    tasks = [asyncio.ensure_future(each(item)) for item in items]
    everything, watch = asyncio.gather(*tasks), _Watch(client, workers, check)
    watching = asyncio.ensure_future(watch.until(everything))
    for one in (everything, watching):  # cancelling would leave what Dask began without an owner
        one.add_done_callback(_look_at_error)
    try:
        await asyncio.wait((everything, watching), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        watching.cancel()
        raise
    if not everything.done():
        watching.result()
    errors = [error for task in tasks if task.done() and (error := task.exception())]
    if errors:
        error = min(errors, key=_is_echo)
        if _is_echo(error):  # a worker that has left may be why
            await watch.look()
        raise error
    return everything.result()


def _look_at_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task for which nobody waits, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _is_echo(error: BaseException) -> bool:
    """Return whether an error only says that the run ends, and another one may say why."""
    return isinstance(error, _UnfinishedError) and isinstance(_reason(*error.args), RunAbortedError)


class _Watch:
    """Watch over workers: whether they are there, and accept tasks."""

    def __init__(
        self, client: Client, workers: Sequence[str], check: Callable[[], None]
    ) -> None:  # fmt: skip
        self._client, self._workers, self._check = client, workers, check
        self._paused: dict[str, float] = {}  # since when

    async def until(self, end: asyncio.Future[Any]) -> None:
        """Look from time to time; the end need not wait for a look that is under way."""
        while not (await asyncio.wait((end,), timeout=_LOOK_INTERVAL))[0]:
            await self.look()

    async def look(self) -> None:
        """Raise if one has left, or was paused for too long, or `check` does."""
        try:
            running = await self._client.scheduler.ncores_running()
        except (OSError, AttributeError, RuntimeError) as error:  # a closed client has none
            raise RunAbortedError("the connection to Dask's scheduler was lost") from error
        now = time.monotonic()
        if not set(self._workers) <= running.keys():
            await self._raise_for_lost()
        for address in self._workers:
            if address in running:
                self._paused.pop(address, None)
            elif now - self._paused.setdefault(address, now) > _PAUSE_LIMIT:
                raise WorkerLostError(
                    f"worker {self._label(address)} has been paused for {_PAUSE_LIMIT:g} s: "
                    "its memory may be full"
                )
        self._check()

    async def _raise_for_lost(self) -> None:
        found = await self._client.scheduler.identity()
        statuses = {address: worker["status"] for address, worker in found["workers"].items()}
        for address in self._workers:
            if statuses.get(address) not in ("running", "paused"):
                raise WorkerLostError(
                    await lost_message(self._client, address, self._label(address))
                )

    def _label(self, address: str) -> str:
        labels = {info.address: info.label for info in known_infos(self._client)}
        return labels.get(address, address)


async def lost_message(client: Client, address: str, label: str) -> str:
    """Return the message about a worker that is lost, or is about to leave."""
    found = await client.scheduler.identity()
    leaving = found["workers"].get(address, {}).get("status") == Status.closing_gracefully.name
    events = await client.scheduler.events(topic=address)
    if leaving or any(event.get("action") == "retired" for _, event in events):
        return f"worker {label} was retired before its work was done"
    return f"worker {label} left the cluster before its work was done"


def _reason(future: Future) -> BaseException:
    if future.status == "error":
        return future._state.exception.with_traceback(future._state.traceback)
    return _cancelled(future)


def _cancelled(future: Future) -> RunAbortedError:
    return RunAbortedError(f"the run was cancelled: task {future.key!r} is {future.status}")


def _cancel(client: Client, futures: Sequence[Future]) -> None:
    async def cancel() -> None:
        await client.cancel(
            list(futures), asynchronous=True, reason="hetero_la", msg="the run has ended early"
        )

    with contextlib.suppress(Exception):  # a client that was closed may have no event loop left
        client.sync(cancel, callback_timeout=_CANCEL_SECONDS)
