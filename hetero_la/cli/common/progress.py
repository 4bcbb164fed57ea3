"""Progress bar of long runs, on terminals only."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from hetero_la.scheduler.run.progress import observe

_DELAY = 2.0  #: seconds before the bar appears
_INTERVAL = 0.2  #: seconds between two drawings
_WIDTH = 30


class ProgressBar:
    """Progress bar of one run, updated from worker threads."""

    def __init__(
        self, label: str, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._label, self._stream, self._clock = label, stream, clock
        self._start = clock()
        self._next = self._start + _DELAY
        self._drawn = False
        self._lock = threading.Lock()

    def update(self, done: float, total: float) -> None:
        """Draw that `done` of `total` flops are done, unless the last drawing is recent."""
        with self._lock:
            now = self._clock()
            if now < self._next or total <= 0:
                return
            self._next, self._drawn = now + _INTERVAL, True
            share = min(done / total, 1.0)
            filled = int(share * _WIDTH)
            spent = now - self._start
            left = f", {spent * (1 / share - 1):.0f} s left" if share > 0 else ""
            self._stream.write(
                f"\r{self._label} [{'#' * filled}{'.' * (_WIDTH - filled)}] "
                f"{share:4.0%}, {spent:.0f} s{left}\x1b[K"
            )
            self._stream.flush()

    def clear(self) -> None:
        """Erase the bar from the line."""
        with self._lock:
            self._next = float("inf")
            if self._drawn:
                self._stream.write("\r\x1b[K")
                self._stream.flush()


@contextlib.contextmanager
def show_progress(label: str) -> Iterator[None]:
    """Show the progress of the runs in the block if stderr is a terminal."""
    # sys.stderr is None if the process was started with stderr closed.
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    bar = ProgressBar(label, sys.stderr)
    with observe(bar.update):
        try:
            yield
        finally:
            bar.clear()
