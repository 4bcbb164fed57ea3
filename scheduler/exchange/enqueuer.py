"""Enqueuing for several GPUs of a process, by one thread at a time."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.program.instructions import Instruction
from hetero_la.tiles.kernels.device import Device

#: Urgency of threads that are not in the middle of an instruction.
LAST = 2**31


class Waiting(Protocol):
    """A worker's port, which knows what there is to wait for."""

    device: Device
    busy: bool  #: whether a thread waits in the middle of an instruction

    def there(self, instruction: Instruction) -> bool:
        """Return whether what an instruction waits for is there, or enqueued."""

    def waits_for_copy(self, instruction: Instruction) -> bool:
        """Return whether others should be served before a message that is there is copied."""


class PriorityLock:
    """A lock that is handed on by urgency, to a thread that waits for it.

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


@dataclass
class _Slice:
    """Part of a worker's program that its thread has begun."""

    port: Waiting
    instructions: Sequence[Instruction]
    place: int
    stop: int
    issue: Callable[[int], None]
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.error is not None or self.place == self.stop

    def rank(self) -> tuple[bool, int] | None:
        """Return the place of its next instruction among others; None if it cannot be issued."""
        if self.ended or self.port.busy:
            return None
        instruction = self.instructions[self.place]
        if not self.port.there(instruction):
            return None
        return self.port.waits_for_copy(instruction), instruction.urgency

    def advance(self) -> None:
        """Issue its next instruction; keep what it raises."""
        try:
            with self.port.device.current():
                self.issue(self.place)
            self.place += 1
        except BaseException as error:
            self.error = error


class Enqueuer:
    """Threads of a run that have something to enqueue, of which one does it for all.

    The interpreter runs one thread at a time, and takes longer to change to another one than to
    enqueue an instruction.  So the thread whose turn it is issues the instructions of all workers,
    the most urgent of those first whose messages are there, until its own are issued.

    Parameters
    ----------
    table : WaitTable
        The run's messages.
    """

    def __init__(self, table: WaitTable) -> None:
        self._table, self.lock = table, PriorityLock()
        self._slices: list[_Slice] = []

    def run(
        self, port: Waiting, instructions: Sequence[Instruction], places: range,
        issue: Callable[[int], None],
    ) -> None:  # fmt: skip
        """Return when instructions of a worker are issued, by this thread or another one."""
        own = _Slice(port, instructions, places.start, places.stop, issue)
        with self.lock.held(LAST):
            self._slices.append(own)
            self._table.touch()
            try:
                while not own.ended:
                    self._advance()
            finally:
                while port.busy:  # another thread is in the middle of an instruction
                    self._pause(self._table.version)
                self._slices.remove(own)
                self._table.touch()
        if own.error is not None:
            raise own.error

    def _advance(self) -> None:
        """Issue one instruction, or wait until there is one that can be issued."""
        self._table.check()
        self.lock.yield_to(LAST)  # to those in the middle of an instruction
        version = self._table.version
        able = [(rank, at) for at, each in enumerate(self._slices) if (rank := each.rank())]
        if not able:
            self._pause(version)
            return
        _, at = min(able)
        chosen = self._slices[at]
        chosen.advance()
        self._table.note_progress()
        if chosen.error is not None:
            self._table.abort(chosen.error)

    def _pause(self, version: int) -> None:
        """Wait until something has changed."""
        with self.lock.released(LAST):
            self._table.wait_for_change(version)
