"""Numerical warnings, which point at the user's own line, and messages of numerical errors."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
from scipy.linalg import LinAlgWarning

_held: ContextVar[list[tuple[str, type[Warning]]] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def without_warnings() -> Iterator[list[tuple[str, type[Warning]]]]:
    """Issue no warnings in the block, but list them; those of other threads are not affected."""
    held: list[tuple[str, type[Warning]]] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)


def warn(message: str, category: type[Warning] = LinAlgWarning) -> None:
    """Issue a warning that points at the line that called this package."""
    held = _held.get()
    if held is not None:
        held.append((message, category))
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == "hetero_la":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_ill_conditioned(rcond: float, dtype: Any) -> None:
    """Warn if a matrix is singular to working precision."""
    if not rcond >= np.finfo(dtype).eps:
        warn(_ill_conditioned(f"rcond = {rcond:.3g}"))


def small_pivot_message(ratio: float) -> str:
    """Return the warning for a factor whose diagonal suggests an ill-conditioned matrix."""
    return _ill_conditioned(
        f"the least and the largest entry of the factor's diagonal have the ratio {ratio:.3g}"
    )


# Users' warning filters and error handlers match SciPy's wording.  Where it changed between SciPy's
# releases, the message contains both the old and the new one.


def _ill_conditioned(because: str) -> str:
    return (
        f"An ill-conditioned matrix detected: {because}. "
        "Ill-conditioned matrix: result may not be accurate."
    )


def zero_pivot_message(info: int) -> str:
    """Return the warning for LU factors with an exactly zero pivot, from LAPACK's `info`."""
    return f"Diagonal number {info} is exactly zero. Singular matrix."


def singular_message(info: int) -> str:
    """Return the error for a system whose matrix is singular, from LAPACK's `info`."""
    return f"A singular matrix detected: diagonal number {info} of U is exactly zero."


def not_positive_message(info: int) -> str:
    """Return the error for a matrix that is not positive definite, from LAPACK's `info`."""
    minor = f"{info}-th leading minor of the array is not positive definite"
    return f"{minor}, but singular or indefinite (Internal potrf return info = [{info}])"
