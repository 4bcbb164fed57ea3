"""Waits for the tasks of a run that end, whatever happens to the workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from distributed import Client, Future

from hetero_la.scheduler.dask_clients import known_infos
from hetero_la.tiles.errors import RunAbortedError

#: Seconds between looks at whether the workers of a run are still there.
_LOOK_INTERVAL = 0.25


class _UnfinishedError(Exception):
    """A future that will never have a result."""

    def __init__(self, future: Future) -> None:
        super().__init__(future.key)
        self.future = future


def wait_all(client: Client, futures: Sequence[Future], workers: Sequence[str]) -> None:
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
        for one that has left.

    Raises
    ------
    Exception
        What the first failing task raised.
    RunAbortedError
        If a worker has left, the futures were cancelled, or the cluster is gone.
    """
    try:
        client.sync(_settle, client, futures, workers)
    except _UnfinishedError as unfinished:
        error = _reason(unfinished.future)
        _cancel(client, futures)
        raise error from None
    except BaseException:
        _cancel(client, futures)
        raise


async def _settle(client: Client, futures: Sequence[Future], workers: Sequence[str]) -> None:
    async def finish(future: Future) -> None:
        await future._state.wait()
        if future.status != "finished":
            raise _UnfinishedError(future)

    waiting = {asyncio.ensure_future(finish(future)) for future in futures}
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=_LOOK_INTERVAL, return_when=asyncio.FIRST_EXCEPTION
            )
            errors = [error for task in done if (error := task.exception())]
            if errors:
                error = min(errors, key=_is_echo)
                if _is_echo(error):  # a worker that has left may be why
                    await _check_workers(client, workers)
                raise error
            if waiting:
                await _check_workers(client, workers)
    finally:
        for task in waiting:
            task.cancel()


def _is_echo(error: BaseException) -> bool:
    """Whether it only says that the run ends, and another error may say why."""
    return isinstance(error, _UnfinishedError) and isinstance(
        _reason(error.future), RunAbortedError
    )


async def _check_workers(client: Client, workers: Sequence[str]) -> None:
    try:
        present = await client.nthreads()
    except (OSError, AttributeError, RuntimeError) as error:  # a closed client has no scheduler
        raise RunAbortedError("the connection to Dask's scheduler was lost") from error
    if lost := [address for address in workers if address not in present]:
        names = {info.address: info.name for info in known_infos(client)}
        label = f"{names[lost[0]]} ({lost[0]})" if lost[0] in names else lost[0]
        raise RunAbortedError(f"worker {label} left the cluster before its work was done")


def _reason(future: Future) -> BaseException:
    if future.status == "error":
        return future._state.exception.with_traceback(future._state.traceback)
    return RunAbortedError(f"the run was cancelled: task {future.key!r} is {future.status}")


def _cancel(client: Client, futures: Sequence[Future]) -> None:
    with contextlib.suppress(Exception):
        client.cancel(list(futures), reason="hetero_la", msg="the run has ended early")
