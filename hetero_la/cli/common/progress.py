"""Progress of long work, on terminals only."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hetero_la.cli.common.output import console, is_terminal
from hetero_la.scheduler.run.progress import observe
from hetero_la.tiles.arrays.counted import in_units

if TYPE_CHECKING:
    from rich.progress import Progress

_DELAY = 2.0  #: seconds before the bar appears


class ProgressBar:
    """Progress bar of one run, updated from worker threads."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._clock, self._start = label, clock, clock()
        self._bar: Progress | None = None
        self._lock = threading.Lock()

    def update(self, done: float, total: float) -> None:
        """Show that `done` of `total` flops are done, unless the run is short."""
        spent = self._clock() - self._start
        with self._lock:
            if spent < _DELAY or total <= 0:
                return
            if self._bar is None:
                self._bar = _new_bar(self._label, total, self._start)
            rate = in_units(done / spent, "flop/s") if spent else ""
            self._bar.update(self._bar.task_ids[0], completed=min(done, total), rate=rate)
            self._bar.start()  # which does nothing but the first time

    def clear(self) -> None:
        """Erase the bar from the terminal."""
        with self._lock:
            if self._bar is not None:
                self._bar.refresh()
                self._bar.stop()


def _new_bar(label: str, total: float, start: float) -> Progress:
    """Return a bar, not yet drawn, that counts the time from `start` on."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"), Elapsed(), TextColumn("left:"), Remaining(),
        console=console(sys.stderr), transient=True,
    )  # fmt: skip
    task = bar.add_task(label, total=total, rate="")
    bar.tasks[task].start_time = start
    return bar


@contextlib.contextmanager
def show_progress(label: str, quiet: bool = False) -> Iterator[None]:
    """Show the progress of the runs in the block if stderr is a terminal."""
    if quiet or not is_terminal(sys.stderr):
        yield
        return
    bar = ProgressBar(label)
    with observe(bar.update):
        try:
            yield
        finally:
            bar.clear()


@contextlib.contextmanager
def show_steps(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on a terminal what is being done."""
    if quiet or not is_terminal(sys.stderr):
        yield lambda step: None
        return
    with console(sys.stderr).status("") as status:
        yield status.update
