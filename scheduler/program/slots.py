"""Buffers through which received panels rotate."""

from __future__ import annotations

from hetero_la.scheduler.program.messages import MessageKey


class Slots:
    """Buffers of a worker's received messages; one is free again after the last read.

    Parameters
    ----------
    least : int
        Number of buffers to use before one is reused: for the panels of the current step or block,
        those ahead, and one in transit.

    Examples
    --------
    >>> slots = Slots(1)
    >>> first, second = MessageKey(0, 0), MessageKey(0, 1)
    >>> slots.expect(first)
    >>> slots.take(first), slots.take(second)
    ((0, None), (1, None))
    >>> slots.read(first)
    >>> slots.take(MessageKey(0, 2))
    (0, MessageKey(source=0, step=0, panel=False))
    """

    def __init__(self, least: int) -> None:
        self.least = least
        self._held: dict[int, MessageKey] = {}  # the one filled longest ago first
        self._readers: dict[MessageKey, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def expect(self, key: MessageKey) -> None:
        """Count one more future reader of a message."""
        self._readers[key] = self._readers.get(key, 0) + 1

    def read(self, key: MessageKey) -> None:
        """Count off a reader of a message."""
        self._readers[key] -= 1

    def take(self, key: MessageKey) -> tuple[int, MessageKey | None]:
        """Return a buffer for a message, and the message that it replaces there."""
        slot = len(self._held)
        if slot >= self.least:
            free = (slot for slot, held in self._held.items() if not self._readers.get(held))
            slot = next(free, slot)
        replaced = self._held.pop(slot, None)
        self._held[slot] = key
        return slot, replaced
