"""Warnings about numbers, which point at the user's own line."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from scipy.linalg import LinAlgWarning


def warn(message: str, category: type[Warning] = LinAlgWarning) -> None:
    """Give a warning that points at the line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == "hetero_la":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_ill_conditioned(rcond: float, dtype: Any) -> None:
    """Warn if a matrix is singular to working precision."""
    if not rcond >= np.finfo(dtype).eps:
        warn(_ill_conditioned(f"rcond = {rcond:.3g}"))


def small_pivot_message(ratio: float) -> str:
    """What the diagonal of a factor says of a matrix whose condition nobody estimates."""
    return _ill_conditioned(
        f"the least and the largest entry of the factor's diagonal have the ratio {ratio:.3g}"
    )


# Filters of warnings and handlers of errors look for SciPy's words.  Where its releases have
# changed these, the old and the new ones are here.


def _ill_conditioned(because: str) -> str:
    return (
        f"An ill-conditioned matrix detected: {because}. "
        "Ill-conditioned matrix: result may not be accurate."
    )


def zero_pivot_message(info: int) -> str:
    """What LAPACK's info says of factors that are complete."""
    return f"Diagonal number {info} is exactly zero. Singular matrix."


def singular_message(info: int) -> str:
    """What LAPACK's info says of a matrix with which nothing can be solved."""
    return f"A singular matrix detected: diagonal number {info} of U is exactly zero."


def not_positive_message(info: int) -> str:
    """What LAPACK's info says of a matrix that is not positive definite."""
    minor = f"{info}-th leading minor of the array is not positive definite"
    return f"{minor}, but singular or indefinite (Internal potrf return info = [{info}])"
