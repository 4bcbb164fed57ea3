"""A lock that goes to the most urgent waiting thread, for enqueuing work on GPUs."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Iterator


class Turns:
    """A lock that is handed to the most urgent of the waiting threads.

    Threads that each enqueue work for a GPU share Python's interpreter lock.  With that alone they
    interrupt each other at every call of the driver, and the thread on the critical path gets no
    more time than the others.

    Examples
    --------
    >>> turns = Turns()
    >>> with turns.taken(urgency=0):
    ...     turns.offer(urgency=1)  # nobody else waits: it stays ours
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: list[tuple[int, int, threading.Event]] = []
        self._arrivals = itertools.count()

    def take(self, urgency: int) -> None:
        """Acquire the lock; of the waiting threads, the one of smallest `urgency` gets it first."""
        with self._lock:
            if not self._held:
                self._held = True
                return
            mine = threading.Event()
            heapq.heappush(self._waiting, (urgency, next(self._arrivals), mine))
        mine.wait()  # it ends: the holder releases the lock also when the run fails

    def give(self) -> None:
        """Release the lock to the most urgent waiting thread."""
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[2].set()
            else:
                self._held = False

    def offer(self, urgency: int) -> None:
        """Let threads go first that are more urgent than this one's next instruction."""
        waiting = self._waiting
        if waiting and waiting[0][0] < urgency:
            self.give()
            self.take(urgency)

    @contextlib.contextmanager
    def taken(self, urgency: int) -> Iterator[None]:
        """Hold the lock inside the block."""
        self.take(urgency)
        try:
            yield
        finally:
            self.give()

    @contextlib.contextmanager
    def left(self, urgency: int) -> Iterator[None]:
        """Release the lock inside the block, which waits for something, and acquire it again."""
        self.give()
        try:
            yield
        finally:
            self.take(urgency)
