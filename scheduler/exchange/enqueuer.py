"""Enqueuing for several GPUs of a process, by one thread at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hetero_la.scheduler.exchange.port import Issuer
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.program.instructions import Instruction
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.kernels.device import Device


def enqueuer_of(table: WaitTable, workers: int) -> Enqueuer | None:
    """Return what lets the threads of a run enqueue; None for a worker that is alone."""
    return Enqueuer(table) if workers > 1 else None


class EnqueuingPort(Protocol):
    """Port of a worker whose device enqueues."""

    device: Device
    busy: bool  #: whether a thread waits in the middle of an instruction

    def there(self, instruction: Instruction) -> bool:
        """Return whether the messages that an instruction waits for have been offered."""

    def waits_for_copy(self, instruction: Instruction) -> bool:
        """Return whether others should be served before a message that is there is copied."""


@dataclass(eq=False)
class _Slice:
    """Part of a worker's program that its thread has begun."""

    port: EnqueuingPort
    instructions: Sequence[Instruction]
    place: int
    stop: int
    issuer: Issuer
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.error is not None or self.place == self.stop

    @property
    def needs_its_thread(self) -> bool:
        """Whether only its own thread can go on.

        What a storage waits for may need a later slice of another worker, whose thread must not be
        in that wait.
        """
        return self.ended or self.issuer.may_wait(self.place)

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
                self.issuer.issue(self.place)
            self.place += 1
        except BaseException as error:
            self.error = error


@dataclass(eq=False)
class _Waiter:
    """Thread that waits for the turn: in the middle of an instruction, or else with its slice."""

    own: _Slice | None
    turn: threading.Event = field(default_factory=threading.Event)

    def rank(self) -> tuple[int, tuple[bool, int]]:
        """Return its place among those that wait."""
        if self.own is None:
            return 0, (False, 0)
        if self.own.ended:
            return 1, (False, 0)
        able = self.own.needs_its_thread and self.own.rank()
        return (2, able) if able else (3, (False, 0))


class Enqueuer:
    """Threads of a run that have something to enqueue, of which one does it for all.

    The interpreter runs one thread at a time, and takes longer to change to another one than to
    enqueue an instruction.  So the thread whose turn it is issues the instructions of all workers,
    the most urgent of those first whose messages are there, until its own are issued.

    Parameters
    ----------
    table : WaitTable
        The run's messages.

    Attributes
    ----------
    workers : set of int
        Workers whose devices enqueue.
    """

    def __init__(self, table: WaitTable) -> None:
        self._table, self._guard = table, threading.Lock()
        self._taken, self._waiting = False, list[_Waiter]()
        self._slices: list[_Slice] = []
        self.workers: set[int] = set()

    def run(
        self, port: EnqueuingPort, instructions: Sequence[Instruction], places: range,
        issuer: Issuer,
    ) -> None:  # fmt: skip
        """Return when instructions of a worker are issued, by this thread or another one."""
        own = _Slice(port, instructions, places.start, places.stop, issuer)
        self._take(own)
        try:
            self._slices.append(own)
            self._table.touch()
            while not own.ended:
                self._advance(own)
                self._yield_to_better(own)
        finally:
            while port.busy:  # another thread is in the middle of an instruction: a kernel's
                with contextlib.suppress(RunAbortedError):
                    self._pause(own, self._table.version)
            self._slices.remove(own)
            self._table.touch()
            self._give()
        if own.error is not None:
            raise own.error

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Leave the turn to others in the block, in which an instruction waits for something."""
        self._give()
        try:
            yield
        finally:
            self._take(None)

    def _take(self, own: _Slice | None) -> None:
        """Wait for the turn, with a slice or in the middle of an instruction."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine = _Waiter(own)
            self._waiting.append(mine)
        mine.turn.wait()  # whoever has the turn gives it back, whatever happens to the run

    def _give(self) -> None:
        """Give the turn to the best of those that wait."""
        with self._guard:
            if not self._waiting:
                self._taken = False
                return
            best = min(self._waiting, key=_Waiter.rank)
            self._waiting.remove(best)
        best.turn.set()

    def _yield_to_better(self, own: _Slice) -> None:
        """Let those go first that have something to do which this thread cannot do for them."""
        waiting = self._waiting
        if waiting and any(waiter.rank()[0] < 3 for waiter in list(waiting)):
            self._give()
            self._take(own)

    def _advance(self, own: _Slice) -> None:
        """Issue one instruction, or wait until there is one that can be issued."""
        self._table.check()
        version = self._table.version  # before the ranks: what comes meanwhile ends the wait
        able = [
            (rank, at)
            for at, each in enumerate(self._slices)
            if (each is own or not each.needs_its_thread) and (rank := each.rank()) is not None
        ]
        if not able:
            self._pause(own, version)
            return
        chosen = self._slices[min(able)[1]]
        chosen.advance()
        self._table.note_progress()
        if chosen.error is not None:
            self._table.abort(chosen.error)
        elif chosen is not own and chosen.needs_its_thread:
            self._table.touch()  # that thread may wait for a change

    def _pause(self, own: _Slice, version: int) -> None:
        """Wait until something has changed."""
        self._give()
        try:
            self._table.wait_for_change(version)
        finally:
            self._take(own)
