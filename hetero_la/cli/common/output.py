"""Where a command's results and messages go: text for people, or one JSON document."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

import hetero_la
from hetero_la.tiles.arrays.counted import in_bytes

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table
    from rich.text import Text

#: Columns of a pipe or a file, in which no table is cut.
_ENDLESS = 10_000


@dataclass
class Output:
    """Results, which go to stdout, and messages, which go to stderr.

    Parameters
    ----------
    command : str
        Name of the subcommand.
    json : bool
        Whether stdout gets one JSON document, when the command is done, and no text.
    quiet : bool
        Whether to leave out messages, except for warnings and errors.
    """

    command: str
    json: bool = False
    quiet: bool = False
    _document: dict[str, Any] = field(default_factory=dict)
    _wrote: list[dict[str, Any]] = field(default_factory=list)
    _warnings: list[str] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)

    def show(self, *parts: str | Table) -> None:
        """Print lines of text and tables on stdout, unless that gets JSON."""
        if self.json:
            return
        for part in parts:
            if isinstance(part, str):
                print(part, flush=True)
            else:
                print_table(part)

    def explain(self, *parts: str | Table) -> None:
        """Print what is not the result itself, as a plan beside its picture; not if `quiet`."""
        if not self.quiet:
            self.show(*parts)

    def record(self, **entries: Any) -> None:
        """Add entries to the JSON document."""
        self._document |= entries

    def note(self, message: str, style: str = "") -> None:
        """Print a message on stderr, unless `quiet`."""
        if not self.quiet:
            print_message(message, style)

    def note_once(self, message: str) -> None:
        """Print a message as `note` does, unless it has been printed so: of each run of a sweep."""
        if message not in self._noted:
            self._noted.add(message)
            self.note(message)

    def wrote(self, path: Path, what: str) -> None:
        """Say that a file, or a folder of files, was written, its size and what is in it."""
        parts = path.rglob("*") if path.is_dir() else [path]
        size = sum(part.stat().st_size for part in parts if part.is_file())
        self._wrote.append({"path": str(path), "bytes": size, "what": what})
        self.note(f"wrote {path}, {in_bytes(size)}: {what}")

    def warn(self, message: str) -> None:
        """Print a warning on stderr, and keep it for the document."""
        self._warnings.append(message)
        print_message(f"hetero-la: warning: {message}", "yellow")

    def finish(self, status: int) -> int:
        """Print the JSON document, if it is wanted; return the exit status."""
        if self.json:
            head = {"command": self.command, "version": hetero_la.__version__, "status": status}
            tail = {"warnings": self._warnings, "wrote": self._wrote}
            document = plain(head | self._document | tail)
            print(json.dumps(document, indent=2, allow_nan=False), flush=True)
        return status


def plain(value: Any) -> Any:
    """Return a value made of what JSON has; numbers that it has not (NaN, inf) become None.

    Examples
    --------
    >>> plain({"n": np.int64(3), "ratio": float("inf"), "nb": (128, 64), "file": Path("a.npy")})
    {'n': 3, 'ratio': None, 'nb': [128, 64], 'file': 'a.npy'}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return [plain(item) for item in value] if isinstance(value, Sequence) else str(value)


@contextlib.contextmanager
def ignore_closed_stderr() -> Iterator[None]:
    """Ignore errors of writing to stderr in the block: the exit status reports the result, too."""
    try:
        yield
    except OSError:
        # The interpreter's flush at exit must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; it is None if the process started without it."""
    return stream is not None and stream.isatty()


def console(stream: TextIO) -> Console:
    """Return a console: as wide as the terminal, and endless for a pipe or a file."""
    from rich.console import Console

    width = None if is_terminal(stream) else _ENDLESS
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def print_message(message: str, style: str = "") -> None:
    """Print a message on stderr, on a terminal with its beginning, as "hetero-la:", in a style."""
    with ignore_closed_stderr():
        if style and is_terminal(sys.stderr):
            text = styled(message, "")
            text.stylize(style, 0, message.rfind(": ", 0, len("hetero-la: warning: ")) + 1)
            console(sys.stderr).print(text, soft_wrap=True)
        else:
            print(message, file=sys.stderr, flush=True)


def print_table(table: Table) -> None:
    """Print a table on stdout, which it fits if that is a terminal; no line ends with blanks.

    Numbers are never cut: where a terminal is too narrow for them, it breaks the lines.
    """
    from rich.measure import Measurement

    shown = console(sys.stdout)
    for column in table.columns:
        if column.no_wrap:
            widest = max(len(str(cell)) for cell in (column.header, *column.cells))
            column.min_width = max(widest, column.min_width or 0)
    least = Measurement.get(shown, shown.options.update(max_width=_ENDLESS), table).minimum
    shown.width = max(shown.width, least)
    with shown.capture() as captured:
        shown.print(table)
    lines = captured.get().splitlines()
    print(*(line.rstrip() for line in lines), sep="\n", flush=True)


def new_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]] = (), *, left: Sequence[str] = ()
) -> Table:
    """Return a table; columns hold numbers and are right-justified, but for those in `left`.

    Examples
    --------
    >>> print_table(new_table(["worker", "GPUs"], [("a", "10"), ("b", "2")], left=["worker"]))
    worker  GPUs
    a         10
    b          2
    """
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        words = heading in left
        justify: JustifyMethod = "left" if words else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not words)
    for row in rows:
        table.add_row(*row)
    return table


def styled(text: str, style: str) -> Text:
    """Return a cell in a colour, which a pipe does not get."""
    from rich.text import Text

    return Text(text, style)


def arrays_text(arrays: Mapping[str, NDArray]) -> str:
    """List names, shapes and dtypes of arrays.

    Examples
    --------
    >>> import numpy as np
    >>> arrays_text({"lu": np.eye(3), "piv": np.arange(3, dtype=np.int32)})
    'lu (3 x 3 float64), piv (3 int32)'
    """
    return ", ".join(
        f"{name} ({' x '.join(map(str, array.shape))} {array.dtype})"
        for name, array in arrays.items()
    )
