"""Table of results: one row per run, with the same columns for every command."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hetero_la.io.outputs import replacing_file
from hetero_la.testing.residuals import RATIO_LIMIT


def _column(width: int, spec: str = "", heading: str = "") -> Any:
    """Return a field that is None by default; a column of negative width is left-justified."""
    return field(default=None, metadata={"width": width, "spec": spec, "heading": heading})


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

    routine: str = _column(-8)
    dtype: str = _column(-10)
    kind: str = _column(-14)
    m: int = _column(7)
    n: int = _column(7)
    nrhs: int = _column(5)
    nb: str | None = _column(11)
    lookahead: int | None = _column(10, heading="look-ahead")
    workers: str | None = _column(-9)
    seconds: float | None = _column(9, ".4f")
    gflops: float | None = _column(9, ".1f", "Gflop/s")
    ref_seconds: float | None = _column(9, ".4f", "ref s")
    ratio: float | None = _column(9, ".3g")
    status: str = _column(-12)

    @property
    def passed(self) -> bool:
        """Whether there is a result, with an acceptable error ratio if it was computed.

        A singular matrix has factors, but no solution.
        """
        return self.seconds is not None and (self.ratio is None or self.ratio < RATIO_LIMIT)


def header() -> str:
    """Return the line of headings."""
    return _line(column.metadata["heading"] or column.name for column in fields(Row))


def format_row(row: Row) -> str:
    """Format a row, aligned with `header`; ``-`` stands for a missing figure."""
    columns = [(getattr(row, column.name), column.metadata["spec"]) for column in fields(Row)]
    return _line("-" if value is None else format(value, spec) for value, spec in columns)


def _line(cells: Iterable[str]) -> str:
    widths = [column.metadata["width"] for column in fields(Row)]
    padded = (
        cell.ljust(-width) if width < 0 else cell.rjust(width)
        for cell, width in zip(cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


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
    >>> from types import SimpleNamespace as Worker
    >>> workers_text([Worker(kind="cpu"), Worker(kind="gpu"), Worker(kind="gpu")])
    '2gpu+1cpu'
    """
    counts = Counter(worker.kind for worker in workers)
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
