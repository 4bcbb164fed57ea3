"""The workers of a run in different processes, as one of them meets the others."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import platform
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.exchange.communicators import CommunicatorMaker, Contact, drop_all
from hetero_la.scheduler.exchange.gpu_channel import GpuChannel
from hetero_la.scheduler.exchange.message_order import Exchange, ExchangeOrder
from hetero_la.scheduler.exchange.turns import turn_of_process
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.links.endpoint import endpoint
from hetero_la.scheduler.links.link_ends import Sender
from hetero_la.tiles.arrays.errors import LinkLostError, RunAbortedError
from hetero_la.tiles.kernels.device import Array, Communicator, Device

#: Seconds between notes that a wait for other runs is no lack of progress.
_LOOK_INTERVAL = 0.05


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
    order : sequence of (MessageKey, int)
        Messages that it exchanges with the others, see `exchange_orders`.

    Attributes
    ----------
    inbox : WaitTable
        Where messages to the worker come.
    channels : dict
        Other worker -> what exchanges messages with it, where these go from GPU to GPU.
    order : ExchangeOrder
        The order of messages by these channels.
    held : dict
        Name -> chunk of the input of which the workers may request columns.
    """

    def __init__(
        self, run: str, worker: int, device: Device, address: str, tell: Tell,
        order: Sequence[Exchange], *, lasting: bool,
    ) -> None:  # fmt: skip
        self._run, self.worker, self.device, self._order = run, worker, device, order
        self._address, self._tell, self._lasting = address, tell, lasting
        self._topic = topic_of(run, worker)
        self._contacts: Sequence[Contact] = ()
        self._turns = 0
        self._leaving = threading.Lock()
        self.inbox = WaitTable()
        self.channels: dict[int, GpuChannel] = {}
        self.order = ExchangeOrder((), ())
        self.held: dict[str, Array] = {}
        self._communicators: list[Communicator] = []
        self._senders: list[Sender | None] = []

    @property
    def joined(self) -> bool:
        """Whether the worker has begun to meet the others."""
        return bool(self._contacts)

    @property
    def size(self) -> int:
        """Number of workers, once they have met."""
        return len(self._contacts)

    def contact(self) -> Contact:
        """Return what the others have to know."""
        gpu = self.device.nccl_address and f"{platform.node()} {self.device.nccl_address}"
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
        if self.joined:
            return
        self._contacts, self._senders = contacts, [link_to(contact.link) for contact in contacts]
        watched = [sender.name for sender in self._senders if sender is not None]
        endpoint().subscribe(self._topic, self._receive, self._lose, watched)
        row = sorted(range(len(contacts)), key=lambda w: (contacts[w].process, w))
        place = row.index(self.worker)
        if place:
            self._take_patiently("turn")
        turn_of_process.take(self._run, self.inbox.check)
        self._turns = 1
        for after in row[place + 1 : place + 2] or row[:-1]:
            self.post(after, "turn" if place + 1 < len(row) else "go")
        if place + 1 < len(row):
            self._take_patiently("go")
        maker = CommunicatorMaker(
            self.worker, self.device, contacts, self.inbox, self.post, lasting=self._lasting
        )
        self._communicators = maker.made
        for pair in itertools.combinations(row, 2):
            if self.worker in pair and (ends := maker.connect(*pair)):
                (other,) = set(pair) - {self.worker}
                self.channels[other] = GpuChannel(*ends)
        self.order = ExchangeOrder(self._order, self.channels)

    def _take_patiently(self, key: Any) -> None:
        """Wait for a message that comes when other runs have ended."""
        while not self.inbox.wait(key, at_most=_LOOK_INTERVAL):
            self.inbox.note_progress()

    def post(
        self, worker: int, key: Any, arrays: Sequence[np.ndarray] = (), value: Any = None
    ) -> None:
        """Send a worker arrays, or else a value, which it finds in its `inbox` under `key`."""
        try:
            self._send(self._contacts[worker], self._senders[worker], (key, value), arrays)
        except (OSError, LinkLostError) as error:
            self.abort(error)
            self.inbox.check()

    def _send(
        self, contact: Contact, sender: Sender | None, header: Any, arrays: Sequence[np.ndarray]
    ) -> None:
        if sender is not None:
            sender.put(contact.topic, header, arrays)
        else:
            self._tell(contact.address, contact.topic, header, arrays, self._abort_soon)

    def call(self, use: Callable[[], None]) -> None:
        """Use a channel; raise LinkLostError for what NCCL says."""
        try:
            use()
            return
        except Exception as error:
            problem = repr(error)
        self.inbox.check()
        raise LinkLostError(f"messages between GPUs failed: {problem}")  # without NCCL's own error

    def abort(self, error: BaseException) -> None:
        """End the run's waits, here and at the other workers."""
        if self.inbox.error is None:
            # Once its waits have ended, the run's thread closes the group, which forgets both.
            communicators = self._communicators
            links = list(zip(self._contacts, self._senders, strict=False))
            self.inbox.abort(error)
            drop_all(communicators)
            for worker, (contact, sender) in enumerate(links):
                if worker != self.worker:
                    with contextlib.suppress(Exception):  # it may be gone
                        self._send(contact, sender, ("abort", portable(error)), ())

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
            drop_all(communicators)
        if turns:
            turn_of_process.give_back(self._run)
        self.inbox.clear()
        self.held.clear()
        self.channels = {}
        self.order = ExchangeOrder((), ())  # which may keep what was not sent
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
