"""Messages that a worker has still to send, and the events that each of them waits for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from hetero_la.scheduler.program.column_runs import BlockColumns
from hetero_la.scheduler.program.messages import Message, MessageKey

Completion = int | MessageKey  #: end of a task, by its index, or receipt of a message


class Outbox:
    """Messages of one worker that are not sent yet.

    Parameters
    ----------
    messages : iterable of Message
        The worker's messages, in the order in which to send those that are ready at once.

    Examples
    --------
    >>> first, second = (Message(MessageKey(0, k), writers={k, 7}) for k in range(2))
    >>> outbox = Outbox([first, second])
    >>> [m.key.step for event in (0, 7, 1) for m in outbox.done([event])]
    [0, 1]
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self._order: dict[MessageKey, int] = {}
        self._missing: dict[MessageKey, int] = {}
        self._waiting: dict[Completion, list[Message]] = {}
        self._ready: list[Message] = []
        for order, message in enumerate(messages):
            self._order[message.key] = order
            events: list[Completion] = [*message.writers, *message.after]
            self._missing[message.key] = len(events)
            for event in events:
                self._waiting.setdefault(event, []).append(message)
            if not events:
                self._ready.append(message)
        self._tasks = sorted(event for event in self._waiting if isinstance(event, int))

    def awaited(self, parts: Iterable[BlockColumns]) -> list[int]:
        """Return the indices of a run's tasks for which messages still wait."""
        found: list[int] = []
        for block, columns in parts if self._tasks else ():
            # Most runs have no task for which a message waits.
            first, last = block.index(columns[0]), block.index(columns[-1])
            if bisect_left(self._tasks, first) < bisect_right(self._tasks, last):
                found += [i for i in map(block.index, columns) if i in self._waiting]
        return found

    def done(self, events: Iterable[Completion] = ()) -> list[Message]:
        """Note that these events have occurred; return the messages that can now be sent."""
        ready, self._ready = self._ready, []
        for event in events:
            for message in self._waiting.pop(event, ()):
                self._missing[message.key] -= 1
                if not self._missing[message.key]:
                    ready.append(message)
        return sorted(ready, key=lambda message: self._order[message.key])
