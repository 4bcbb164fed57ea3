"""What the commands know of a routine, of a problem, and of what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import scipy.linalg
from numpy.typing import NDArray

from hetero_la.algorithms.routine import Routine
from hetero_la.execution.report import Report

#: What a matrix may be taken for, and what may be computed of Q.
ASSUMPTIONS = ("gen", "sym", "her", "pos")
MODES = ("economic", "r", "raw", "full")


@dataclass(frozen=True, slots=True)
class Choices:
    """Options that only some routines have.

    Parameters
    ----------
    assume_a : str
        What `solve` knows of the matrix: ``"gen"``, ``"sym"``, ``"her"`` or ``"pos"``.
    upper : bool
        Which triangle is read, where only one is.
    mode : str
        What `qr` returns: ``"economic"``, ``"r"``, ``"raw"`` or ``"full"``.
    """

    assume_a: str = "gen"
    upper: bool = False
    mode: str = "economic"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is run: a command on a matrix of some kind, perhaps with right-hand sides."""

    command: str
    choices: Choices
    kind: str
    a: NDArray
    b: Any  #: right-hand sides; None for a routine that has none

    @property
    def key(self) -> str:
        """The entry of the table that does it."""
        return key(self.command, self.choices)


def key(command: str, choices: Choices) -> str:
    """The entry of the table that a command stands for."""
    return "solve_positive" if choices.assume_a == "pos" else command


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Parameters
    ----------
    arrays : tuple of ndarray
        Results, in the order of the routine's names.
    report : Report
        Plan and timing.
    ratio : callable
        Computes the error ratio.
    deficient : bool
        Whether the matrix is singular, or of less than full rank.
    """

    arrays: tuple[NDArray, ...]
    report: Report
    ratio: Callable[[], float]
    deficient: bool = False


class RightHandSides(Enum):
    """Which right-hand sides go with a matrix that is made."""

    NONE = "none"
    ANY = "any"
    IN_RANGE = "in the range of A"  #: so that there is a solution of moderate size


Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """How a routine is run by the command line.

    Parameters
    ----------
    routine : Routine
        What is run.
    run : callable
        Does it, given a problem, whether its matrix may be overwritten, and options.
    made : callable
        How many arrays of the matrix's size a run makes, given the choices and whether
        the matrix may be overwritten.
    rhs : RightHandSides
        Which ones there are.
    options : tuple of str
        Those of `Choices` that it has.
    names : callable, optional
        Names of the results, for the files that they are written to, where these are not
        always the routine's factors.
    arguments : callable, optional
        What the routine's reference takes besides the matrix and right-hand sides.
    reference : callable, optional
        Does the same with SciPy, where that takes several calls.
    """

    routine: Routine
    run: Callable[[Problem, bool, Options], Outcome]
    made: Callable[[Choices, bool], int]
    rhs: RightHandSides = RightHandSides.NONE
    options: tuple[str, ...] = ()
    names: Callable[[Choices], tuple[str, ...]] | None = None
    arguments: Callable[[Choices], Options] = lambda choices: {}
    reference: Callable[[Problem], object] | None = None

    def named(self, choices: Choices) -> tuple[str, ...]:
        """Names of the results."""
        return self.routine.factors if self.names is None else self.names(choices)

    def refer(self, problem: Problem) -> object:
        """Do the same with SciPy."""
        if self.reference is not None:
            return self.reference(problem)
        given = (problem.a,) if problem.b is None else (problem.a, problem.b)
        function = getattr(scipy.linalg, self.routine.reference)
        return function(*given, check_finite=False, **self.arguments(problem.choices))
