"""The two ends of a link: the sender of messages, and their receiver."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero_la.scheduler.links.connection import Connection
from hetero_la.scheduler.links.packing import Packing, unpack
from hetero_la.scheduler.links.shared_heap import HeapBlock, HeapReader, SharedHeap
from hetero_la.scheduler.links.topics import ReceivedMessage
from hetero_la.tiles.arrays.errors import LinkLostError

#: A message: its block, and how many bytes describe it.
_MESSAGE = struct.Struct("5q")

#: A message that is not needed any more: where its block starts.
_RELEASED = struct.Struct("q")

#: Seconds between looks at whether a message that waits is still wanted.
_LOOK_SECONDS = 0.25

#: Seconds without messages after which memory is given back.
_IDLE_SECONDS = 2.0


class Sender(Connection):
    """One direction of a link: puts messages into memory that it shares with one process.

    Any thread may call its methods.

    Parameters
    ----------
    sock, poller
        As for `Connection`.
    name : str
        The receiver's endpoint.
    own_name : str
        This process's endpoint.
    on_end : callable
        Called with this and an error once the link is lost or closed.
    """

    def __init__(
        self, sock: socket.socket, poller: select.epoll, name: str, own_name: str,
        on_end: Callable[[Connection, LinkLostError], None],
    ) -> None:  # fmt: skip
        super().__init__(sock, poller)
        self.name = name
        #: Why the link has ended; None while it has not.
        self.error: LinkLostError | None = None
        self._on_end = on_end
        self._changed = threading.Condition()
        self._heap = SharedHeap()
        self._topics: dict[int, tuple[str, int]] = {}  # of the blocks that the receiver has
        self._bytes: Counter[str] = Counter()  # by topic
        self._latest = 0.0
        try:
            socket.send_fds(sock, [own_name.encode()], [self._heap.fd])
        except OSError:
            self._heap.close()
            raise

    def put(
        self, topic: str, header: Any, arrays: Sequence[np.ndarray], most: int | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Send a message; return once the arrays have been copied.

        Parameters
        ----------
        topic : str
            What the message belongs to: the receiver gives it to those who subscribe to that.
        header : object
            Anything small that can be pickled.
        arrays : sequence of ndarray
            Of any dtype without objects, shape and strides; column-major ones arrive so.
        most : int, optional
            Bytes of this topic that the receiver may have at a time: `put` waits until it has
            released enough of them.  A larger message waits until it has none.
        wanted : callable, optional
            Returns whether to wait any longer.

        Raises
        ------
        LinkLostError
            If the receiver has gone, `close` has been called, or the message is not wanted any
            longer, also while this waits.
        """
        packing = Packing(topic, header, arrays)
        with self._changed:
            while not self._fits(topic, packing.size, most):
                self._changed.wait(_LOOK_SECONDS)
                if not wanted():
                    raise LinkLostError("the message was cancelled")
            block = self._heap.allocate(packing.size)
            memory = self._heap.view(block)
            self._topics[block.start] = topic, block.size
            self._bytes[topic] += block.size
        try:
            packing.write(memory)
        except BaseException:  # Ctrl-C, too
            self._take_back(block.start)
            raise
        with self._changed:
            self._check()
            self.send(_MESSAGE.pack(*block, packing.described))

    def _check(self) -> None:
        if self.error is not None:
            raise LinkLostError(str(self.error)) from self.error

    def _fits(self, topic: str, size: int, most: int | None) -> bool:
        self._check()
        there = self._bytes[topic]
        return most is None or there == 0 or there + size <= most

    def received(self, record: bytes, fds: list[int]) -> None:
        """Take back the memory of a message."""
        self._take_back(*_RELEASED.unpack(record))

    def _take_back(self, start: int) -> None:
        with self._changed:
            topic, size = self._topics.pop(start)
            self._heap.free(start)
            self._bytes[topic] -= size
            if not self._bytes[topic]:
                del self._bytes[topic]
            self._latest = time.monotonic()
            self._changed.notify_all()

    def tidy(self) -> bool:
        """Give back memory after a while without messages; return whether to look again."""
        with self._changed:
            if self._topics or not self._heap.touched:
                return False
            if time.monotonic() - self._latest >= _IDLE_SECONDS:
                self._heap.give_back()
            return self._heap.touched

    def close(self) -> None:
        """End the link, with all waits; messages that the receiver has stay valid there."""
        self._note_end(LinkLostError(f"the link to process {self.pid} has been closed"))
        super().close()

    def _note_end(self, error: LinkLostError) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def ended(self, error: LinkLostError) -> None:
        """End all waits."""
        self._note_end(error)
        self._on_end(self, self.error or error)

    def drop(self) -> None:
        """Close the files."""
        super().drop()
        self._heap.close()


class Receiver(Connection):
    """The other end: finds messages in the memory of the process that has made the link.

    Parameters
    ----------
    sock, poller, on_end
        As for `Sender`.
    on_arrival : callable
        Called with the topic of a message, and the message.
    """

    def __init__(
        self, sock: socket.socket, poller: select.epoll,
        on_arrival: Callable[[str, ReceivedMessage], None],
        on_end: Callable[[Connection, LinkLostError], None],
    ) -> None:  # fmt: skip
        super().__init__(sock, poller)
        self._on_arrival, self._on_end = on_arrival, on_end
        self._heap: HeapReader | None = None

    def received(self, record: bytes, fds: list[int]) -> None:
        """Take the sender's name and memory, and then its messages."""
        if self._heap is None:
            self.name = record.decode()
            self._heap = HeapReader(fds[0])
            return
        *place, described = _MESSAGE.unpack(record)
        block = HeapBlock(*place)
        topic, header, arrays = unpack(self._heap.view(block), described)
        release = partial(self.send, _RELEASED.pack(block.start))
        self._on_arrival(topic, ReceivedMessage(self.name, header, arrays, release))

    def ended(self, error: LinkLostError) -> None:
        """Tell the subscribers."""
        self._on_end(self, error)

    def drop(self) -> None:
        """Close the files."""
        super().drop()
        if self._heap is not None:
            self._heap.close()
