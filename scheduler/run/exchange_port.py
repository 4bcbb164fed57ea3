"""Access of one worker to the exchange of its run."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any

from hetero_la.scheduler.program.instructions import Instruction
from hetero_la.scheduler.program.messages import Message
from hetero_la.scheduler.run.exchange import Exchange
from hetero_la.tiles.arrays.device import Event

#: Seconds for which other consumers of a message wait for the first one to enqueue its copy.
_MOMENT = 1e-3


class Meeting:
    """One worker's access to the values that workers offer, and to the lock for enqueuing.

    Parameters
    ----------
    exchange : Exchange
        The run's exchange.
    worker : int
        Index of the worker.
    takes_turns : bool
        Whether it enqueues work for a GPU, which one thread of a process does at a time.
    """

    def __init__(self, exchange: Exchange, worker: int, *, takes_turns: bool) -> None:
        self._exchange, self._worker = exchange, worker
        self._turns = exchange.turns if takes_turns else None

    def check_in(self, instruction: Instruction) -> None:
        """Let workers with more urgent instructions go first; raise if the run was aborted."""
        self._exchange.check()
        self._exchange.note_progress()
        if self._turns is not None:
            self._turns.offer(instruction.urgency)

    def turn(self, instruction: Instruction) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no other thread enqueues, entered at `instruction`."""
        if self._turns is None:
            return contextlib.nullcontext()
        return self._turns.taken(instruction.urgency)

    def waiting(self, instruction: Instruction) -> contextlib.AbstractContextManager[None]:
        """Return a context in which others may enqueue while this worker may have to wait."""
        if self._turns is None:
            return contextlib.nullcontext()
        return self._turns.left(instruction.urgency)

    def put(self, key: Hashable, value: Any) -> None:
        """Offer a value."""
        self._exchange.put(key, value)

    def get(self, key: Hashable, instruction: Instruction) -> Any:
        """Wait for the value that is offered under `key`, and return it."""
        if key not in self._exchange:
            with self.waiting(instruction):
                self._exchange.wait(key)
        return self._exchange.get(key)

    def copies_first(self, message: Message) -> bool:
        """Return whether the other consumers of a message wait for this worker's copy."""
        return self._turns is not None and message.first == self._worker

    def announce_copy(self, message: Message, event: Event) -> None:
        """Announce that the first copy of a message is complete at `event`."""
        self._exchange.put((message.key, "copied"), event)

    def first_copy(self, message: Message, instruction: Instruction) -> Event:
        """Return the event of the first consumer's copy; None if there is no need to wait for it.

        The first consumer computes the next panel, so its copy gets the whole link.  It may reach
        the copy much later than expected, therefore the wait is bounded.
        """
        key = (message.key, "copied")
        if self._turns is None or self.copies_first(message):
            return None
        with self.waiting(instruction):
            there = self._exchange.wait(key, at_most=_MOMENT)
        return self._exchange.get(key) if there else None
