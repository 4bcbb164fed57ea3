"""A lock that goes to the most urgent waiting thread, for enqueuing work on GPUs."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Iterator


class PriorityLock:
    """A lock that is handed on by urgency.

    Threads that each enqueue work for a GPU share Python's interpreter lock.  With that alone they
    interrupt each other at every call of the driver, and the thread on the critical path gets no
    more time than the others.

    Examples
    --------
    >>> lock = PriorityLock()
    >>> with lock.held(urgency=0):
    ...     lock.yield_to(urgency=1)  # nobody else waits: it stays ours
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: list[tuple[int, int, threading.Event]] = []
        self._arrivals = itertools.count()

    def acquire(self, urgency: int) -> None:
        """Wait for the lock; the smaller number is the more urgent."""
        with self._lock:
            if not self._held:
                self._held = True
                return
            mine = threading.Event()
            heapq.heappush(self._waiting, (urgency, next(self._arrivals), mine))
        mine.wait()  # whoever holds the lock releases it, whatever happens to the run

    def release(self) -> None:
        """Release the lock; the most urgent of those that wait has it now."""
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[2].set()
            else:
                self._held = False

    def yield_to(self, urgency: int) -> None:
        """Let those go first that are more urgent than what comes next here."""
        waiting = self._waiting
        if waiting and waiting[0][0] < urgency:
            self.release()
            self.acquire(urgency)

    @contextlib.contextmanager
    def held(self, urgency: int) -> Iterator[None]:
        """Hold the lock inside the block."""
        self.acquire(urgency)
        try:
            yield
        finally:
            self.release()

    @contextlib.contextmanager
    def released(self, urgency: int) -> Iterator[None]:
        """Release the lock inside the block, which waits for something."""
        self.release()
        try:
            yield
        finally:
            self.acquire(urgency)
