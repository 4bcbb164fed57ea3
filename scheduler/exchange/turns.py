"""Turns of runs on the workers of a process: messages of two runs must not wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetero_la.tiles.arrays.forks import in_forked_child

#: Seconds between looks at whether a run that waits for its turn has ended.
_LOOK_INTERVAL = 0.25


class Turn:
    """The turn of a process, which one run has at a time, for all its workers there.

    Examples
    --------
    >>> turn = Turn()
    >>> turn.take("run 1", check=lambda: None)
    >>> turn.take("run 1", check=lambda: None)
    >>> turn.give_back("run 1"); turn.holder
    'run 1'
    >>> turn.give_back("run 1"); turn.holder
    ''
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self.holder = ""

    def take(self, run: str, check: Callable[[], None]) -> None:
        """Wait until no other run has the turn; `check` raises once the wait is to end."""
        with self._changed:
            while self.holder not in ("", run):
                check()
                self._changed.wait(_LOOK_INTERVAL)
            self.holder = run
            self._count += 1

    def give_back(self, run: str) -> None:
        """Give the turn back, as often as it was taken."""
        with self._changed:
            assert self.holder == run, f"{run} gives back the turn of {self.holder}"
            self._count -= 1
            if not self._count:
                self.holder = ""
                self._changed.notify_all()


turn_of_process = Turn()
in_forked_child(lambda: Turn.__init__(turn_of_process))
