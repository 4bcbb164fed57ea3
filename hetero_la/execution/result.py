"""What a run returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.algorithms.checked_solves import ERRORS, INVERSE_NORM, NORM
from hetero_la.execution.report import Report
from hetero_la.execution.resident_factors import KeptFactors
from hetero_la.numerics.conditioning import reciprocal
from hetero_la.numerics.lapack_vectors import StepValues
from hetero_la.tiles.kernels.gpu_libraries.substitution import Substitution


@dataclass
class Result(StepValues):
    """What a run returns: per-step vectors, the overwritten array, and how it went.

    Where the factors stay with the workers (`kept`), `array` may have the columns beside them
    only.  `growth` is that of LU without pivoting, and `checked` says whether the run has also done
    what follows (`Routine.checked_tasks`).
    """

    array: Any
    report: Report
    kept: KeptFactors | None = None
    absent: int = 0
    growth: float | None = None
    checked: bool = False
    _substitution: Substitution | None = None

    @property
    def factors(self) -> Any:
        """The overwritten matrix, where it has come home."""
        return self.array[:, : self.layout.n - self.absent]

    @property
    def beside(self) -> Any:
        """The overwritten right-hand sides."""
        return self.array[:, self.layout.n - self.absent :]

    @property
    def solution(self) -> Any:
        """The overwritten right-hand sides, in an array that does not also hold the factors."""
        return self.beside if self.absent else self.beside.copy(order="F")

    @property
    def refined(self) -> bool:
        """Whether no more steps would make the backward error smaller that a checked run left."""
        before, after = (float(self.values[name, 0][0]) for name in ERRORS)
        return not float(np.finfo(self.dtype).eps) < after < before / 2

    @property
    def rcond(self) -> float:
        """The reciprocal condition number that a checked run has found."""
        anorm, ainvnorm = (float(self.values[name, 0][0]) for name in (NORM, INVERSE_NORM))
        return reciprocal(anorm, ainvnorm)

    def substitution(self, form: str) -> Substitution:
        """Return what solves with the factors, on the GPU that has them; see `Substitution`."""
        if self._substitution is None:
            piv = self.piv if form == "lu" else None
            self._substitution = Substitution(self.factors, form, piv)
        return self._substitution
