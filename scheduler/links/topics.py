"""What comes in, by topic, until somebody wants it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.errors import LinkLostError

OnMessage = Callable[[Any, list[np.ndarray], Callable[[], None]], None]
OnLost = Callable[[Exception], None]

#: Topics that are over and are remembered, as messages may still be on their way.
_ENDED = 1024

_log = logging.getLogger(__name__)


class ReceivedMessage:
    """A message that has come, in the memory of its sender.

    Parameters
    ----------
    peer : str
        Its sender's endpoint.
    header, arrays
        What was sent.
    give_back : callable
        Says to the sender that the memory is free.
    """

    def __init__(
        self, peer: str, header: Any, arrays: list[np.ndarray], give_back: Callable[[], None]
    ) -> None:
        self.peer, self.header, self.arrays = peer, header, arrays
        self._held_in: set[ReceivedMessage] = set()
        self._owed = [give_back]

    def hold(self, held: set[ReceivedMessage]) -> None:
        """Be in a set until the memory is released."""
        self._held_in = held
        held.add(self)

    def release(self) -> None:
        """Give the memory back; a second call does nothing."""
        try:
            give_back = self._owed.pop()
        except IndexError:
            return
        self._held_in.discard(self)
        give_back()


@dataclass(eq=False)
class Topic:
    """One topic: who wants it, whom it has come from, and what has not been handed out."""

    on_message: OnMessage | None = None
    on_lost: OnLost | None = None
    peers: set[str] = field(default_factory=set)
    waiting: deque[ReceivedMessage | LinkLostError] = field(default_factory=deque)
    held: set[ReceivedMessage] = field(default_factory=set)

    def hand_out(self, event: ReceivedMessage | LinkLostError) -> None:
        """Call the subscriber; an error of `on_message` is told to `on_lost`."""
        assert self.on_message is not None
        assert self.on_lost is not None
        error: Exception
        try:
            if isinstance(event, ReceivedMessage):
                self.on_message(event.header, event.arrays, event.release)
                return
            error = event
        except Exception as own:
            error = own
        try:
            self.on_lost(error)
        except Exception:
            _log.exception("a subscriber failed to handle this error: %s", error)


class Topics:
    """All topics of a process: those subscribed to, those to come, and the latest that are over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._ended: dict[str, None] = {}

    def subscribe(
        self, name: str, on_message: OnMessage, on_lost: OnLost, peers: Iterable[str]
    ) -> None:
        """Enter a subscriber; `serve` gives it what has come before."""
        with self._lock:
            if name in self._ended:
                raise LinkLostError(f"{name!r} is over: what came after its end has been dropped")
            topic = self._topics.setdefault(name, Topic())
            if topic.on_message is not None:
                raise ValueError(f"{name!r} has already been subscribed to")
            topic.on_message, topic.on_lost = on_message, on_lost
            topic.peers.update(peers)

    def unsubscribe(self, name: str) -> None:
        """End a topic: release all of it that was not, and what may still come."""
        with self._lock:
            topic = self._topics.pop(name, Topic())
            self._ended[name] = None
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]
        for arrival in tuple(topic.held):
            arrival.release()

    def add(self, name: str, arrival: ReceivedMessage) -> None:
        """Hand out a message, or keep it for a subscriber to come."""
        with self._lock:
            over = name in self._ended
            if not over:
                topic = self._topics.setdefault(name, Topic())
                topic.peers.add(arrival.peer)
                topic.waiting.append(arrival)
                arrival.hold(topic.held)
        if over:
            arrival.release()
        else:
            self._serve(name)

    def lose(self, peer: str, error: LinkLostError) -> None:
        """Note, once, that a peer is lost: with it goes what nobody has subscribed to so far."""
        gone: set[ReceivedMessage] = set()
        with self._lock:
            for topic in self._topics.values():
                if peer in topic.peers:
                    topic.peers.remove(peer)
                    if topic.on_message is None:
                        gone |= {arrival for arrival in topic.held if arrival.peer == peer}
                        topic.waiting = deque(each for each in topic.waiting if each not in gone)
                    topic.waiting.append(error)
        for arrival in gone:
            arrival.release()

    def clear(self) -> None:
        """Forget all topics."""
        with self._lock:
            self._topics.clear()

    def serve(self) -> None:
        """Hand out all that is waited for, in the thread that reads."""
        for name in tuple(self._topics):
            self._serve(name)

    def _serve(self, name: str) -> None:
        while True:
            with self._lock:
                topic = self._topics.get(name)
                if topic is None or topic.on_message is None or not topic.waiting:
                    return
                event = topic.waiting.popleft()
            topic.hand_out(event)
