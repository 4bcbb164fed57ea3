"""Communicators between the GPUs of a run's workers: made by both ends, kept for later runs."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.kernels.device import CommunicatingDevice, Communicator, Device

#: Seconds between looks at whether the other end of a communicator has failed.
_LOOK_INTERVAL = 0.05
#: Seconds after which aborts that do not end are left to themselves.
_ABORT_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Contact(NamedTuple):
    """How the other workers of a run reach one.

    Attributes
    ----------
    process : str
        Name of its process, which no other process has had.
    link : str
        Name of the process's endpoint for processes of the same host; "" if it has none.
    address : str
        Dask's address of the worker.
    topic : str
        Under which messages to it are sent.
    gpu : str
        Its GPU, if it can exchange messages by NCCL, by host and PCI address; else "".
    """

    process: str
    link: str
    address: str
    topic: str
    gpu: str


class Post(Protocol):
    """Sends a worker arrays, or else a value, which it finds in its inbox under a key."""

    def __call__(
        self, worker: int, key: Any, arrays: Sequence[np.ndarray] = (), value: Any = None
    ) -> None: ...


class CommunicatorMaker:
    """Maker of one worker's ends of the communicators of a run.

    Parameters
    ----------
    worker : int
        Index of the worker in the run.
    device : Device
        Its device.
    contacts : sequence of Contact
        Of all workers of the run.
    inbox : WaitTable
        Where messages of the others come.
    post : callable
        Sends a message to another worker.
    lasting : bool
        Whether later runs use the same device object.

    Attributes
    ----------
    made : list of Communicator
        The communicators of this run, for those that abort it.
    """

    def __init__(
        self, worker: int, device: Device, contacts: Sequence[Contact], inbox: WaitTable,
        post: Post, *, lasting: bool,
    ) -> None:  # fmt: skip
        self._worker, self._device, self._contacts = worker, device, contacts
        self._inbox, self._post, self._lasting = inbox, post, lasting
        self.made: list[Communicator] = []

    def connect(self, first: int, second: int) -> tuple[Communicator, Communicator] | None:
        """Return the communicators to and from the other of two workers, or None.

        Both must have GPUs that NCCL can use, and both ends must have succeeded; otherwise the
        messages go through host memory.
        """
        a, b = self._contacts[first], self._contacts[second]
        if not (a.gpu and b.gpu) or a.gpu == b.gpu or a.process == b.process:
            return None
        other = second if first == self._worker else first
        made = {source: self._communicator(source, other) for source in (first, second)}
        outgoing, incoming = made[self._worker], made[other]
        return None if outgoing is None or incoming is None else (outgoing, incoming)

    def _communicator(self, source: int, other: int) -> Communicator | None:
        """Return the communicator of one direction: the one of an earlier run, if both have it."""
        device = cast(CommunicatingDevice, self._device)
        places = self._place_in_process(self._worker), self._place_in_process(other)
        key = (
            self._contacts[other].process, self._contacts[other].gpu, *places,
            source == self._worker,
        )  # fmt: skip
        pair = source, *({self._worker, other} - {source})
        known = _known(key) if self._lasting else None
        if source == self._worker:
            theirs = self._inbox.take(("known", pair))
            name = known.name if known and known.name == theirs else device.communicator_name()
            self._post(other, ("name", pair), value=name)
        else:
            self._post(other, ("known", pair), value=known.name if known else ())
            name = self._inbox.take(("name", pair))
        problem = ""
        if known is None or known.name != name:
            if known is not None:
                drop_all([known])
            make = functools.partial(device.communicator, name, sends=source == self._worker)
            try:
                known = self._opened(make, ("problem", pair))
            except Exception as error:  # whatever NCCL or the network says
                self._inbox.check()  # where the run has ended, it says nothing of NCCL
                known, problem = None, str(error)
                _log.warning("messages go through host memory: NCCL failed (%s)", error)
        self._post(other, ("problem", pair), value=problem)
        if self._inbox.take(("problem", pair)) or known is None:
            return None
        with _communicators_lock:
            _communicators[key] = known
        self.made.append(known)
        return known

    def _place_in_process(self, worker: int) -> int:
        """Return how many workers of the run before this one are in the same process."""
        process = self._contacts[worker].process
        return [contact.process for contact in self._contacts[:worker]].count(process)

    def _opened(self, make: Callable[[], Communicator], key: Any) -> Communicator | None:
        """Return a new communicator, or None if the other worker says by `key` that it failed.

        Then, and if it is lost, `make` may wait for it for ever, and so may what a GPU has begun.
        """
        opened: Future[Communicator] = Future()
        made: list[Communicator] = []

        def work() -> None:
            try:
                made.append(make())
                if not opened.cancelled():
                    made[0].connect()
                opened.set_result(made[0])
            except BaseException as error:
                drop_all(made)
                with contextlib.suppress(InvalidStateError):  # nobody waits any more
                    opened.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            while not (key in self._inbox and self._inbox.get(key)):
                self._inbox.check()
                if wait([opened], _LOOK_INTERVAL).done:
                    return opened.result()
            return None
        finally:
            if opened.cancel():
                drop_all(made)


_communicators_lock = ProcessLock()
#: Process and GPU of the other end, the workers' places in their processes, and whether it is this
#: one that sends -> the communicator.
_communicators: dict[tuple[str, str, int, int, bool], Communicator] = {}


def _known(key: tuple[str, str, int, int, bool]) -> Communicator | None:
    """Return an earlier run's communicator; drop those of processes that had the GPU before."""
    with _communicators_lock:
        gone = [c for k, c in _communicators.items() if k[1] == key[1] and k[0] != key[0]]
        known = _communicators.get(key)
    drop_all(gone)
    return known


def drop_all(communicators: Sequence[Communicator]) -> None:
    """Abort communicators, which no later run will use.

    At once: the end of one may need what only that of another one sets free.
    """
    with _communicators_lock:
        for key, value in list(_communicators.items()):
            if value in communicators:
                del _communicators[key]
    aborting = [threading.Thread(target=each.abort, daemon=True) for each in communicators]
    for thread in aborting:
        thread.start()
    until = time.monotonic() + _ABORT_SECONDS
    for thread in aborting:
        thread.join(max(until - time.monotonic(), 0.0))
