"""What a caller does directly before the first run of a call, and directly behind it.

A GPU waits while Python decides and prepares; so what need not come in between, does not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class _Around(threading.local):
    """What is still to be done in this thread, before the next run and behind it."""

    before: Callable[[], object] | None = None
    behind: Callable[[], object] | None = None


_around = _Around()


@contextlib.contextmanager
def around_run(before: Callable[[], object], behind: Callable[[], object]) -> Iterator[None]:
    """Call a function before the first run of the block, and one once it is enqueued.

    Examples
    --------
    >>> with around_run(lambda: print("copy"), lambda: print("test")):
    ...     before_run()
    ...     print("factor")
    ...     behind_run()
    copy
    factor
    test
    """
    outer = _around.before, _around.behind
    _around.before, _around.behind = before, behind
    try:
        yield
    finally:
        _around.before, _around.behind = outer


def before_run() -> None:
    """Do what is to be done before the run that begins now."""
    if _around.before is not None:
        _around.before()
        _around.before = None


def behind_run() -> None:
    """Do what is to be done once the first run is enqueued."""
    if _around.behind is not None:
        _around.behind()
        _around.behind = None
