"""Execution with one thread of this process per worker."""

from __future__ import annotations

import contextlib
import threading
import traceback
import uuid
from collections.abc import Callable, Sequence

from hetero_la.scheduler.exchange.enqueuer import enqueuer_of
from hetero_la.scheduler.exchange.in_process import ThreadPort
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.runner import Runner
from hetero_la.tiles.arrays.errors import StaleShardError
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.storage.shard import Storage

#: Seconds between checks whether a run is still wanted.
_LOOK_INTERVAL = 0.25


class ThreadedRun:
    """A run whose workers are threads of this process, started by any executor.

    Parameters
    ----------
    job : Job
        The run.
    storage : Storage
        Source and destination of columns.
    """

    def __init__(self, job: Job, storage: Storage) -> None:
        self.job, self.storage = job, storage
        self.table = WaitTable()
        self._enqueuer = enqueuer_of(self.table, len(job.programs))
        self._name = uuid.uuid4().hex
        self.runners: dict[int, Runner] = {}
        self.outcome = Outcome()
        self._idle = threading.Condition()
        self._active = 0

    def abort(self, error: BaseException) -> BaseException:
        """End the run, wait until nobody works on the user's arrays; return the first error."""
        self.table.abort(error)
        with self._idle:
            # It ends with the current kernel calls; everything else is ended by the abort.
            self._idle.wait_for(lambda: self._active == 0)
        for runner in self.runners.values():  # a GPU may still do what a window has enqueued
            runner.come_to_rest()
        # The error's traceback would keep this run alive for as long as the error.
        for runner in self.runners.values():
            vars(runner).clear()
        self.runners.clear()
        self.table.clear()
        assert self.table.error is not None
        traceback.clear_frames(self.table.error.__traceback__)
        return self.table.error

    def window(self, worker: int, device: Device, start: int, stop: int) -> None:
        """Run a slice of one worker's program; the first one opens it, the last one closes it."""
        with self._idle:
            self._active += 1
        try:
            self.table.check()
            if start == 0:
                self.runners[worker] = Runner(
                    self.job, worker, device, self.storage,
                    ThreadPort(self.table, self._enqueuer, worker, device), self._name,
                )  # fmt: skip
            runner = self.runners[worker]
            runner.run(start, stop)
            if stop == len(runner.program.instructions):
                self.outcome.values.update(runner.finish())
                runner.keep_record(self.outcome)
                self.outcome.shards[worker] = runner.shard
                self.outcome.kept.update(runner.values(self.job.keeps))
        except BaseException as error:
            self.table.abort(error)
            raise
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()


def run_in_threads(
    job: Job,
    storage: Storage,
    devices: Sequence[Device],
    wanted: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Run a job with one thread per worker, without Dask.

    Parameters
    ----------
    job : Job
        The run.
    storage : Storage
        Source and destination of columns.
    devices : sequence of Device
        One per worker.
    wanted : callable, optional
        Returns whether the result is still wanted; called from time to time.

    Raises
    ------
    StaleShardError
        If the result is no longer wanted.
    Exception
        The error of the first worker that failed.
    """
    run = ThreadedRun(job, storage)

    def work(worker: int) -> None:
        with contextlib.suppress(BaseException):  # kept by the exchange, and raised below
            run.window(worker, devices[worker], 0, len(job.programs[worker].instructions))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(len(devices))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_INTERVAL)
                if not wanted():
                    run.table.abort(StaleShardError("the run was cancelled: compute again"))
    except BaseException as error:  # Ctrl-C, or no more threads
        raise run.abort(error) from None
    if run.table.error is not None:
        raise run.table.error
    return run.outcome
