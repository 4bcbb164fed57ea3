"""A table of values for which threads wait, with an end to every wait."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable
from typing import Any

from hetero_la.tiles.arrays.errors import RunAbortedError


class WaitTable:
    """A table of values that are put once, and for which threads wait.

    Parameters
    ----------
    patience : float, optional
        Seconds without progress of the run after which a waiting thread raises an error.

    Examples
    --------
    >>> table = WaitTable()
    >>> table.put("panel 0", 42)
    >>> table.get("panel 0")
    42
    """

    def __init__(self, patience: float = 3600.0) -> None:
        self._patience = patience
        self._values: dict[Hashable, Any] = {}
        self._changed = threading.Condition()
        self._latest = time.monotonic()
        self.version = 0  #: of what waiting threads may look at
        self.error: BaseException | None = None

    def put(self, key: Hashable, value: Any) -> None:
        """Put a value under a key, and wake the threads that wait for it."""
        with self._changed:
            self._values[key] = value
            self._latest = time.monotonic()
            self._notify()

    def touch(self) -> None:
        """Let threads look again that wait for a change."""
        with self._changed:
            self._notify()

    def _notify(self) -> None:
        self.version += 1
        self._changed.notify_all()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> Any:
        """Wait for a value and return it; see `wait`."""
        self.wait(key)
        return self._values[key]

    def take(self, key: Hashable) -> Any:
        """Wait for a value, return it and forget it; see `wait`."""
        self.wait(key)
        return self._values.pop(key)

    def wait(self, key: Hashable, at_most: float = math.inf) -> bool:
        """Wait for a value; return whether it has come within `at_most` seconds.

        Raises `RunAbortedError` if the run ends before.
        """
        until = time.monotonic() + at_most
        with self._changed:
            while key not in self._values:
                self.check()
                if (left := until - time.monotonic()) <= 0:
                    return False
                self._wait(str(key), left)
            return True

    def wait_for_change(self, version: int) -> None:
        """Wait until there is another version, or for a while; see `wait`."""
        with self._changed:
            if self.version == version:
                self._wait("work")

    def _wait(self, what: str, at_most: float = math.inf) -> None:
        quiet = time.monotonic() - self._latest
        if quiet > self._patience:
            raise RunAbortedError(f"waited {quiet:.0f} s for {what} without any progress")
        self._changed.wait(timeout=min(self._patience, 1.0, at_most))

    def clear(self) -> None:
        """Release all values."""
        with self._changed:
            self._values.clear()

    def note_progress(self) -> None:
        """Note that the run makes progress."""
        self._latest = time.monotonic()

    def abort(self, error: BaseException) -> None:
        """End all waits with an error; the first one given is kept."""
        with self._changed:
            if self.error is None:
                self.error = error
            self._notify()

    def check(self) -> None:
        """Raise RunAbortedError if the run was aborted."""
        if self.error is not None:
            raise RunAbortedError("another worker of this run has failed") from self.error
