"""Runs on clusters that survive the loss of workers.

A run whose worker was lost is ended everywhere, and what is left of it is planned anew, for
the workers that are there: from the latest complete checkpoint, or from the input, which the
client still has.  The new run has a name of its own and new shards, so that nothing which
the old one has left behind can get into it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import distributed

from hetero_la.scheduler.cluster.clients import install, watch_runs
from hetero_la.scheduler.on_dask.processes import run_in_processes
from hetero_la.scheduler.on_dask.threads import run_local
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes
from hetero_la.scheduler.recovery.forget_clients import ForgetClients
from hetero_la.scheduler.recovery.losses import what_was_lost, who_goes_on
from hetero_la.scheduler.run.checkpoint_store import Checkpoints
from hetero_la.scheduler.run.job import Job, Loss, Outcome
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.storage.shard import ArrayStorage

#: Losses that one run survives.
_MOST_LOSSES = 20

_log = logging.getLogger(__name__)


def run_and_recover(
    client: distributed.Client,
    job: Job,
    storage: ArrayStorage,
    again: Callable[[Sequence[WorkerInfo], int], Job],
    *,
    seconds: Callable[[], float],
    folder: str | None = None,
) -> Outcome:
    """Run on workers of any Dask cluster, and go on when one is lost.

    Parameters
    ----------
    client : Client
        Of the cluster.
    job : Job
        What to run.
    storage : ArrayStorage
        Where columns come from and go to; columns can be loaded again.
    again : callable
        Plans what is left, given the workers that are there and the step to go on from.
    seconds : callable
        Predicted time of the run.
    folder : str, optional
        For the files of checkpoints; None keeps them in the client's memory.

    Raises
    ------
    RunAbortedError
        If workers are lost too often, or none is left.
    Exception
        What the first failing task raised.
    """
    install(client, ForgetClients)
    watch_runs(client)
    checkpoints, losses = Checkpoints(job.layout, folder), list[Loss]()
    results = {name for program in job.programs for name in program.results}
    try:
        while True:
            try:
                if over_processes(job.workers):
                    outcome = run_in_processes(client, job, storage, checkpoints)
                else:
                    outcome = run_local(client, job, storage)
                break
            except Exception as error:
                reason = what_was_lost(client, job.workers, error)
                if reason is None or not _can_begin_again(job, storage):
                    raise
                if len(losses) == _MOST_LOSSES:
                    raise RunAbortedError(
                        f"the run was given up after {_MOST_LOSSES + 1} losses: {reason}"
                    ) from error
                workers = who_goes_on(client, len(job.workers), seconds, reason)
            job = again(workers, checkpoints.step)
            # Not every worker that is there has a part in what is left.
            losses.append(Loss(reason, checkpoints.step, tuple(w.name for w in job.workers)))
            _log.warning(
                "%s; resuming from step %d on %s",
                reason, checkpoints.step, counted(len(job.workers), "worker"),
            )  # fmt: skip
            job.given = checkpoints.values({"A"})
    finally:
        checkpoints.remove()
    outcome.values |= {name: value for name, value in job.given.items() if name[0] in results}
    outcome.losses = losses
    return outcome


def _can_begin_again(job: Job, storage: ArrayStorage) -> bool:
    """Return whether the input still exists: threads of this process may work in its place."""
    in_place = storage.source is storage.target
    return not in_place or over_processes(job.workers)
