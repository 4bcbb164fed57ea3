"""The Dask executor: slices of each worker's program as tasks pinned to it.

Workers that are threads of this process work in windows of many steps and hand
panels over by reference, through an `Exchange`; Dask sees one task per window.
`hetero_la.scheduler.recovery.run_tasks` runs the same programs on any other cluster.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import distributed

from hetero_la.scheduler.cluster.clients import while_open
from hetero_la.scheduler.cluster.devices import this_device
from hetero_la.scheduler.on_dask.wait import thread_given_up, wait_all
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.threads import ThreadedRun
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.storage.shard import Storage

_run_numbers = itertools.count()
#: Runs whose workers are threads of this process, for the tasks that carry their number.
_runs: dict[str, ThreadedRun] = {}
#: Windows of one run wait for each other, so runs on the same workers take turns.
_turn = ProcessLock()


def run_window(run: str, worker: int, start: int, stop: int, before: Any) -> None:
    """Dask task: run a window of a run of this process."""
    if run not in _runs:
        raise RunAbortedError(f"run {run} has ended; its windows cannot be run again")
    _runs[run].window(worker, this_device(), start, stop)


def run_local(client: distributed.Client, job: Job, storage: Storage) -> Outcome:
    """Run on workers that are threads of this process."""
    run = ThreadedRun(job, storage)
    number = f"{job.name}-{next(_run_numbers)}"
    with thread_given_up(), _turn:  # in this order: a thread that waits for a turn may be needed
        _runs[number] = run
        try:
            with while_open(client):
                futures = list(_submit_windows(client, job, number))
            wait_all(client, futures, [worker.address for worker in job.workers])
        except BaseException as error:
            raise run.abort(error) from None
        finally:
            del _runs[number]
    return run.outcome


def _submit_windows(client: distributed.Client, job: Job, number: str) -> Iterator[Any]:
    for program, worker in zip(job.programs, job.workers, strict=True):
        before = None
        for start, stop in program.windows(job.window):
            before = client.submit(
                run_window, number, program.worker, start, stop, before,
                key=f"{number}-{worker.name}-instructions-{start}-{stop}",
                workers=[worker.address], allow_other_workers=False, pure=False, retries=0,
            )  # fmt: skip
            yield before
