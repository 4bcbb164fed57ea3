"""Where the result of a run goes: into which memory, and which part of it comes home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_la.checks.inputs import is_writable
from hetero_la.execution.resident_factors import Residency
from hetero_la.io.overwritten import mapped_file
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.machine.model import Source
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes
from hetero_la.tiles.arrays.transfer import column_major_empty, device_index, is_pinned


@dataclass(frozen=True)
class Destination:
    """Where the result of a run on a matrix goes.

    Attributes
    ----------
    matrix : array, shape (m, n)
        The input.
    nrhs : int
        Columns beside it.
    in_place : bool
        Whether the result takes the place of `matrix`.
    residency : Residency
        Where the factors are to be once the run is over.
    """

    matrix: Any
    nrhs: int
    in_place: bool
    residency: Residency

    @property
    def gpu(self) -> int | None:
        """The GPU that holds the matrix and receives the result; None for the host."""
        return device_index(self.matrix)

    @property
    def source(self) -> Source:
        """How the workers find the columns of the matrix."""
        pinned = self.in_place and is_pinned(self.matrix)
        return "pinned" if pinned else source_of(self.matrix, self.in_place)

    @property
    def mapped(self) -> bool:
        """Whether the matrix is in a file, which may be larger than memory."""
        return mapped_file(self.matrix) is not None

    @property
    def absent(self) -> int:
        """Columns from the left that do not come home."""
        away = self.residency in (Residency.WORKERS, Residency.NOBODY)
        return self.matrix.shape[1] if away else 0

    @property
    def new_columns(self) -> int:
        """Columns for which memory is allocated."""
        return 0 if self.in_place else self.matrix.shape[1] + self.nrhs - self.absent

    def least_columns(self, workers: Sequence[WorkerInfo]) -> int:
        """Return the columns that at least are allocated, whatever the plan for `workers`."""
        if self.gpu is None and any(worker.kind == "gpu" for worker in workers):
            return self.new_columns
        return replace(self, residency=Residency.CALLER).new_columns

    def planned(self, plan: Plan, client: Any) -> Destination:
        """Let all come home, unless nothing follows the run, or GPUs of this process keep it."""
        if plan.checked:
            return self
        on_gpus = all(plan.workers[g].kind == "gpu" for g in plan.owners)
        travels = client is not None and plan.host_arrays and not over_processes(plan.workers)
        wanted = self.residency is Residency.NOBODY and not self.nrhs  # there is nothing else
        stays = travels and on_gpus and not wanted and plan.groups is None
        return self if stays else replace(self, residency=Residency.CALLER)

    def allocate(self) -> Any:
        """Return the array that receives the result, column-major."""
        if self.in_place:
            return self.matrix
        return column_major_empty(self.matrix, (self.matrix.shape[0], self.new_columns))


def can_hold_result(a: Any) -> bool:
    """Return whether LAPACK may overwrite `a`: column-major, writable and aligned in memory."""
    usable = is_writable(a) and getattr(a.flags, "aligned", True)
    return bool(a.flags.f_contiguous and usable)


def holds_result(a: Any) -> bool:
    """Return whether the result of a run may take the place of `a`, in its memory or its file."""
    return can_hold_result(a) or (mapped_file(a) is not None and is_writable(a))


def source_of(a: Any, in_place: bool) -> Source:
    """Return how the columns of `a` are found, in whose place the result may be."""
    if in_place:
        return "in place"
    return "column-major" if a.flags.f_contiguous else "row-major"
