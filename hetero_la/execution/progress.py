"""A progress bar of runs, on terminals and in notebooks."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from hetero_la.scheduler.cluster.clients import (
    ClientLike,
    running_client,
    watch_runs,
    worker_infos,
)
from hetero_la.scheduler.cluster.run_page import runs_seen_by
from hetero_la.scheduler.placement.workers import over_processes
from hetero_la.scheduler.run.job import this_process
from hetero_la.scheduler.run.watched import look_around, runs_of
from hetero_la.tiles.arrays.counted import in_units

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_DELAY = 2.0  #: seconds before the bar appears
_INTERVAL = 0.25  #: seconds between looks at the runs
_WIDTH = 100  #: characters of a bar in a notebook
#: Characters of a terminal below which the title is left out, and then the bar: figures stay.
_WIDTHS = 80, 60

Runs = list[dict[str, Any]]


@contextlib.contextmanager
def progress(client: ClientLike = None) -> Iterator[None]:
    """Show the progress of the runs in the block: a bar with their rate and the time left.

    It appears after two seconds, on a terminal or in a notebook, and goes at the end of the block.
    Elsewhere nothing is shown.  A call that is one call of LAPACK or cuSOLVER shows no progress.

    Parameters
    ----------
    client : Client, Cluster or None, optional
        Whose workers the runs in the block use, as in the functions themselves.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> with hetero_la.progress():
    ...     x = hetero_la.solve(np.eye(3), np.ones(3), nb=2)
    """
    place: Place
    if _in_notebook():
        place = _Notebook()
    elif sys.stderr is not None and sys.stderr.isatty():
        place = _Terminal()
    else:
        yield
        return
    bar, runs = ProgressBar(place), _source(running_client(client))
    with bar, _looking(lambda: bar.show(runs())):
        yield


def _source(client: Any) -> Callable[[], Runs]:
    """Return what lists the runs of this process, wherever their workers are."""
    if client is None or not over_processes(worker_infos(client)):
        return lambda: runs_of(look_around())
    watch_runs(client)

    def ask() -> Runs:
        with contextlib.suppress(Exception):  # the scheduler is busy, or has gone
            return runs_seen_by(client)
        return []

    return ask


@contextlib.contextmanager
def _looking(look: Callable[[], None]) -> Iterator[None]:
    """Look from time to time in the block, and once more at its end."""
    over = threading.Event()

    def again() -> None:
        while not over.wait(_INTERVAL):
            look()

    thread = threading.Thread(target=again, name="hetero-la progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        look()


class Place(Protocol):
    """Where a bar is drawn."""

    console: Console

    def draw(self, bar: Progress) -> None:
        """Draw a bar there, or draw it anew."""

    def clear(self, bar: Progress) -> None:
        """Erase the bar."""


class _Terminal:
    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)

    def draw(self, bar: Progress) -> None:
        bar.start()  # which does nothing but the first time
        bar.refresh()

    def clear(self, bar: Progress) -> None:
        bar.stop()


class _Notebook:
    """A cell's output: rich's own way needs ipywidgets."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
        self._output: Any = None

    def draw(self, bar: Progress) -> None:
        self.console.print(bar.get_renderable())
        form = '<pre style="line-height: normal">{code}</pre>'
        self._show(self.console.export_html(inline_styles=True, code_format=form))

    def clear(self, bar: Progress) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        shell: Any = importlib.import_module("IPython.display")
        data = {"text/html": text, "text/plain": ""}
        if self._output is None:
            self._output = shell.DisplayHandle()
            self._output.display(data, raw=True)
        else:
            self._output.update(data, raw=True)


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class ProgressBar:
    """A bar of the latest run that this process has begun since the bar was made.

    Parameters
    ----------
    place : Place
        Where it is drawn.
    clock : callable, optional
        Seconds.
    """

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock, self._start = place, clock, clock()
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._place.clear(self._bar)

    def show(self, runs: Runs) -> None:
        """Show the first of the runs that is of this process and this time, unless it is early."""
        spent, here = self._clock() - self._start, this_process()
        mine = (r for r in runs if r["owner"] == here and r["seconds"] + r["ago"] <= spent)
        run = next(mine, None)
        if run is None or spent < _DELAY:
            return
        if self._bar is None:
            self._bar = _new_bar(self._place.console)
        self._bar.update(
            self._bar.task_ids[0], completed=run["share"],
            description=run["title"].removesuffix(" matrix"),
            rate=in_units(run["rate"], "flop/s"), spent=_clock_text(run["seconds"]),
            left=f"left: {_clock_text(run['left'])}",
        )  # fmt: skip
        self._place.draw(self._bar)


def _new_bar(console: Console) -> Progress:
    """Return a bar that is not yet drawn."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    texts = (TextColumn(f"{{task.fields[{name}]}}") for name in ("rate", "spent", "left"))
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *texts]
    left_out = sum(console.width < width for width in _WIDTHS)
    bar = Progress(*columns[left_out:], console=console, transient=True, auto_refresh=False)
    bar.add_task("", total=1.0, rate="", spent="", left="")
    return bar


def _clock_text(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds.

    Examples
    --------
    >>> _clock_text(3725.4)
    '1:02:05'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
