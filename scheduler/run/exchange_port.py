"""A worker among the others of its run that share its process."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any

from hetero_la.scheduler.program.instructions import Instruction
from hetero_la.scheduler.program.messages import Message
from hetero_la.scheduler.run.exchange import Exchange
from hetero_la.tiles.arrays.device import Event

#: Seconds that the host leaves to the first consumer of a message to come to its copy.
_MOMENT = 1e-3


class Meeting:
    """What one worker offers to the others, takes from them, and when it is its turn.

    Parameters
    ----------
    exchange : Exchange
        The run's.
    worker : int
        Who this is.
    takes_turns : bool
        Whether it enqueues work for a GPU, which the threads of a process do in turn.
    """

    def __init__(self, exchange: Exchange, worker: int, *, takes_turns: bool) -> None:
        self._exchange, self._worker = exchange, worker
        self._turns = exchange.turns if takes_turns else None

    def check_in(self, instruction: Instruction) -> None:
        """Come to an instruction: others go first whose work is more urgent."""
        self._exchange.check()
        self._exchange.beat()
        if self._turns is not None:
            self._turns.offer(instruction.urgency)

    def turn(self, instruction: Instruction) -> contextlib.AbstractContextManager[None]:
        """Enqueue as the only thread of the process, from `instruction` on."""
        if self._turns is None:
            return contextlib.nullcontext()
        return self._turns.taken(instruction.urgency)

    def waiting(self, instruction: Instruction) -> contextlib.AbstractContextManager[None]:
        """Let others enqueue while this worker may have to wait."""
        if self._turns is None:
            return contextlib.nullcontext()
        return self._turns.left(instruction.urgency)

    def put(self, key: Hashable, value: Any) -> None:
        """Offer a value."""
        self._exchange.put(key, value)

    def get(self, key: Hashable, instruction: Instruction) -> Any:
        """What somebody offers under `key`, once it is there."""
        if key not in self._exchange:
            with self.waiting(instruction):
                self._exchange.wait(key)
        return self._exchange.get(key)

    def copies_first(self, message: Message) -> bool:
        """Whether others leave the link to this worker while it copies a message."""
        return self._turns is not None and message.first == self._worker

    def announce_copy(self, message: Message, event: Event) -> None:
        """Say that the first copy of a message will be there at `event`."""
        self._exchange.put((message.key, "copied"), event)

    def first_copy(self, message: Message, instruction: Instruction) -> Event:
        """When the first consumer of a message has its copy; None where nobody is waited for.

        It makes what everybody waits for next.  But it may come to its copy much later than
        expected: that is not worth waiting for.
        """
        key = (message.key, "copied")
        if self._turns is None or self.copies_first(message):
            return None
        with self.waiting(instruction):
            there = self._exchange.wait(key, at_most=_MOMENT)
        return self._exchange.get(key) if there else None
