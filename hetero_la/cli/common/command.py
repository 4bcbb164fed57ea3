"""Types that describe a routine, its problem and its result for the commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import scipy.linalg
from numpy.typing import NDArray

from hetero_la.algorithms.routine import Routine
from hetero_la.execution.report import Report
from hetero_la.planning.options import Pivoting

#: Values of ``--assume-a``, of ``--mode``, and of ``--pivot``.
ASSUMPTIONS = ("gen", "sym", "her", "pos")
MODES = ("economic", "r", "raw", "full")
PIVOTING = ("partial", "none")


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
    """

    assume_a: str = "gen"
    upper: bool = False
    mode: str = "economic"
    pivot: Pivoting = "partial"


@dataclass(frozen=True, slots=True)
class MatrixProblem:
    """A command with its matrix, and with right-hand sides if its routine takes them."""

    command: str
    choices: Choices
    kind: str
    a: NDArray
    b: Any  #: right-hand sides, or None

    @property
    def key(self) -> str:
        """Key of the routine in `COMMANDS`."""
        return routine_key(self.command, self.choices)


def routine_key(command: str, choices: Choices) -> str:
    """Return the key in `COMMANDS` for a command with these options."""
    if choices.assume_a == "pos":
        return "solve_positive"
    return command if choices.pivot == "partial" else f"{command}_nopivot"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a run of a command.

    Parameters
    ----------
    arrays : tuple of ndarray
        Arrays, in the order of the routine's names.
    report : Report
        Plan and timing of the run.
    ratio : callable
        Function that computes the error ratio.
    deficient : bool
        Whether the matrix is singular or rank-deficient.
    """

    arrays: tuple[NDArray, ...]
    report: Report
    ratio: Callable[[], float]
    deficient: bool = False


class RightHandSides(Enum):
    """Kind of right-hand sides that are generated for a matrix."""

    NONE = "none"
    ANY = "any"
    IN_RANGE = "in the range of A"  #: so that a solution of moderate size exists


KeywordOptions = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """A routine of the command line: how to run, check and describe it.

    Parameters
    ----------
    routine : Routine
        Declaration of the routine.
    run : callable
        Function of a problem, whether its matrix may be overwritten, and options.
    made : callable
        Function that returns the number of arrays of the matrix's size that a run allocates,
        given the choices and whether the matrix may be overwritten.
    rhs : RightHandSides
        Kind of right-hand sides that it takes.
    options : tuple of str
        Fields of `Choices` that it uses.
    names : callable, optional
        Function that returns the names of the results in files, given the choices; by default
        they are the routine's factors.
    arguments : callable, optional
        Function that returns the keyword arguments of the routine's reference, given the choices.
    reference : callable, optional
        Function that solves the problem with SciPy; by default one call of the routine's
        reference.
    """

    routine: Routine
    run: Callable[[MatrixProblem, bool, KeywordOptions], CommandResult]
    made: Callable[[Choices, bool], int]
    rhs: RightHandSides = RightHandSides.NONE
    options: tuple[str, ...] = ()
    names: Callable[[Choices], tuple[str, ...]] | None = None
    arguments: Callable[[Choices], KeywordOptions] = lambda choices: {}
    reference: Callable[[MatrixProblem], object] | None = None

    def named(self, choices: Choices) -> tuple[str, ...]:
        """Return the names of the results in files."""
        return self.routine.factors if self.names is None else self.names(choices)

    def refer(self, problem: MatrixProblem) -> object:
        """Solve the problem with SciPy."""
        if self.reference is not None:
            return self.reference(problem)
        given = (problem.a,) if problem.b is None else (problem.a, problem.b)
        function = getattr(scipy.linalg, self.routine.reference)
        return function(*given, check_finite=False, **self.arguments(problem.choices))
