"""The one place of a process where links to other processes of its host begin and end."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hetero_la.scheduler.links.connection import Connection, new_socket
from hetero_la.scheduler.links.link_ends import Receiver, Sender
from hetero_la.scheduler.links.shared_heap import SharedHeap
from hetero_la.scheduler.links.topics import OnLost, OnMessage, ReceivedMessage, Topics
from hetero_la.tiles.arrays.errors import LinkLostError
from hetero_la.tiles.arrays.forks import ProcessLock, in_forked_child

#: Seconds after which it is looked again whether memory is idle.
_LOOK_SECONDS = 1.0


class Endpoint:
    """Sends messages with arrays to other processes of this host, and receives theirs.

    Messages of one process arrive in the order in which they were sent.  One thread reads for all
    links of the process, and calls the subscribers: these must not wait for anything.

    Attributes
    ----------
    name : str
        What other processes `connect` to; empty where links do not work, as on all systems but
        Linux.
    closed : bool
        Whether `close` has been called.

    Examples
    --------
    >>> import queue
    >>> import numpy as np
    >>> here, messages = Endpoint(), queue.Queue()
    >>> def on_message(header, arrays, release):
    ...     messages.put((header, arrays[0].sum()))
    ...     release()
    >>> here.subscribe("run 1", on_message, messages.put)
    >>> here.connect(here.name).put("run 1", "panel 0", [np.ones((3, 2))])
    >>> messages.get(timeout=10)
    ('panel 0', np.float64(6.0))
    >>> here.close()
    """

    def __init__(self) -> None:
        self.name = ""
        self.closed = False
        self._lock = threading.Lock()
        self._topics = Topics()
        self._senders: dict[str, Sender] = {}
        self._links: dict[int, Connection] = {}  # by file
        with contextlib.suppress(OSError, AttributeError):  # where there is no such thing
            self._listen()

    def _listen(self) -> None:
        SharedHeap().close()
        self._poller = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listener = new_socket()
        name = f"hetero-la-{secrets.token_hex(16)}"
        self._listener.bind(_address(name))
        self._listener.listen(socket.SOMAXCONN)
        self._poller.register(self._wake, select.EPOLLIN)
        self._poller.register(self._listener, select.EPOLLIN)
        self._thread = threading.Thread(target=self._read, name="hetero-la links", daemon=True)
        self._thread.start()
        self.name = name

    def connect(self, name: str) -> Sender:
        """Return the link to the process whose endpoint has this name, made at the first call.

        All that send to it share this link until one of them closes it.

        Raises
        ------
        LinkLostError
            If there is no such process on this host, or it is in another network namespace, or
            one of the two processes has no links.
        """
        with self._lock:
            sender = self._senders.get(name)
            if sender is None or sender.error is not None:
                sender = self._senders[name] = self._dial(name)
                self._links[sender.fd] = sender
                sender.start()
            return sender

    def _dial(self, name: str) -> Sender:
        if not name or not self.name or self.closed:
            raise LinkLostError("one of the two processes has no links")
        sock = new_socket()
        try:
            sock.connect(_address(name))
            return Sender(sock, self._poller, name, self.name, self._end)
        except OSError as error:
            sock.close()
            raise LinkLostError(f"this process cannot reach {name!r}: {error}") from error

    def subscribe(
        self, topic: str, on_message: OnMessage, on_lost: OnLost, watch: Iterable[str] = ()
    ) -> None:
        """Receive the messages of a topic, also those that have come before.

        Parameters
        ----------
        topic : str
            A name that is used for nothing else, before or after.
        on_message : callable
            Called with the header, the arrays and a function `release`.  The arrays are in the
            sender's memory, cannot be written to, and are valid until `release` is called.
        on_lost : callable
            Called with an error once for each peer that is lost after it has sent something of
            this topic, or that is watched.  What a peer had sent before anybody subscribed is
            lost with it.  It also gets what `on_message` raises.
        watch : iterable of str, optional
            Names of endpoints.

        Raises
        ------
        LinkLostError
            If one that is to be watched cannot be reached, or the topic is over.
        ValueError
            If there is a subscriber.
        """
        watched = [self.connect(name) for name in watch]
        self._topics.subscribe(topic, on_message, on_lost, [peer.name for peer in watched])
        for peer in watched:
            if peer.error is not None:  # before it was watched
                self._topics.lose(peer.name, peer.error)
        self._interrupt()

    def unsubscribe(self, topic: str) -> None:
        """End a topic: release all its messages, those handed out and those still to come.

        This holds also where nobody has subscribed.  A call of a subscriber that has begun may
        still be going on.
        """
        self._topics.unsubscribe(topic)

    def deliver(
        self, topic: str, header: Any, arrays: list[np.ndarray],
        on_release: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Give the subscriber of a topic, here and now, a message that has come another way."""
        self._topics.add(topic, ReceivedMessage("", header, arrays, on_release))

    def close(self) -> None:
        """End all links; subscribers are not called any more."""
        with self._lock:
            already, self.closed = self.closed, True
            self._topics.clear()
            if self.name and not already:
                os.eventfd_write(self._wake, 1)
        if self.name and threading.current_thread() is not self._thread:
            self._thread.join()

    def _interrupt(self) -> None:
        """Have the reading thread look at what has changed; without links, there is none."""
        with self._lock:
            if self.name and not self.closed:
                os.eventfd_write(self._wake, 1)
        if not self.name:
            self._topics.serve()

    def _read(self) -> None:
        """Serve all links, until the endpoint is closed."""
        again = False
        while not self.closed:
            for fd, events in self._poller.poll(_LOOK_SECONDS if again else None):
                if fd == self._wake:
                    os.eventfd_read(fd)
                    self._topics.serve()
                elif fd == self._listener.fileno():
                    self._accept()
                elif link := self._links.get(fd):
                    link.handle(events)
            again = any(sender.tidy() for sender in tuple(self._senders.values()))
        for link in tuple(self._links.values()):
            link.end(LinkLostError("the links of this process have been closed"))
        with self._lock:  # `close` may not have written yet
            self.drop()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # who called has gone already, or there can be no more files
            return
        sock.setblocking(False)
        try:
            link = Receiver(sock, self._poller, self._topics.add, self._end)
        except PermissionError:
            sock.close()
            return
        self._links[link.fd] = link
        link.start()

    def _end(self, link: Connection, error: LinkLostError) -> None:
        """Forget a link that has come to its end."""
        with self._lock:
            del self._links[link.fd]
            if self._senders.get(link.name) is link:
                del self._senders[link.name]
        for other in tuple(self._links.values()):
            while other.name == link.name and other.handle():
                pass  # What a peer has sent is there before the news that it is lost.
        self._topics.lose(link.name, error)
        self._topics.serve()

    def drop(self) -> None:
        """Close all files, in this process only."""
        for link in tuple(self._links.values()):
            link.drop()
        self._links.clear()
        if self.name:
            self._listener.close()
            self._poller.close()
            os.close(self._wake)


def _address(name: str) -> str:
    """Return the address of an endpoint: in a namespace that is not the file system's."""
    return "\0" + name


_making = ProcessLock()
_endpoint: Endpoint | None = None


def endpoint() -> Endpoint:
    """Return the endpoint of this process, made at the first call; a forked child has its own.

    Examples
    --------
    >>> endpoint() is endpoint()
    True
    """
    global _endpoint
    with _making:
        if _endpoint is None or _endpoint.closed:
            _endpoint = Endpoint()
        return _endpoint


@in_forked_child
def _leave_links_to_parent() -> None:
    """Close what a forked child has got of its parent's links, which would not end otherwise."""
    global _endpoint
    if _endpoint is not None:
        _endpoint.drop()
        _endpoint = None
