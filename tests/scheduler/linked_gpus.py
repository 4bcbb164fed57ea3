"""Virtual GPUs whose messages go from process to process in order, as by NCCL."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from queue import Full, Queue
from typing import Any

import numpy as np

from hetero_la.scheduler.cluster import devices
from hetero_la.tiles.kernels.cpu.device import VirtualGpu

#: Names of the communicators that this process has made, and those that were aborted.
made: list[bytes] = []
aborted: list[bytes] = []
#: Messages that a pipe takes before it lets its caller wait.
ENQUEUED = 16
#: Arrays that virtual GPUs of this process have allocated.
allocated: list[weakref.ref[Any]] = []
#: Which communicators of this process fail to be made, counted from 0.
failing: set[int] = set()


class LinkedGpu(VirtualGpu):
    """A virtual GPU that exchanges messages with those of other processes."""

    @property
    def nccl_address(self) -> str:
        return f"virtual {os.getpid()}"

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = super().empty(shape, dtype)
        allocated.append(weakref.ref(array))
        return array

    def communicator_name(self) -> bytes:
        return uuid.uuid4().bytes

    def communicator(self, name: bytes, *, sends: bool) -> Pipe:
        made.append(name)
        if len(made) - 1 in failing:
            raise RuntimeError("unhandled system error")
        return Pipe(name, sends=sends)


class Pipe:
    """One direction between two processes.

    As with CUDA, a message has left once it is received, and a queue that is full lets its caller
    wait.
    """

    def __init__(self, name: bytes, *, sends: bool) -> None:
        self.name, address = name, f"\0{name.hex()}"
        self._waiting: Queue[list[Any] | None] = Queue(ENQUEUED)
        self._over = False
        self._sends = sends
        if sends:
            self._end = connected(address)
        else:
            with Listener(address) as listener:
                self._end = listener.accept()

    def connect(self) -> None:
        if self._sends:
            threading.Thread(target=self._send_all, daemon=True).start()

    def _send_all(self) -> None:
        try:
            while (arrays := self._waiting.get()) is not None:
                self._end.send_bytes(pickle.dumps(arrays))
                self._end.recv_bytes()
                self._waiting.task_done()
        except (OSError, EOFError):
            self._over = True

    def send(self, arrays: Sequence[Any], ready: Any) -> None:
        assert ready is None
        copies = [np.array(array, order="F") for array in arrays]
        while not self._over:
            with contextlib.suppress(Full):
                return self._waiting.put(copies, timeout=0.05)
        raise RuntimeError("the communicator was aborted")

    def receive(self, targets: Sequence[Any]) -> None:
        arrays = pickle.loads(self._end.recv_bytes())
        self._end.send_bytes(b"received")
        for target, array in zip(targets, arrays, strict=True):
            target[...] = array

    def flush(self) -> None:
        while self._waiting.unfinished_tasks and not self._over:
            time.sleep(0.0005)

    def abort(self) -> None:
        aborted.append(self.name)
        self._over = True
        with contextlib.suppress(Full):
            self._waiting.put(None, timeout=0.05)
        with socket.socket(fileno=os.dup(self._end.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # which ends a wait in another thread


def connected(address: str) -> Connection:
    """A connection to a listener that may not be there yet."""
    for _ in itertools.repeat(None, 1000):
        try:
            return Client(address)
        except OSError:
            time.sleep(0.01)
    raise TimeoutError(address)


def link_gpus(dask_worker: Any) -> None:
    """Give a worker a linked GPU."""
    devices.device_of(dask_worker)  # what it has by itself
    dask_worker.hetero_device = LinkedGpu(f"gpu{dask_worker.name}")


def bytes_in_use() -> int:
    """Bytes of the arrays that are still there, garbage that nobody has collected included."""
    return sum(array.nbytes for ref in allocated if (array := ref()) is not None)


def counts() -> tuple[int, int]:
    """Communicators that were made and aborted in this process."""
    return len(made), len(aborted)
