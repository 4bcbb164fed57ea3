"""Renewal of locks and other state of a process in its forked children.

Only the thread that forks runs on in the child: a lock that another thread held is never released
there, and work of another thread is never done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[[], object])


def in_forked_child(renew: F) -> F:
    """Register a function to be called first in every process that is forked from this one."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=renew)
    return renew


class ProcessLock:
    """A lock shared by all threads of a process; a forked child has a new one, not held.

    Examples
    --------
    >>> lock = ProcessLock()
    >>> with lock:
    ...     pass
    """

    def __init__(self) -> None:
        self._new()
        in_forked_child(self._new)

    def _new(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
