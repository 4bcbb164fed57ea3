"""Per-step values of a run on Dask arrays, with errors and warnings for singular matrices."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import distributed
import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

from hetero_la.checks.warnings import (
    not_positive_message,
    singular_message,
    small_pivot_message,
    zero_pivot_message,
)
from hetero_la.numerics.growth import require_little_growth
from hetero_la.numerics.lapack_vectors import StepValues
from hetero_la.scheduler.run.step_memory import StepVectors
from hetero_la.tiles.arrays.transfer import to_device


class Singular(StrEnum):
    """Treatment of a run whose factors are singular, or do not exist."""

    RETURNED = "returned"
    WARNED_OF = "warned of"
    REFUSED = "refused"
    NOT_POSITIVE = "not positive"
    NOT_PIVOTED = "not pivoted"


def check_status(
    values: Sequence[dict[Any, Any]], layout: Any, dtype: Any, singular: Singular, solves: bool,
    largest: Any = None,
) -> StepValues:  # fmt: skip
    """Collect the per-step values of all workers; raise or warn if the matrix is singular."""
    together = StepVectors(item for one in values for item in one.items())
    steps = StepValues(together, layout, dtype)
    if singular is Singular.RETURNED:
        return steps
    if singular is Singular.NOT_PIVOTED:
        require_little_growth(steps, float(largest))
    if steps.info and singular is Singular.WARNED_OF:
        distributed.warn(zero_pivot_message(steps.info), LinAlgWarning)
    elif steps.info:
        refused = singular is Singular.REFUSED
        raise LinAlgError((singular_message if refused else not_positive_message)(steps.info))
    if solves and min(layout.m, layout.n):
        extents = [value for key, value in together.items() if key[0] == "diagonal"]
        ratio = min(least for least, _ in extents) / max(largest for _, largest in extents)
        if singular is Singular.NOT_POSITIVE:
            ratio **= 2  # the matrix is the product of two factors
        if not ratio >= np.finfo(dtype).eps:
            distributed.warn(small_pivot_message(ratio), LinAlgWarning)
    return steps


def vector_of(steps: StepValues, name: str, gpu: bool) -> Any:
    """Return one vector of the per-step values in LAPACK's form."""
    vector = steps.piv if name == "ipiv" else steps.vector(name)
    return to_device(vector) if gpu else vector
