"""Factors that stay where they were computed, for solves that come after."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.plan import Plan
from hetero_la.planner import follow_up
from hetero_la.scheduler.dask_execution import run_local
from hetero_la.tiles.shard import ArrayStorage, Shard
from hetero_la.tracing import traced


class KeptFactors:
    """The shards of a run on this process's workers.

    The memory is theirs until this object is gone.

    Parameters
    ----------
    plan : Plan
        Of the run.
    client : distributed.Client
        Whose workers hold the shards.
    shards : dict
        Worker index -> its columns.
    """

    def __init__(self, plan: Plan, client: Any, shards: dict[int, Shard]) -> None:
        self._plan, self._client, self._shards = plan, client, shards

    def solve(self, routine: str, b: np.ndarray) -> np.ndarray:
        """Run a routine of substitutions on right-hand sides of shape (n, nrhs), on the host."""
        plan = follow_up(self._plan, routine, b.shape[1])
        job = plan.job()
        job.kept = self._shards
        x = np.empty(b.shape, plan.dtype, order="F")
        with traced(job) as keep:
            storage = ArrayStorage(None, x, b, absent=plan.layout.n)
            keep(plan, run_local(self._client, job, storage))
        return x

    def solve_lu(self, perm: np.ndarray, b: np.ndarray, adjoint: bool = False) -> np.ndarray:
        """X with A X = B or A^H X = B, A[perm] = L U."""
        if not adjoint:
            return self.solve("lu_solve", b[perm])
        x = np.empty_like(b)
        x[perm] = self.solve("lu_solve_adjoint", b)
        return x
