"""Sockets to other processes of the host that never let anybody wait."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque

from hetero_la.tiles.arrays.errors import LinkLostError

#: A record is read as a whole or not at all; this is more than any has.
_RECORD_BYTES = 256

#: Records that are read from a socket before others have their turn.
_AT_ONCE = 64


def new_socket() -> socket.socket:
    """Return a socket that keeps records apart, and does not block."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def peer_of(sock: socket.socket) -> int:
    """Return the number of the process at the other end, which must be of the same user."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        raise PermissionError(f"process {pid} is of user {uid}, and this one of {os.getuid()}")
    return pid


class Connection(ABC):
    """One end of a link; `handle` is called by the thread that reads, all else by any thread.

    Parameters
    ----------
    sock : socket
        Connected, by `new_socket`.
    poller : epoll
        Where the reading thread learns that something has come.
    """

    def __init__(self, sock: socket.socket, poller: select.epoll) -> None:
        self.pid = peer_of(sock)
        #: The peer's endpoint.
        self.name = ""
        self.fd = sock.fileno()
        self._socket, self._poller = sock, poller
        self._sending = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._ended = False

    @abstractmethod
    def received(self, record: bytes, fds: list[int]) -> None:
        """Take what has come."""

    @abstractmethod
    def ended(self, error: LinkLostError) -> None:
        """Note that nothing can come or go any more."""

    @abstractmethod
    def drop(self) -> None:
        """Close all files, in this process only: a forked child does it, whatever is going on."""
        self._ended = True
        self._socket.close()

    def start(self) -> None:
        """Begin to read."""
        self._poller.register(self.fd, select.EPOLLIN)

    def send(self, record: bytes) -> None:
        """Send a record, now or when the peer has read enough; none to a peer that is gone."""
        with self._sending:
            if self._ended or (not self._unsent and self._sent(record)):
                return
            self._unsent.append(record)
            self._poller.modify(self.fd, select.EPOLLIN | select.EPOLLOUT)

    def _sent(self, record: bytes) -> bool:
        try:
            self._socket.send(record, socket.MSG_NOSIGNAL)
        except ConnectionError:
            pass  # The peer is gone, as the reading thread will find.
        except OSError:  # there is no room, or no memory for it
            return False
        return True

    def _send_rest(self) -> None:
        with self._sending:
            while self._unsent and self._sent(self._unsent[0]):
                self._unsent.popleft()
            if not self._unsent:
                self._poller.modify(self.fd, select.EPOLLIN)

    def handle(self, events: int = 0) -> bool:
        """Read what has come, and send what could not be; return whether more may be there."""
        try:
            if events & select.EPOLLOUT:
                self._send_rest()
            for _ in range(_AT_ONCE):
                self.received(*self._read())
            return True
        except BlockingIOError:
            pass
        except LinkLostError as error:
            self.end(error)
        except Exception as error:
            lost = LinkLostError(f"a message of process {self.pid} cannot be read: {error}")
            lost.__cause__ = error
            self.end(lost)
        return False

    def _read(self) -> tuple[bytes, list[int]]:
        try:
            record, fds, _, _ = socket.recv_fds(self._socket, _RECORD_BYTES, 1)
        except ConnectionResetError:  # once; what was sent before can still be read
            return self._read()
        if not record:
            raise LinkLostError(f"process {self.pid} has ended, or has closed its link")
        return record, fds

    def end(self, error: LinkLostError) -> None:
        """Close this end of the link, in the reading thread."""
        with self._sending:
            self._ended = True
            self._unsent.clear()
            self._poller.unregister(self.fd)
        self.ended(error)
        self.drop()

    def close(self) -> None:
        """End the link: the reading threads at both ends find that it is at its end."""
        with self._sending:
            if not self._ended:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
