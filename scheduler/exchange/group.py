"""The workers of a run in different processes, as one of them meets the others."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import pickle
import platform
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, cast

import numpy as np

from hetero_la.scheduler.exchange.gpu_channel import GpuChannel
from hetero_la.scheduler.exchange.table import Exchange
from hetero_la.scheduler.exchange.turns import turn_of_process
from hetero_la.scheduler.links.endpoint import endpoint
from hetero_la.scheduler.links.link_ends import Sender
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.tiles.arrays.errors import LinkLostError, RunAbortedError
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.kernels.device import CommunicatingDevice, Communicator, Device

#: Seconds between looks at whether the other end of a communicator has failed.
_LOOK_INTERVAL = 0.05

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


class Arrived(NamedTuple):
    """Arrays of a message, and what gives back their memory."""

    arrays: Sequence[np.ndarray]
    release: Callable[[], None]


#: Sends a header and arrays under a topic to the Dask worker at an address; calls the last argument
#: with an error if they do not get there.
Tell = Callable[[str, str, Any, Sequence[np.ndarray], Callable[[BaseException], None]], None]


class RunGroup:
    """The workers of one run, seen from one of them.

    Parameters
    ----------
    run : str
        Name of this attempt at the run.
    worker : int
        Index of the worker in the run.
    device : Device
        Its device.
    address : str
        Dask's address of the worker.
    tell : callable
        How to reach workers of other hosts.
    lasting : bool
        Whether later runs use the same device object, with which communicators are made.
    orders : mapping
        Worker -> messages to it, in the order of its program.
    """

    def __init__(
        self, run: str, worker: int, device: Device, address: str, tell: Tell,
        orders: Mapping[int, Sequence[MessageKey]], *, lasting: bool,
    ) -> None:  # fmt: skip
        self._run, self._worker, self._device, self._orders = run, worker, device, orders
        self._address, self._tell, self._lasting = address, tell, lasting
        self._topic = topic_of(run, worker)
        self._contacts: Sequence[Contact] = ()
        self._turns = 0
        self._leaving = threading.Lock()
        self.inbox = Exchange()
        self.channels: dict[int, GpuChannel] = {}
        self._communicators: list[Communicator] = []
        self._senders: list[Sender | None] = []

    def contact(self) -> Contact:
        """Return what the others have to know."""
        gpu = self._device.nccl_address and f"{platform.node()} {self._device.nccl_address}"
        return Contact(_process(), endpoint().name, self._address, self._topic, gpu)

    def join(self, contacts: Sequence[Contact]) -> None:
        """Meet the others, and wait until it is this run's turn on all their workers.

        Each process gives its turn to one run after the other.  A run takes the turns in the order
        of the processes' names: so no two runs wait for each other.

        Parameters
        ----------
        contacts : sequence of Contact
            Of all workers of the run.
        """
        self.inbox.check()
        if self._contacts:
            return
        self._contacts, self._senders = contacts, [link_to(contact.link) for contact in contacts]
        watched = [sender.name for sender in self._senders if sender is not None]
        endpoint().subscribe(self._topic, self._receive, self._lose, watched)
        row = sorted(range(len(contacts)), key=lambda w: (contacts[w].process, w))
        place = row.index(self._worker)
        if place:
            self._take_patiently("turn")
        turn_of_process.take(self._run, self.inbox.check)
        self._turns = 1
        for after in row[place + 1 : place + 2] or row[:-1]:
            self.post(after, "turn" if place + 1 < len(row) else "go")
        if place + 1 < len(row):
            self._take_patiently("go")
        for pair in itertools.combinations(row, 2):
            if self._worker in pair:
                self._connect(*pair)

    def _take_patiently(self, key: Any) -> None:
        """Wait for a message that comes when other runs have ended."""
        while not self.inbox.wait(key, at_most=_LOOK_INTERVAL):
            self.inbox.note_progress()

    def post(
        self, worker: int, key: Any, arrays: Sequence[np.ndarray] = (), value: Any = None
    ) -> None:
        """Send a worker arrays, or else a value, which it finds in its `inbox` under `key`."""
        contact, header, sender = self._contacts[worker], (key, value), self._senders[worker]
        try:
            if sender is not None:
                sender.put(contact.topic, header, arrays)
            else:
                self._tell(contact.address, contact.topic, header, arrays, self._abort_soon)
        except (OSError, LinkLostError) as error:
            self.abort(error)
            self.inbox.check()

    def time_round_trips(self, other: int, nbytes: int, times: int, *, begins: bool) -> list[float]:
        """Return the seconds of messages to another worker, which calls this too, and back."""
        channel, seconds = self.channels.get(other), []
        with self._device.activate():
            array = (
                np.empty(nbytes, np.uint8)
                if channel is None
                else self._device.empty((nbytes,), np.uint8)
            )
            for turn in range(times):
                began = time.perf_counter()
                for sends in (begins, not begins):
                    if channel is not None:
                        channel.pass_on(array, sends=sends)
                    elif sends:
                        self.post(other, turn, [array])
                    else:
                        arrived = self.inbox.take(turn)
                        np.copyto(array, arrived.arrays[0])
                        arrived.release()
                self._device.synchronize()
                seconds.append(time.perf_counter() - began)
        return seconds

    def abort(self, error: BaseException) -> None:
        """End the run's waits, here and at the other workers."""
        if self.inbox.error is None:
            self.inbox.abort(error)
            for communicator in self._communicators:
                _drop(communicator)
            for worker in range(len(self._contacts)):
                if worker != self._worker:
                    with contextlib.suppress(Exception):  # it may be gone
                        self.post(worker, "abort", value=portable(error))

    def _lose(self, error: BaseException) -> None:
        # A link gives the same error to all runs: raised in one, it would keep that one's frames.
        self._abort_soon(LinkLostError(str(error)) if isinstance(error, LinkLostError) else error)

    def _abort_soon(self, error: BaseException) -> None:
        """Abort in a thread of its own, from one that serves all runs."""
        threading.Thread(target=self.abort, args=(error,), daemon=True).start()

    def close(self) -> None:
        """Leave the run: others may have the turn, and the communicators."""
        endpoint().unsubscribe(self._topic)
        with self._leaving:
            turns, self._turns = self._turns, 0
            communicators, self._communicators = self._communicators, []
            self._senders = []
        if not self._lasting:
            for communicator in communicators:
                _drop(communicator)
        if turns:
            turn_of_process.give_back(self._run)
        self.inbox.clear()
        if self.inbox.error is not None:  # whose traceback keeps all of the run alive
            self.inbox.error = RunAbortedError("the run has ended")

    def _receive(
        self, header: tuple[Any, Any], arrays: Sequence[np.ndarray], release: Callable[[], None]
    ) -> None:
        key, value = header
        if key == "abort":
            self._abort_soon(value)
        else:
            self.inbox.put(key, Arrived(arrays, release) if arrays else value)

    def _connect(self, first: int, second: int) -> None:
        """Connect two GPUs by NCCL, if both can; then one that fails leaves them to the host."""
        a, b = self._contacts[first], self._contacts[second]
        if not (a.gpu and b.gpu) or a.gpu == b.gpu or a.process == b.process:
            return
        other = second if first == self._worker else first
        made = {source: self._communicator(source, other) for source in (first, second)}
        outgoing, incoming = made[self._worker], made[other]
        if outgoing is not None and incoming is not None:
            self.channels[other] = GpuChannel(outgoing, incoming, self._orders.get(other, ()))

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
            theirs = self.inbox.take(("known", pair))
            name = known.name if known and known.name == theirs else device.communicator_name()
            self.post(other, ("name", pair), value=name)
        else:
            self.post(other, ("known", pair), value=known.name if known else ())
            name = self.inbox.take(("name", pair))
        problem = ""
        if known is None or known.name != name:
            if known is not None:
                _drop(known)
            make = functools.partial(device.communicator, name, sends=source == self._worker)
            try:
                known = self._unless(("problem", pair), make)
            except Exception as error:  # whatever NCCL or the network says
                known, problem = None, str(error)
                _log.warning("messages go through host memory: NCCL failed (%s)", error)
        self.post(other, ("problem", pair), value=problem)
        if self.inbox.take(("problem", pair)) or known is None:
            return None
        with _lock:
            _communicators[key] = known
        self._communicators.append(known)
        return known

    def _place_in_process(self, worker: int) -> int:
        """Return how many workers of the run before this one are in the same process."""
        process = self._contacts[worker].process
        return [contact.process for contact in self._contacts[:worker]].count(process)

    def _unless(self, key: Any, make: Callable[[], Communicator]) -> Communicator | None:
        """Return what `make` returns; or None, if another worker says by `key` that it failed.

        Then `make` may wait for it for ever.
        """
        made: Future[Communicator] = Future()

        def work() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        while True:
            self.inbox.check()
            if wait([made], _LOOK_INTERVAL).done:
                return made.result()
            if key in self.inbox and self.inbox.get(key):
                return None


_lock = ProcessLock()
#: Process and GPU of the other end, the workers' places in their processes, and whether it is this
#: one that sends -> the communicator.
_communicators: dict[tuple[str, str, int, int, bool], Communicator] = {}


def _known(key: tuple[str, str, int, int, bool]) -> Communicator | None:
    """Return an earlier run's communicator; drop those of processes that had the GPU before."""
    with _lock:
        gone = [c for k, c in _communicators.items() if k[1] == key[1] and k[0] != key[0]]
        known = _communicators.get(key)
    for communicator in gone:
        _drop(communicator)
    return known


def _drop(communicator: Communicator) -> None:
    """Abort a communicator, which no later run will use."""
    with _lock:
        for key, value in list(_communicators.items()):
            if value is communicator:
                del _communicators[key]
    communicator.abort()


def topic_of(run: str, worker: int) -> str:
    """Return the topic of messages to a worker of a run."""
    return f"{run} {worker}"


def portable(error: BaseException) -> BaseException:
    """Return an error that can be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class does
        return RunAbortedError(f"{type(error).__name__}: {error}")
    return error


@functools.cache
def _name(pid: int) -> str:
    return uuid.uuid4().hex


def _process() -> str:
    return _name(os.getpid())  # a forked child gets a name of its own


def link_to(link: str) -> Sender | None:
    """Return the link to a process; None if it is on another host, or has none."""
    try:
        return endpoint().connect(link)
    except LinkLostError:
        return None
