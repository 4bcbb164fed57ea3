"""Columns of a matrix that travel between the client's process and workers."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetero_la.scheduler.exchange.group import link_to, portable
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.links.endpoint import endpoint
from hetero_la.tiles.arrays.errors import LinkLostError, RunAbortedError
from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.storage.staging import Staging

#: Bytes of columns that a receiver may have in shared memory at a time.
_MOST = 2**27


class Columns(NamedTuple):
    """Rows of columns from `start` to before `stop` of a matrix."""

    start: int
    stop: int
    block: Array
    rows: slice


class ColumnSource(Protocol):
    """Where a worker's columns are loaded from: of each, the rows that travel."""

    def load(self, copies: Staging, start: int, target: Array) -> None:
        """Copy the tile column that begins at `start` to the device of `copies`."""


class GivenColumns:
    """Input that is there as a whole; each tile column is let go of once it is loaded.

    Parameters
    ----------
    blocks : dict
        First element column in the matrix -> rows of its tile column, which are only read.
    """

    def __init__(self, blocks: dict[int, Array]) -> None:
        self._blocks = dict(blocks)

    def load(self, copies: Staging, start: int, target: Array) -> None:
        """Copy the tile column that begins at `start` to the device of `copies`."""
        copies.upload(target, self._blocks.pop(start))


class FedColumns:
    """Input of a worker that comes column by column, in the order in which it is loaded.

    Parameters
    ----------
    inbox : WaitTable
        Of the worker's group.
    """

    def __init__(self, inbox: WaitTable) -> None:
        self._inbox = inbox

    def load(self, copies: Staging, start: int, target: Array) -> None:
        """Copy the tile column that begins at `start` to the device, once it is there."""
        arrived = self._inbox.take(("column", start))
        try:
            copies.upload(target, arrived.arrays[0])  # by pinned memory: it is read at the return
        finally:
            arrived.release()


class MessageSender(Protocol):
    """What sends messages to one process, such as a link's `Sender`."""

    def put(
        self, topic: str, header: Any, arrays: Sequence[np.ndarray], most: int | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Send a message; see `Sender.put`."""


class Feed(NamedTuple):
    """A worker to which columns are sent: by what, its topic, and the columns and rows in order."""

    sender: MessageSender
    topic: str
    columns: Sequence[tuple[int, int, slice]]


class Feeder:
    """Threads that send workers their columns, each at its own pace.

    Parameters
    ----------
    feeds : sequence of Feed
        The workers.
    columns : callable
        Returns rows of the columns from one to before another, which nobody changes while the run
        goes on.
    """

    def __init__(
        self, feeds: Sequence[Feed], columns: Callable[[int, int, slice], np.ndarray]
    ) -> None:
        self._columns = columns
        self._ended = threading.Event()
        # One thread for all would let a worker wait that another one waits for.
        for feed in feeds:
            threading.Thread(target=self._send, args=feed, daemon=True).start()

    def end(self) -> None:
        """Send no more."""
        self._ended.set()

    def _send(
        self, sender: MessageSender, topic: str, parts: Sequence[tuple[int, int, slice]]
    ) -> None:
        try:
            for start, stop, rows in parts:
                if self._ended.is_set():
                    return
                block, header = self._columns(start, stop, rows), (("column", start), None)
                sender.put(topic, header, [block], _MOST, lambda: not self._ended.is_set())
        except LinkLostError:
            pass  # the run ends with the worker
        except Exception as error:
            with contextlib.suppress(LinkLostError):
                sender.put(topic, ("abort", portable(error)), [])


class Collector:
    """Receiver of the columns that workers of this host have made.

    Parameters
    ----------
    store : callable
        Called with the fields of `Columns`.
    at_once : bool
        Whether nothing is stored before all has come.

    Attributes
    ----------
    link, topic : str
        Where workers send columns.
    most : int or None
        Bytes that it may have at a time; None where it keeps all.
    """

    def __init__(self, store: Callable[[int, int, Array, slice], None], *, at_once: bool) -> None:
        self.link, self.topic = endpoint().name, f"columns {uuid.uuid4().hex}"
        self.most = None if at_once else _MOST
        self._store, self._at_once = store, at_once
        self._kept: list[tuple[Columns, Callable[[], None]]] = []
        self._table = WaitTable()
        endpoint().subscribe(self.topic, self._receive, self._table.abort)

    def _receive(
        self, header: tuple[int, int, slice], arrays: list[np.ndarray], release: Callable[[], None]
    ) -> None:
        start, stop, rows = header
        columns = Columns(start, stop, arrays[0], rows)
        if self._at_once:
            self._kept.append((columns, release))
        else:
            try:
                self._store(*columns)
            finally:  # the senders go on; `wait` raises the error
                release()
        self._table.put((start, stop), None)

    def wait(self, spans: Iterable[tuple[int, int]]) -> None:
        """Wait until the columns of these spans have been stored; raise the error of one."""
        try:
            for span in spans:
                self._table.wait(span)
        except RunAbortedError:
            raise self._table.error or RunAbortedError("the columns did not come") from None
        for columns, release in self._kept:
            self._store(*columns)
            release()
        self._kept.clear()

    def close(self) -> None:
        """Take no more."""
        endpoint().unsubscribe(self.topic)


def send_columns(link: str, topic: str, columns: Iterable[Columns], most: int | None) -> bool:
    """Send columns to a `Collector`; return whether it is on this host."""
    sender = link_to(link)
    if sender is None:
        return False
    for start, stop, block, rows in columns:
        sender.put(topic, (start, stop, rows), [block], most=most)
    return True
