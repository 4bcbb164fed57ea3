"""What a forked child has anew.

Only the thread that forks goes on in the child: a lock that another one held is never given
back there, and what another one was to do is never done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[[], object])

_renewals: list[Callable[[], object]] = []


def in_forked_child(renew: F) -> F:
    """Call a function in every process that is forked from this one, before anything else there."""
    _renewals.append(renew)
    return renew


def _renew() -> None:
    for renew in _renewals:
        renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class ProcessLock:
    """A lock that all of a process shares; a forked child has its own, which nobody holds.

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
