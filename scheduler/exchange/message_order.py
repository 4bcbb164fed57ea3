"""The order in which workers enqueue the messages between their GPUs.

A message by NCCL ends at neither end before it has begun at both.  Streams are no safe way apart
for two that may come in either order: the driver has few queues to the GPU (eight by default), and
streams that share one wait for each other.  So all workers follow one order of all messages, in
which each is received at its place in the receiver's program, and sent at that place or later than
its place in the sender's: then the first message that has not ended can always go on, even if
everything that a worker enqueues waited for everything before.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from hetero_la.scheduler.program.instructions import (
    Instruction,
    Program,
    ReceiveMessage,
    SendMessage,
)
from hetero_la.scheduler.program.messages import Message, MessageKey

#: A message, and the worker at its other end.
Exchange = tuple[MessageKey, int]
_EXCHANGES = SendMessage, ReceiveMessage


def exchange_orders(
    programs: Sequence[Program], messages: Mapping[MessageKey, Message]
) -> list[list[Exchange]]:
    """Return, for each worker, the messages that it sends and receives, in an order for all.

    The order is that of a run in which one worker at a time goes on, always that at the earliest
    step: so a message is sent when it is made, unless the worker has to receive others first.

    Parameters
    ----------
    programs : sequence of Program
        One per worker, in the order of the workers.
    messages : mapping
        The messages between them.
    """
    return _Order(programs, messages).found


class _Order:
    """A run of the programs in which only messages count."""

    def __init__(self, programs: Sequence[Program], messages: Mapping[MessageKey, Message]) -> None:
        self._messages = messages
        self._left = [
            deque(i for i in p.instructions if i.awaits or isinstance(i, _EXCHANGES))
            for p in programs
        ]
        self._made: set[MessageKey] = set()
        self._taken: set[Exchange] = set()
        self.found: list[list[Exchange]] = [[] for _ in programs]
        self._able: list[tuple[int, bool, int]] = []  # workers that can go on, the next one first
        self._held: dict[MessageKey | Exchange | None, list[int]] = {}  # what workers wait for
        for worker in range(len(programs)):
            self._look(worker)
        while self._able:
            self._go_on(heapq.heappop(self._able)[-1])

    def _look(self, worker: int) -> None:
        """Note whether a worker can go on, or what it waits for."""
        if not self._left[worker]:
            return
        i = self._left[worker][0]
        missing: list[MessageKey | Exchange] = [x for x in i.awaits if x not in self._taken]
        first = False
        if isinstance(i, ReceiveMessage):
            first = self._messages[i.message].first == worker
            missing += [i.message] if i.message not in self._made else []
        if missing:
            self._held.setdefault(missing[0], []).append(worker)
        else:
            heapq.heappush(self._able, (i.step, not first, worker))

    def _go_on(self, worker: int) -> None:
        i = self._left[worker].popleft()
        happened = self._exchange(worker, i)
        for other in (worker, *self._held.pop(happened, ())):
            self._look(other)

    def _exchange(self, worker: int, i: Instruction) -> MessageKey | Exchange | None:
        """Note what an instruction does, and return that."""
        if isinstance(i, SendMessage):
            self._made.add(i.message)
            return i.message
        if isinstance(i, ReceiveMessage):
            self._taken.add((i.message, worker))
            self.found[i.message.source].append((i.message, worker))
            self.found[worker].append((i.message, i.message.source))
            return i.message, worker
        return None


class ExchangeOrder:
    """One worker's place in the order; what it makes early is sent in its turn.

    Parameters
    ----------
    order : sequence of (MessageKey, int)
        What `exchange_orders` says of it.
    others : collection of int
        Workers with which it exchanges messages in this order.

    Examples
    --------
    >>> panel, swaps = MessageKey(0, 1, True), MessageKey(1, 0)
    >>> order = ExchangeOrder([(swaps, 1), (panel, 1)], {1})
    >>> order.send(panel, 1, lambda: print("panel sent"))
    >>> order.receive(swaps, 1, lambda: print("swaps received"))
    swaps received
    panel sent
    """

    def __init__(self, order: Sequence[Exchange], others: Collection[int]) -> None:
        self._left = deque(exchange for exchange in order if exchange[1] in others)
        self._made: dict[Exchange, Callable[[], None]] = {}

    def send(self, key: MessageKey, other: int, enqueue: Callable[[], None]) -> None:
        """Enqueue the sending of a message in its turn, now or after others are received."""
        self._made[key, other] = enqueue
        self._send_made()

    def receive(self, key: MessageKey, other: int, enqueue: Callable[[], None]) -> None:
        """Enqueue the receiving of a message, whose turn it is, and what was made for after it."""
        turn = self._left.popleft()
        assert turn == (key, other), f"{key} from worker {other} comes before {turn}"
        enqueue()
        self._send_made()

    def _send_made(self) -> None:
        while self._left and self._left[0] in self._made:
            self._made.pop(self._left.popleft())()
