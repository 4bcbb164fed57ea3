"""A study: a question, what is measured for it, and how that is shown.

A study is a module of `hetero_la.studies` with an object `STUDY`.  Its function `measure` yields
rows, dictionaries of what JSON has; each names the table of the study that it belongs to.  All else
is made of rows, which may come from a file: tables, sentences, the plot.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_la.tiles.arrays.names import unknown_name

Row = dict[str, Any]
Rows = Sequence[Row]
#: Returns a value as text.
Show = Callable[[Any], str]

_PACKAGE = "hetero_la.studies"


@dataclass
class StudyRun:
    """What a study measures with.

    Parameters
    ----------
    sizes : mapping
        The study's parameters, its `Study.sizes` or `Study.quick`.
    gpus : int
        Number of GPUs.
    report : callable, optional
        Called with a text before each measurement.
    left_out : list of str
        What could not be measured here, and why.
    """

    sizes: Mapping[str, Any]
    gpus: int
    report: Callable[[str], None] = lambda what: None
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, what: str) -> None:
        """Say once that something is not measured, and why: ``"copies by NVLink: one GPU"``."""
        if what not in self.left_out:
            self.left_out.append(what)

    def has_gpus(self, number: int, what: str) -> bool:
        """Return whether there are so many GPUs; if not, say that `what` is left out.

        Examples
        --------
        >>> run = StudyRun({}, gpus=0)
        >>> run.has_gpus(1, "launches"), run.left_out
        (False, ['launches: there is no GPU'])
        """
        if self.gpus >= number:
            return True
        there = "is no GPU" if not self.gpus else f"are {self.gpus} GPUs, not {number}"
        self.leave_out(f"{what}: there {'is one GPU' if self.gpus == 1 else there}")
        return False


@dataclass(frozen=True)
class StudyTable:
    """One table of a study.

    Parameters
    ----------
    name : str
        What rows name it by, in their entry ``"table"``.
    title : str
        What is above the table.
    columns : mapping
        The entries of a row that are shown, which are the headings, and how; ``-`` stands for a
        missing one.
    """

    name: str
    title: str
    columns: Mapping[str, Show]


@dataclass(frozen=True)
class Study:
    """A question, and how it is answered.

    Parameters
    ----------
    name : str
        The module's.
    question : str
        One sentence.
    source : str
        Who measured it first, and where.
    original : str
        What they found.
    tables : sequence of StudyTable
        The tables.
    sizes, quick : mapping
        Parameters, and those of a run that takes seconds.
    measure : callable
        Yields the rows; calls `StudyRun.leave_out` for what it cannot measure.
    find : callable
        Returns sentences with what the rows show, the most important one first.
    draw : callable
        Draws the rows into an empty Matplotlib figure.
    """

    name: str
    question: str
    source: str
    original: str
    tables: Sequence[StudyTable]
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]
    measure: Callable[[StudyRun], Iterator[Row]]
    find: Callable[[Rows], list[str]]
    draw: Callable[[Any, Rows], None]


def study_names() -> list[str]:
    """Return the names of all studies.

    Examples
    --------
    >>> "blas12" in study_names()
    True
    """
    found = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    return sorted(module.name for module in found if not module.ispkg)


def load_study(name: str) -> Study:
    """Return a study by its name; raise ValueError for one that there is not.

    Examples
    --------
    >>> load_study("blas12").name
    'blas12'
    """
    if name not in (known := study_names()):
        raise ValueError(unknown_name("study ", name, known))
    study: Study = importlib.import_module(f"{_PACKAGE}.{name}").STUDY
    return study


def rows_of(rows: Rows, table: str, **entries: Any) -> list[Row]:
    """Return the rows of a table with these entries.

    Examples
    --------
    >>> rows = [{"table": "a", "n": 1}, {"table": "a", "n": 2}, {"table": "b", "n": 1}]
    >>> rows_of(rows, "a", n=1)
    [{'table': 'a', 'n': 1}]
    """
    wanted = {"table": table, **entries}
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def values_of(rows: Rows, key: str) -> list[Any]:
    """Return the values of an entry in rows that have it, each once, in their order.

    Examples
    --------
    >>> values_of([{"n": 2}, {"n": 1}, {"n": 2}, {}], "n")
    [2, 1]
    """
    return list(dict.fromkeys(row[key] for row in rows if key in row))
