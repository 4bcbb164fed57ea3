"""Table of results: one row per run, with the same columns for every command."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_la.cli.common.output import Output, console, is_terminal, new_table, styled
from hetero_la.io.outputs import replacing_file
from hetero_la.testing.residuals import RATIO_LIMIT
from hetero_la.tiles.arrays.counted import in_seconds, in_units

if TYPE_CHECKING:
    from rich.table import Table

#: Colours of the status column, on a terminal.
_STYLES = {"ok": "green", "FAILED": "bold red", "unchecked": ""}


def _column(
    width: int, spares: int = 0, show: Callable[[Any], str] = str, heading: str = ""
) -> Any:
    """Return a field that is None by default.

    A column of negative width is left-justified.  Those with the largest `spares` are left out
    first where a terminal is too narrow; 0 is never left out.
    """
    told = {"width": width, "spares": spares, "show": show, "heading": heading}
    return field(default=None, metadata=told)


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one run; None for a figure that was not computed.

    Parameters
    ----------
    routine, dtype, kind : str
        Routine, element type and kind of matrix; ``"file"`` for a matrix that was read.
    m, n, nrhs : int
        Sizes, in elements.
    nb : str
        Tile size, or sizes, as `hetero_la.Options` reads them.
    lookahead : int
        Look-ahead depth.
    workers : str
        Number of workers of each kind, as in ``"4gpu+1cpu"``.
    seconds, gflops : float
        Wall time of the run and its rate; a complex operation counts as four.
    ref_seconds : float or None
        Wall time of SciPy, or of cuSOLVER if GPUs were used.
    ratio : float or None
        Error ratio.
    status : str
        ``"ok"``, ``"FAILED"``, ``"unchecked"``, or the fault of the matrix:
        ``"singular"``, ``"not pos.def."`` or ``"rank-def"``.
    """

    routine: str = _column(-8, 7)
    dtype: str = _column(-10, 3)
    kind: str = _column(-14, 6)
    m: int = _column(6)
    n: int = _column(6)
    nrhs: int = _column(4, 5)
    nb: str | None = _column(6)
    lookahead: int | None = _column(10, 4, heading="look-ahead")
    workers: str | None = _column(-9, 2)
    seconds: float | None = _column(7, show=in_seconds, heading="time")
    gflops: float | None = _column(
        12, show=lambda gflops: in_units(1e9 * gflops, "flop/s"), heading="rate"
    )
    ref_seconds: float | None = _column(8, 1, show=in_seconds, heading="ref time")
    ratio: float | None = _column(7, show=lambda ratio: f"{ratio:.3g}")
    status: str = _column(-11)

    @property
    def passed(self) -> bool:
        """Whether there is a result, with an acceptable error ratio if it was computed.

        A singular matrix has factors, but no solution.
        """
        return self.seconds is not None and (self.ratio is None or self.ratio < RATIO_LIMIT)


class RowTable:
    """Table of rows, which are printed as they come; on a terminal, of the columns that fit.

    Parameters
    ----------
    output : Output
        Where it is printed.
    varied : collection of str, optional
        Names of columns by whose values the rows differ: others are left out before these are.
    empty : collection of str, optional
        Names of columns that will have no figures: these are left out first.
    """

    def __init__(
        self, output: Output, varied: Collection[str] = (), empty: Collection[str] = ()
    ) -> None:
        self._output = output
        self._columns = list(fields(Row))
        if is_terminal(sys.stdout):
            self._leave_out(console(sys.stdout).width, varied, empty)
        self._begun = False

    def _leave_out(self, width: int, varied: Collection[str], empty: Collection[str]) -> None:
        """Leave out columns until the others fit."""
        sizes = ("m", "nb", "n") if varied else ()  # which one row alone has to show

        def need(column: Any) -> tuple[bool, bool, int]:
            return column.name not in empty, column.name in varied, -column.metadata["spares"]

        for column in sorted(self._columns, key=need):
            needed = sum(abs(one.metadata["width"]) + 2 for one in self._columns) - 2
            if needed <= width:
                break
            if column.metadata["spares"] or column.name in (*sizes, *empty):
                self._columns.remove(column)

    def begin(self) -> None:
        """Print the headings."""
        self._begun = True
        self._output.show(self._table(show_header=True))

    def add(self, row: Row) -> None:
        """Print a row, the first one below the headings; ``-`` stands for a missing figure."""
        if not self._begun:
            self.begin()
        table = self._table(show_header=False)
        table.add_row(*(self._cell(row, column) for column in self._columns))
        self._output.show(table)

    def _table(self, *, show_header: bool) -> Table:
        """Return a table without rows, whose columns are as wide as those of all others."""
        told = [column.metadata for column in self._columns]
        headings = [column.metadata["heading"] or column.name for column in self._columns]
        named = zip(headings, told, strict=True)
        table = new_table(headings, left=[heading for heading, one in named if one["width"] < 0])
        table.show_header = show_header
        for drawn, one in zip(table.columns, told, strict=True):
            drawn.min_width = abs(one["width"])
        return table

    def _cell(self, row: Row, column: Any) -> Any:
        value = getattr(row, column.name)
        text = "-" if value is None else column.metadata["show"](value)
        return text if column.name != "status" else styled(text, _STYLES.get(text, "yellow"))


def status(*, trouble: str, ratio: float | None) -> str:
    """Return the status of a run, from its error ratio and the fault of the matrix.

    The factors of a singular matrix must have a good ratio, too: a bad one takes precedence.
    """
    if ratio is not None and not ratio < RATIO_LIMIT:
        return "FAILED"
    return trouble or ("unchecked" if ratio is None else "ok")


def workers_text(workers: Sequence[Any]) -> str:
    """Count the workers of each kind, GPUs first.

    Examples
    --------
    >>> from hetero_la.scheduler.placement.workers import WorkerInfo as Worker
    >>> workers_text([Worker("a", "cpu"), Worker("b", "gpu"), Worker("c", "gpu")])
    '2gpu+1cpu'
    >>> workers_text([Worker("a", "cpu"), Worker("b", "gpu", virtual=True)])
    '1virtual-gpu+1cpu'
    """
    counts = Counter(worker.kind_text.replace(" ", "-") for worker in workers)
    return "+".join(f"{counts[kind]}{kind}" for kind in sorted(counts, reverse=True))


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write `rows` below a line of headings; `path` never holds an incomplete row."""
    with (
        replacing_file(path) as unfinished,
        open(unfinished, "x", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, [field.name for field in fields(Row)])
        table.writeheader()
        table.writerows(asdict(row) for row in rows)
