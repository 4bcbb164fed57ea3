"""Subcommands that run a routine: their names and options, problems and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from hetero_la.accuracy.report import AccuracyReport
from hetero_la.algorithms.routine import Routine
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.api.factors import Factors
from hetero_la.execution.report import Report
from hetero_la.planning.options import Pivoting, Precision
from hetero_la.testing import residuals

#: Keyword arguments of the parser for the options that only some routines have.
CHOICES: dict[str, dict[str, Any]] = {
    "assume_a": {
        "choices": ("gen", "sym", "her", "pos"),
        "help": "the matrix is general (default), symmetric, Hermitian or positive definite; "
        "except for general matrices only the lower triangle is read",
    },
    "upper": {
        "action": "store_true",
        "default": None,
        "help": "read the upper triangle instead of the lower one; cholesky returns U, not L",
    },
    "mode": {
        "choices": ("economic", "r", "raw", "full"),
        "help": "part of Q to compute: its first min(m, n) columns, nothing, Householder "
        "vectors, or all (default: economic, in a sweep raw)",
    },
    "pivot": {
        "choices": ("partial", "none"),
        "help": "row interchanges of LU (default: partial); without them the growth of the factors "
        "is measured, and too much of it is an error",
    },
    "precision": {
        "choices": ("full", "mixed"),
        "help": "mixed: factor in the lower precision, and refine solutions to full accuracy; "
        "factors are written in the lower precision, and checked by solving a system (default: "
        "full)",
    },
}
#: Options that some routines do nothing with, and which they are for.
_TAKERS: dict[str, Callable[[Routine], bool]] = {
    "coarse": lambda routine: routine.two_levels,
    "inverse_bound": lambda routine: routine.panel_kernel != "geqrf",
    "m": lambda routine: not routine.square,
    "nrhs": lambda routine: not routine.factors,
    "qr_panel": lambda routine: routine.panel_kernel == "geqrf",
    "products": lambda routine: True,
}
#: All options that only some routines have.
PARTICULAR = (*CHOICES, *_TAKERS)
#: Names of the subcommands; each is also that of its default routine.
NAMES = tuple(dict.fromkeys(r.command for r in ROUTINES.values() if r.command))


@dataclass(frozen=True, slots=True)
class Choices:
    """Options that only some routines have.

    Parameters
    ----------
    assume_a : str
        Structure of the matrix for `solve`: ``"gen"``, ``"sym"``, ``"her"`` or ``"pos"``.
    upper : bool
        Whether the upper triangle is read, if only one is.
    mode : str
        Factors that `qr` returns: ``"economic"``, ``"r"``, ``"raw"`` or ``"full"``.
    pivot : str
        Row interchanges of LU: ``"partial"`` or ``"none"``.
    precision : str
        Precision of the factorization: ``"full"`` or ``"mixed"``.
    report : bool
        Whether to judge the result.
    """

    assume_a: str = "gen"
    upper: bool = False
    mode: str = "economic"
    pivot: Pivoting = "partial"
    precision: Precision = "full"
    report: bool = False

    def routine(self, command: str) -> str:
        """Return the routine that a subcommand runs: the last one that the options choose.

        Examples
        --------
        >>> Choices().routine("lu"), Choices(assume_a="pos").routine("solve")
        ('lu', 'solve_positive')
        """
        chosen = {(option, getattr(self, option)) for option in ROUTINES[command].options}
        *_, last = (
            name
            for name, routine in ROUTINES.items()
            if routine.command == command and (not routine.when or chosen & {*routine.when})
        )
        return last


@dataclass(frozen=True, slots=True)
class MatrixProblem:
    """A subcommand with its matrix, and with right-hand sides if it takes them."""

    command: str
    choices: Choices
    kind: str
    a: NDArray
    b: Any  #: right-hand sides, or None

    @property
    def routine(self) -> Routine:
        """Declaration of the routine."""
        return ROUTINES[self.choices.routine(self.command)]

    def ratio(self, *results: Any, **options: Any) -> Callable[[], float]:
        """Return a function that computes the error ratio of results."""
        return partial(getattr(residuals, self.routine.ratio), self.a, *results, **options)


def takes(command: str, option: str) -> bool:
    """Return whether an option that some routines do not have is one of this subcommand.

    Examples
    --------
    >>> takes("lu", "coarse"), takes("qr", "coarse"), takes("qr", "mode"), takes("lu", "mode")
    (True, False, True, False)
    """
    routine = ROUTINES[command]
    return _TAKERS[option](routine) if option in _TAKERS else option in routine.options


def takes_rhs(command: str) -> bool:
    """Return whether a subcommand takes right-hand sides: those that do not return factors."""
    return takes(command, "nrhs")


def count_results(command: str, choices: Choices) -> int:
    """Return the number of arrays that a subcommand writes."""
    return 1 if takes_rhs(command) or choices.mode == "r" else len(ROUTINES[command].factors)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a run of a command.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Arrays by their names in files.
    report : Report or Factors
        Object with the `plan` and the `timing` of the run.
    ratio : callable
        Function that computes the error ratio.
    deficient : bool
        Whether the matrix is singular or rank-deficient.
    accuracy : callable, optional
        Function that judges the result; of a solution only if that was asked for before the run.
    """

    arrays: Mapping[str, NDArray]
    report: Report | Factors
    ratio: Callable[[], float]
    deficient: bool = False
    accuracy: Callable[[], AccuracyReport] | None = None
