"""LAPACK's vectors (ipiv, tau, info), assembled from the vectors of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.storage.layout import TileLayout


@dataclass
class StepValues:
    """Per-step vectors of a run: on the host, or on the GPU on which one call has found them.

    Parameters
    ----------
    values : dict
        (name, step) -> vector.
    layout : TileLayout
        How the matrix was cut.
    dtype : dtype
        Element type of the matrix.

    Examples
    --------
    >>> steps = StepValues({("ipiv", 0): np.int32([1, 1]), ("info", 0): np.int32([2])},
    ...                    TileLayout(2, 2, 2), np.float64)
    >>> steps.piv, steps.info
    (array([1, 1], dtype=int32), 2)
    """

    values: dict[Name, np.ndarray]
    layout: TileLayout
    dtype: Any

    def vector(self, name: str) -> np.ndarray:
        """Concatenate the parts of a vector that the steps have computed."""
        return _joined([self.values[name, k] for k in range(self.layout.kt)], self.dtype)

    @property
    def info(self) -> int:
        """LAPACK's info: 0, or the 1-based index at which the first panel that failed stopped."""
        for k in range(self.layout.kt):
            if info := int(to_host(self.values["info", k])[0]):  # on a GPU, this waits
                return self.layout.row(k) + info
        return 0

    @property
    def piv(self) -> np.ndarray:
        """LAPACK's ipiv, 0-based; without pivoting, no interchange."""
        steps = range(self.layout.kt)
        if steps and ("ipiv", 0) not in self.values:
            return np.arange(min(self.layout.m, self.layout.n), dtype=np.int32)
        if len(steps) == 1:
            return self.values["ipiv", 0]
        parts = [self.values["ipiv", k] + np.int32(self.layout.row(k)) for k in steps]
        return _joined(parts, np.int32)


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    """Concatenate the parts of a vector; a single one is that vector."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)
