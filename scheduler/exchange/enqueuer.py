"""Enqueuing for several GPUs of a process, by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero_la.scheduler.exchange.priority_lock import PriorityLock
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.program.instructions import Instruction

if TYPE_CHECKING:
    from hetero_la.scheduler.exchange.in_process import ThreadPort

#: Urgency of threads that are not in the middle of an instruction.
LAST = 2**31


@dataclass
class _Slice:
    """Part of a worker's program that its thread has begun."""

    port: ThreadPort
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
        self, port: ThreadPort, instructions: Sequence[Instruction], places: range,
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
