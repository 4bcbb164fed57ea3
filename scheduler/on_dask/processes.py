"""The Dask executor for clusters whose workers are other processes.

It ships every worker its columns, submits the tasks of `hetero_la.scheduler.on_dask.run_tasks`
and stores what they return.  `hetero_la.scheduler.recovery.restart` begins again what a lost
worker has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import distributed
import numpy as np

from hetero_la.scheduler.cluster.clients import while_open
from hetero_la.scheduler.cluster.placement_plugin import task_name
from hetero_la.scheduler.exchange.columns import Collector, Feed, Feeder, MessageSender
from hetero_la.scheduler.exchange.group import link_to, topic_of
from hetero_la.scheduler.on_dask.dask_messages import DirectSender, reachable
from hetero_la.scheduler.on_dask.held_shard import drop_shards
from hetero_la.scheduler.on_dask.run_graph import chain_slices
from hetero_la.scheduler.on_dask.run_tasks import Finished, hand_over, open_shard
from hetero_la.scheduler.on_dask.wait import (
    NOTICE_SECONDS,
    fetch_all,
    guard,
    lost_message,
    thread_given_up,
    wait_all,
)
from hetero_la.scheduler.program.instructions import LoadColumn
from hetero_la.scheduler.run.checkpoint_store import Checkpoints
from hetero_la.scheduler.run.job import Job, Outcome, PackedJob
from hetero_la.scheduler.run.local_storage import LocalStorage
from hetero_la.scheduler.run.trace import WorkerTrace
from hetero_la.tiles.arrays.errors import LinkLostError, WorkerLostError
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.storage.shard import ArrayStorage

#: How long a run that failed waits for the workers that are left to forget it.
_CLEAN_UP_SECONDS = 10


def run_in_processes(
    client: distributed.Client,
    job: Job,
    storage: ArrayStorage,
    checkpoints: Checkpoints | None = None,
) -> Outcome:
    """Run on workers of any Dask cluster.

    Parameters
    ----------
    client : Client
        Of the cluster.
    job : Job
        What to run; if it goes on from a checkpoint, the tasks that are left.
    storage : ArrayStorage
        Where the whole run's columns come from and go to.
    checkpoints : Checkpoints, optional
        Where the run begins, and takes its checkpoints to.

    Raises
    ------
    WorkerLostError
        If a worker has left; the run can be started anew.
    Exception
        What the first failing task raised.
    """
    checkpoints = checkpoints or Checkpoints(job.layout)
    attempt = _Attempt(client, job)
    with thread_given_up():
        try:
            with while_open(client):
                attempt.submit(storage, checkpoints)
            for step in job.checkpoints:
                parts = attempt.fetch(attempt.saves[step])
                del attempt.saves[step]  # the workers need not hold them any longer
                checkpoints.complete(step, parts)
            return attempt.collect(storage)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                attempt.clean_up()
            raise


@contextlib.contextmanager
def _stored(storage: ArrayStorage, host: CpuDevice) -> Iterator[None]:
    """Wait, at the end of the block, for the copies on the host that storing has begun."""
    try:
        yield
        storage.flush(host)
    except BaseException:
        storage.abandon(host)
        raise


class _Attempt:
    """The Dask tasks of one run, under a name of its own."""

    def __init__(self, client: distributed.Client, job: Job) -> None:
        self.client, self.job = client, job
        self.run = uuid.uuid4().hex
        self.addresses = [worker.address for worker in job.workers]
        self.saves: dict[int, list[distributed.Future]] = {}
        self.finals: list[distributed.Future] = []
        self._submitted: list[distributed.Future] = []
        self._feeder: Feeder | None = None
        self._sent: list[tuple[int, int]] = []  # columns that come through the collector
        self._direct = False  # whether this client reaches all workers of other hosts
        self._lost: tuple[float, LinkLostError] | None = None  # when, and which message

    def submit(self, storage: ArrayStorage, checkpoints: Checkpoints) -> None:
        """Submit all tasks, and begin to send the columns."""
        columns = partial(checkpoints.columns, storage)
        run, feeds, opened = self.run, list[Feed](), list[distributed.Future]()
        for program, sender in zip(self.job.programs, self._senders(), strict=True):
            worker = program.worker
            parts = [self._part(load) for load in program.select(LoadColumn)]
            for start, _, rows in parts:
                storage.note_touched(start, rows)
            blocks: distributed.Future | None = None
            if sender is None:
                blocks = self._ship(
                    worker, {part[0]: np.asfortranarray(columns(*part)) for part in parts}
                )
            else:
                feeds.append(Feed(sender, topic_of(run, worker), parts))
            packed = PackedJob(self.job.only(worker))
            shard = self._add("open", worker, 0, open_shard, run, run, packed, worker, False,
                              blocks, sender is not None)  # fmt: skip
            opened.append(shard)
        self.finals, self.saves = chain_slices(
            self.job.programs, opened, [()] * len(opened), self._add, checkpoints.folder
        )
        self._submitted.clear()  # what no later task needs may go
        self._feeder = Feeder(feeds, columns)

    def _part(self, load: LoadColumn) -> tuple[int, int, slice]:
        """Return the element columns of a load, and its rows."""
        layout, (_, column, first, last) = self.job.layout, load.region
        return *layout.columns(column), slice(layout.row(first), layout.row(last))

    def _senders(self) -> list[MessageSender | None]:
        """Return what sends each worker its columns; None where Dask's scheduler has to."""
        links: list[MessageSender | None] = [link_to(worker.link) for worker in self.job.workers]
        far = [a for a, link in zip(self.addresses, links, strict=True) if link is None]
        if not far:
            return links
        near = guard(self.client, partial(reachable, self.client, far), self.addresses)
        self._direct = set(far) == near
        direct = [
            DirectSender(self.client, address, self._note_loss) if address in near else None
            for address in self.addresses
        ]
        return [link or sender for link, sender in zip(links, direct, strict=True)]

    def _note_loss(self, error: LinkLostError) -> None:
        self._lost = self._lost or (time.monotonic(), error)

    def _check(self) -> None:
        """Raise if a worker waits for a message that was lost, and has not left itself."""
        if self._lost is not None and time.monotonic() - self._lost[0] > NOTICE_SECONDS:
            raise self._lost[1]

    def _key(self, worker: int, what: str, place: int = 0) -> str:
        name = self.job.workers[worker].name
        return task_name(self.job.name, what, f"{self.run}-{name}-{place}")

    def _add(
        self, what: str, worker: int, place: int, function: Any, *args: Any
    ) -> distributed.Future:
        target = self.job.workers[worker]
        future = self.client.submit(
            function, *args, key=self._key(worker, what, place),
            workers=[target.address], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip
        self._submitted.append(future)
        return future

    def _ship(self, worker: int, blocks: dict[int, np.ndarray]) -> distributed.Future:
        """Send a worker its columns by Dask's scheduler.

        `guard` lets it come to its end: cancelled half-way, it would leave the columns there, and
        nobody to release them.
        """
        target, key = self.job.workers[worker], self._key(worker, "columns")

        async def scatter() -> distributed.Future:
            sent = await self.client.scatter(
                {key: blocks}, workers=[target.address], asynchronous=True
            )
            return sent[key]

        try:
            future: distributed.Future = guard(self.client, scatter, self.addresses)
        except (KeyError, OSError) as error:  # the scheduler does not know it, or cannot reach it
            said = self.client.sync(lost_message, self.client, target.address, target.label)
            raise WorkerLostError(said) from error
        return future

    def fetch(self, futures: list[distributed.Future]) -> list[Any]:
        """Wait for results, and return them."""
        direct = self._direct or None
        return fetch_all(self.client, futures, self.addresses, self._check, direct=direct)

    def collect(self, storage: ArrayStorage) -> Outcome:
        """Wait for the workers; store what they have made."""
        outcome = Outcome()
        wait_all(self.client, self.finals, self.addresses, self._check)
        # If the result takes the place of the input, a loss half-way would leave neither.
        in_place = storage.source is storage.target
        host = CpuDevice()
        store = partial(storage.store, host)
        with (
            _stored(storage, host),
            contextlib.closing(Collector(store, at_once=in_place)) as collector,
        ):
            handed = [
                self._add(
                    "result",
                    w,
                    0,
                    hand_over,
                    final,
                    collector.link,
                    collector.topic,
                    collector.most,
                )
                for w, final in enumerate(self.finals)
            ]
            at_once = len(handed) if in_place else 1
            for start in range(0, len(handed), at_once):
                futures = handed[start : start + at_once]
                everything = self.fetch(futures)
                for worker, finished in enumerate(everything, start):
                    self._note(outcome, worker, finished, store)
                for future in [*futures, *self.finals[start : start + at_once]]:
                    future.release()  # the workers need not hold it any longer
            collector.wait(self._sent)
        return outcome

    def _note(
        self, outcome: Outcome, worker: int, finished: Finished, store: Callable[..., None]
    ) -> None:
        """Note what a worker has made; its columns come through the collector, or here."""
        assert isinstance(finished.storage, LocalStorage)
        columns = list(finished.storage.columns())
        for part in columns:
            store(*part)
        if not columns:
            spans = map(self.job.layout.columns, self.job.programs[worker].columns)
            self._sent += [span for span in spans if span[0] >= self.job.absent]
        outcome.values.update(finished.values)
        outcome.logs[worker] = finished.log
        if finished.trace is not None:
            outcome.traces[worker] = partial(WorkerTrace._make, finished.trace)

    def clean_up(self) -> None:
        """End the tasks, and let the workers that are left forget their shards."""
        if self._feeder is not None:
            self._feeder.end()
        saves = [future for futures in self.saves.values() for future in futures]
        for future in [*self._submitted, *saves, *self.finals]:
            # Not cancelled: `Scheduler.stimulus_cancel` asserts that a client wants the tasks that
            # depend on a cancelled one, since dask/distributed#8331.
            future.release()

        async def drop() -> None:
            topics = [topic_of(self.run, worker) for worker in range(len(self.addresses))]
            left = set(self.addresses) & set(await self.client.nthreads())
            drops = self.client.run(
                drop_shards, self.run, topics, workers=list(left), on_error="ignore"
            )
            await asyncio.wait_for(drops, _CLEAN_UP_SECONDS)

        # A client that was closed meanwhile may have no event loop left to answer.
        self.client.sync(drop, callback_timeout=_CLEAN_UP_SECONDS + 1)
