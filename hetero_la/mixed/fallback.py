"""The way back to full precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from hetero_la.execution.report import MixedOutcome, Report

T = TypeVar("T")


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
        return MixedOutcome(dtype.name, self.steps, self.inner_steps, self.reason)


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
    mixed: Callable[[], tuple[T, MixedOutcome]], full: Callable[[], T],
    run_of: Callable[[T], Report | None], dtype: Any,
) -> T:  # fmt: skip
    """Call `mixed`, and where that fails `full`; note in the report of the run what came of it.

    Parameters
    ----------
    mixed : callable
        Returns the result and what came of it, or raises `LowerPrecisionError`.
    full : callable
        Returns the result in full precision.
    run_of : callable
        Returns the report of the run of a result.
    dtype : dtype
        The full precision.
    """
    began, found = time.perf_counter(), None
    try:
        found, outcome = mixed()
    except LowerPrecisionError as failed:
        outcome = failed.outcome(dtype)
    except MemoryError:
        outcome = MixedOutcome(dtype.name, fallback="there is no room for a copy")
    if found is None:  # what the error's traceback held, the copy for one, is free by now
        found = full()
    run = run_of(found)
    if run is not None:
        run.mixed = outcome
        run.include_copies(time.perf_counter() - began, 0.0, 0.0)
    return found
