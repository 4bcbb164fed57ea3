"""Results of a study: rows with the machine that they are of, as tables, JSON and a plot."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_la.cli.common.output import new_table, plain
from hetero_la.io.outputs import write_text
from hetero_la.scheduler.machine.identity import machine_identity
from hetero_la.studies.common.columns import WORD
from hetero_la.studies.common.plots import write_plot
from hetero_la.studies.common.study import Row, Rows, Study, StudyRun, StudyTable
from hetero_la.tiles.arrays.transfer import gpu_count

if TYPE_CHECKING:
    from rich.table import Table

_LIBRARIES = ("numpy", "scipy", "cupy-cuda12x", "cupy-cuda13x")


@dataclass(frozen=True)
class StudyResult:
    """What a study has found on a machine.

    Parameters
    ----------
    study : Study
        The study.
    machine : dict
        Hardware and versions, as `describe_machine` returns them.
    measured : str
        Time of measurement, in ISO 8601.
    quick : bool
        Whether it was a run of seconds.
    seconds : float
        Seconds that it took.
    rows : list of dict
        What was measured.
    left_out : list of str
        What was not, and why.
    """

    study: Study
    machine: dict[str, Any]
    measured: str
    quick: bool
    seconds: float
    rows: list[Row]
    left_out: list[str]

    @property
    def found(self) -> list[str]:
        """Sentences with what the rows show."""
        return self.study.find(self.rows) if self.rows else []

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Yield the title and the table of each that has rows."""
        for table in self.study.tables:
            if cells := cells_of(table, self.rows):
                left = [head for head, show in table.columns.items() if show is WORD]
                yield table.title, new_table(list(table.columns), cells, left=left)

    def document(self) -> dict[str, Any]:
        """Return what the JSON file holds."""
        return {
            "study": self.study.name,
            "question": self.study.question,
            "machine": self.machine,
            "measured": self.measured,
            "quick": self.quick,
            "seconds": self.seconds,
            "found": self.found,
            "left_out": self.left_out,
            "rows": self.rows,
        }

    def write(self, folder: Path) -> Iterator[tuple[Path, str]]:
        """Write the JSON file and the plot to a folder; yield each path, and what is there.

        Without rows there is no plot.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.study.name}.json"
        write_text(path, json.dumps(plain(self.document()), indent=1, allow_nan=False) + "\n")
        yield path, "rows, and the machine that they are of"
        if self.rows:
            path = folder / f"{self.study.name}.svg"
            write_plot(self.study, self.rows, path)
            yield path, "their plot"


def cells_of(table: StudyTable, rows: Rows) -> list[list[str]]:
    """Return the cells of a table, row by row.

    Examples
    --------
    >>> table = StudyTable("a", "", {"n": str, "x": str})
    >>> cells_of(table, [{"table": "a", "n": 1}, {"table": "b"}])
    [['1', '-']]
    """
    return [
        [
            "-" if row.get(key) is None else show(row[key])
            for key, show in table.columns.items()
        ]
        for row in rows
        if row["table"] == table.name
    ]  # fmt: skip


def run_study(
    study: Study, *, quick: bool = False, report: Callable[[str], None] = lambda what: None
) -> StudyResult:
    """Measure what a study asks for on this machine."""
    run = StudyRun(study.quick if quick else study.sizes, gpu_count(), report)
    measured = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    began = time.perf_counter()
    rows = [plain(row) for row in study.measure(run)]
    seconds = time.perf_counter() - began
    return StudyResult(study, describe_machine(), measured, quick, seconds, rows, run.left_out)


def describe_machine() -> dict[str, Any]:
    """Return this machine's hardware and the versions of libraries and driver.

    Examples
    --------
    >>> describe_machine().keys() >= {"cpu", "cores", "gpus", "blas", "numpy"}
    True
    """
    machine = dict(machine_identity())
    for name in _LIBRARIES:
        try:
            machine[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if gpu_count():
        import cupy

        machine["cuda driver"] = cupy.cuda.runtime.driverGetVersion()
        machine["cuda runtime"] = cupy.cuda.runtime.runtimeGetVersion()
    return machine
