"""The way back to full precision."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from hetero_la.execution.report import MixedOutcome, Report
from hetero_la.mixed import prediction
from hetero_la.planning.decisions import Problem
from hetero_la.tiles.arrays.transfer import device_index

T = TypeVar("T")

#: Why mixed precision is not tried.
NO_GAIN = "full precision is predicted to be as fast"


class LowerPrecisionError(Exception):
    """Mixed precision does not pay, or cannot reach the accuracy of full precision.

    Attributes
    ----------
    reason : str
        Why, in words.
    steps, inner_steps : int
        Steps of refinement that were taken, and those of GMRES within them.
    """

    def __init__(self, reason: str, steps: int = 0, inner_steps: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.steps, self.inner_steps = reason, steps, inner_steps

    def outcome(self, dtype: Any) -> MixedOutcome:
        """Return what is said of the factorization in full precision that follows."""
        return MixedOutcome(_name(dtype), self.steps, self.inner_steps, self.reason)


@functools.cache
def _name(dtype: Any) -> str:
    """Return the name of a dtype, for which NumPy takes a microsecond each time."""
    return str(dtype.name)


def give_up(reason: str) -> NoReturn:
    """Leave the rest to full precision.

    Examples
    --------
    >>> give_up("the matrix is singular in float32")
    Traceback (most recent call last):
        ...
    hetero_la.mixed.fallback.LowerPrecisionError: the matrix is singular in float32
    """
    raise LowerPrecisionError(reason)


def first_mixed(
    routine: str, a: Any, nrhs: int, mixed: Callable[[], tuple[T, MixedOutcome]],
    full: Callable[[], T], run_of: Callable[[T], Report | None],
) -> T:  # fmt: skip
    """Call `mixed` if that is predicted to pay, and `full` if not, or if it fails.

    What came of it is noted in the report of the run.

    Parameters
    ----------
    routine : str
        The factorization, a key of `ROUTINES`.
    a : array, shape (m, n)
        The matrix.
    nrhs : int
        Number of right-hand sides that are solved for.
    mixed : callable
        Returns the result and what came of it, or raises `LowerPrecisionError`.
    full : callable
        Returns the result in full precision.
    run_of : callable
        Returns the report of the run of a result.
    """
    began, found = time.perf_counter(), None
    rows, columns = max(a.shape), min(a.shape)  # QR of the transpose, if that is tall
    if not prediction.pays(Problem(routine, rows, columns, nrhs, a.dtype), device_index(a)):
        outcome = MixedOutcome(_name(a.dtype), fallback=NO_GAIN)
    else:
        try:
            found, outcome = mixed()
        except LowerPrecisionError as failed:
            outcome = failed.outcome(a.dtype)
        except MemoryError:
            outcome = MixedOutcome(_name(a.dtype), fallback="there is no room for a copy")
    if found is None:  # what the error's traceback held, the copy for one, is free by now
        found = full()
    run = run_of(found)
    if run is not None:
        run.mixed = outcome
        run.include_copies(time.perf_counter() - began, 0.0, 0.0)
    return found
