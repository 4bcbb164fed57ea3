"""Workers that are threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hetero_la.scheduler.exchange import Exchange
from hetero_la.scheduler.job import Job, Outcome
from hetero_la.scheduler.progress import Progress
from hetero_la.scheduler.runner import Runner
from hetero_la.tiles.kernels.spec import Device
from hetero_la.tiles.shard import Storage


class LocalRun:
    """A run whose workers are threads of this process, whoever starts them.

    Parameters
    ----------
    job : Job
        What to run.
    storage : Storage
        Where columns come from and go to.
    """

    def __init__(self, job: Job, storage: Storage) -> None:
        self.job, self.storage = job, storage
        self.exchange = Exchange()
        self.progress = Progress(sum(i.flops for p in job.programs for i in p.instructions))
        self.runners: dict[int, Runner] = {}
        self.outcome = Outcome()

    def window(self, worker: int, device: Device, start: int, stop: int) -> None:
        """Run a slice of one worker's program; the first opens it, the last closes it."""
        try:
            if start == 0:
                self.runners[worker] = self.job.runner(
                    worker, device, self.storage, exchange=self.exchange, progress=self.progress
                )
            runner = self.runners[worker]
            runner.run(start, stop)
            if stop == len(runner.program.instructions):
                self.outcome.values.update(runner.finish())
                self.outcome.logs[worker] = runner.log
        except BaseException as error:
            self.exchange.abort(error)
            raise


def run_in_threads(job: Job, storage: Storage, devices: Sequence[Device]) -> Outcome:
    """Run without Dask, one thread per worker: what Dask's share is measured against.

    Parameters
    ----------
    job : Job
        What to run.
    storage : Storage
        Where columns come from and go to.
    devices : sequence of Device
        One per worker.
    """
    run = LocalRun(job, storage)

    def work(worker: int) -> None:
        try:
            run.window(worker, devices[worker], 0, len(job.programs[worker].instructions))
        except BaseException:  # kept as the exchange's error, and raised below
            pass

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if run.exchange.error is not None:
        raise run.exchange.error
    return run.outcome
