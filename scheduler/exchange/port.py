"""Ports: how a worker of a run offers messages to the others, and takes theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from hetero_la.scheduler.program.instructions import Instruction, ReceiveMessage
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.tiles.kernels.device import Array, Event, Queue


class Incoming(Protocol):
    """A message that has come, or will have come once the receiver's COPY queue is there."""

    def reference(self, place: int) -> Array | None:
        """Return the array of a part if it may be read where it is; else None."""

    def copy(self, place: int, target: Array) -> None:
        """Copy a part to memory of the receiver, on its COPY queue."""


class Issuer(Protocol):
    """A worker's runner, which issues the instructions of its program."""

    def issue(self, place: int) -> None:
        """Issue an instruction, in any thread in which the device is current."""

    def may_wait(self, place: int) -> bool:
        """Return whether its storage may let an instruction wait for something."""


class Port:
    """Port of a worker that is alone: it sends nothing, and shares its process with nobody."""

    def issue(self, instructions: Sequence[Instruction], places: range, issuer: Issuer) -> None:
        """Issue the instructions at some places, in order."""
        for place in places:
            self.check_in()
            issuer.issue(place)

    def check_in(self) -> None:
        """Raise RunAbortedError if the run was aborted; note that it goes on."""

    def check(self) -> None:
        """Raise RunAbortedError if the run was aborted."""

    def flush(self) -> None:
        """Wait until what was offered has left the memory of this worker."""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Let others of the process enqueue while this worker may have to wait."""
        return contextlib.nullcontext()

    def offer(self, message: Message, arrays: list[Array], queue: Queue) -> None:
        """Offer a message whose arrays are ready where `queue` is; they may be read till then."""
        raise _alone()

    @contextlib.contextmanager
    def taking(self, message: Message, receive: ReceiveMessage) -> Iterator[Incoming]:
        """Take a message in the block."""
        raise _alone()
        yield

    def note_taken(self, key: MessageKey, queue: Queue) -> None:
        """Tell the sender that a message is no longer read once `queue` has come here."""

    def taken(self, key: MessageKey, consumer: int) -> Event:
        """Return when `consumer` no longer reads the memory from which a message was sent."""
        raise _alone()


def _alone() -> RuntimeError:
    return RuntimeError("a worker that is alone exchanges no messages")
