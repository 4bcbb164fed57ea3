"""Exchange of panels between the workers of one process."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any

from hetero_la.scheduler.program.instructions import Instruction
from hetero_la.scheduler.program.messages import Message
from hetero_la.scheduler.run.priority_lock import PriorityLock
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.kernels.device import Event

#: Seconds that the host leaves to the first consumer of a message to come to its copy.
_COPY_SECONDS = 1e-3


class Exchange:
    """A table of values that are put once, and for which threads wait.

    Parameters
    ----------
    patience : float, optional
        Seconds without progress of the run after which a waiting thread raises an error.

    Examples
    --------
    >>> exchange = Exchange()
    >>> exchange.put("panel 0", 42)
    >>> exchange.get("panel 0")
    42
    """

    def __init__(self, patience: float = 3600.0) -> None:
        self._patience = patience
        self._values: dict[Hashable, Any] = {}
        self._changed = threading.Condition()
        self._latest = time.monotonic()
        self.error: BaseException | None = None
        self.lock = PriorityLock()

    def put(self, key: Hashable, value: Any) -> None:
        """Put a value under a key, and wake the threads that wait for it."""
        with self._changed:
            self._values[key] = value
            self._latest = time.monotonic()
            self._changed.notify_all()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> Any:
        """Wait for a value and return it; see `wait`."""
        self.wait(key)
        return self._values[key]

    def wait(self, key: Hashable, at_most: float = math.inf) -> bool:
        """Wait for a value; return whether it has come within `at_most` seconds.

        Raises `RunAbortedError` if the run ends before.
        """
        until = time.monotonic() + at_most
        with self._changed:
            while key not in self._values:
                self.check()
                if (left := until - time.monotonic()) <= 0:
                    return False
                quiet = time.monotonic() - self._latest
                if quiet > self._patience:
                    raise RunAbortedError(f"waited {quiet:.0f} s for {key} without any progress")
                self._changed.wait(timeout=min(self._patience, 1.0, left))
            return True

    def clear(self) -> None:
        """Release all values."""
        with self._changed:
            self._values.clear()

    def note_progress(self) -> None:
        """Note that the run makes progress."""
        self._latest = time.monotonic()

    def abort(self, error: BaseException) -> None:
        """End all waits with an error; the first one given is kept."""
        with self._changed:
            if self.error is None:
                self.error = error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise RunAbortedError if the run was aborted."""
        if self.error is not None:
            raise RunAbortedError("another worker of this run has failed") from self.error


class ExchangePort:
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
        self._exchange, self._worker, self._takes_turns = exchange, worker, takes_turns
        self._lock = exchange.lock if takes_turns else PriorityLock()

    def check_in(self, instruction: Instruction) -> None:
        """Let threads with more urgent work enqueue first, before an instruction."""
        self._exchange.check()
        self._exchange.note_progress()
        self._lock.yield_to(instruction.urgency)

    def enqueuing(
        self, instructions: Sequence[Instruction]
    ) -> contextlib.AbstractContextManager[None]:
        """Enqueue instructions as the only thread of the process."""
        if not instructions:
            return contextlib.nullcontext()
        return self._lock.held(instructions[0].urgency)

    def waiting(self, instruction: Instruction) -> contextlib.AbstractContextManager[None]:
        """Let others enqueue while this worker may have to wait."""
        return self._lock.released(instruction.urgency)

    def put(self, key: Hashable, value: Any) -> None:
        """Offer a value."""
        self._exchange.put(key, value)

    def get(self, key: Hashable, instruction: Instruction) -> Any:
        """Return the value that another worker puts under `key`, once it is there."""
        if key not in self._exchange:
            with self.waiting(instruction):
                self._exchange.wait(key)
        return self._exchange.get(key)

    def copies_first(self, message: Message) -> bool:
        """Whether others leave the link to this worker while it copies a message."""
        return self._takes_turns and message.first == self._worker

    def announce_copy(self, message: Message, event: Event) -> None:
        """Say that the first copy of a message will be there at `event`."""
        self._exchange.put((message.key, "copied"), event)

    def first_copy(self, message: Message, instruction: Instruction) -> Event:
        """When the first consumer of a message has its copy; None where nobody is waited for.

        It makes what everybody waits for next.  But it may come to its copy much later than
        expected: that is not worth waiting for.
        """
        key = (message.key, "copied")
        if not self._takes_turns or self.copies_first(message):
            return None
        with self.waiting(instruction):
            there = self._exchange.wait(key, at_most=_COPY_SECONDS)
        return self._exchange.get(key) if there else None
