"""Runs of programs whose matrix is on their device beforehand, and stays there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import hetero_la
from hetero_la.execution.timeline import TracedRun
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.on_dask.threads import run_local
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.scheduler.run.inline import run_inline
from hetero_la.scheduler.run.job import Job, Outcome
from hetero_la.scheduler.run.runner import Runner
from hetero_la.studies.common.timing import Call, Clock
from hetero_la.studies.factorizations.device_data import RandomStorage
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import Factorization
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.shard import ArrayStorage, Storage

#: Returns the seconds of one run.
Timed = Callable[[], float]


class ResidentRuns:
    """Runs of one factorization in this thread, on the host's cores or on the first GPU.

    Parameters
    ----------
    problem : Factorization
        What is factored.
    n : int
        Order of the matrix.
    gpu : bool
        Whether it is on the GPU.
    dtype : str, optional
        Its type.
    """

    def __init__(
        self, problem: Factorization, n: int, gpu: bool, dtype: str = "float64"
    ) -> None:  # fmt: skip
        self.problem, self.n, self.gpu, self.dtype = problem, n, gpu, dtype
        self.device: Device = GpuDevice(0, "caller") if gpu else CpuDevice("caller")
        self.given: np.ndarray | None = None if gpu else problem.host_matrix(n, dtype)

    def plan(self, **options: Any) -> Plan:
        """Plan a run with these options."""
        worker = calling_thread(gpu=0 if self.gpu else None)
        routine = self.problem.routine
        return hetero_la.plan(routine, (self.n, self.n), self.dtype, workers=(worker,), **options)

    def seconds(
        self, plan: Plan, device: Device | None = None, *,
        matrix_of: Plan | None = None, check: Callable[[Any], None] = lambda factors: None,
    ) -> float:  # fmt: skip
        """Run a plan; return the seconds.

        Parameters
        ----------
        plan : Plan
            What is run.
        device : Device, optional
            Another device object than that of these runs.
        matrix_of : Plan, optional
            The plan whose matrix is factored, for runs whose factors are compared: random matrices
            depend on the tiles that they are made for.
        check : callable, optional
            Takes the factors, and raises if they are wrong.
        """
        device, job = device or self.device, plan.job()
        storage = self.storage(matrix_of or plan)
        a, _ = storage.home(device, self.n)
        with device.activate():
            seconds = seconds_of(lambda: run_inline(Runner(job, 0, device, storage)))
        check(a)
        return seconds

    def factors(self, plan: Plan) -> tuple[Any, Outcome]:
        """Run a plan on the CPU; return the array that holds the factors, and the outcome."""
        storage = self.storage(plan)
        assert isinstance(storage, ArrayStorage)
        return storage.target, self._outcome(plan.job(), storage)

    def timeline(self, plan: Plan) -> TracedRun:
        """Run a plan, and record when each instruction ran."""
        job, storage = plan.job(), self.storage(plan)
        job.traced = True
        began = time.perf_counter()
        outcome = self._outcome(job, storage)
        ended = time.perf_counter()
        return TracedRun(plan, began, ended, [outcome.traces[0]()])

    def storage(self, plan: Plan) -> Storage:
        """Return a new copy of the matrix, for one run of a plan."""
        if self.given is None:
            return RandomStorage(plan, self.problem.diagonal(self.n))
        a = self.given.copy(order="F")
        return ArrayStorage(a, a)

    def _outcome(self, job: Job, storage: Storage) -> Outcome:
        with self.device.activate():
            runner = Runner(job, 0, self.device, storage)
            outcome = Outcome(run_inline(runner))
            runner.keep_record(outcome)
        return outcome


class ClusterRuns:
    """Runs of one factorization on the workers of a cluster of this process.

    Parameters
    ----------
    cluster : Cluster
        The cluster; its GPUs have the columns beforehand, as have CPU workers, while those of
        virtual GPUs are copied within the host's memory.
    problem : Factorization
        What is factored.
    n : int
        Order of the matrix.
    dtype : str, optional
        Its type.
    """

    def __init__(
        self, cluster: hetero_la.Cluster, problem: Factorization, n: int, dtype: str = "float64"
    ) -> None:
        self.problem, self.n, self.dtype = problem, n, dtype
        self.client = cluster.private_client()
        self.workers = worker_infos(self.client)
        gpus = any(worker.has_gpu for worker in self.workers)
        self.given: np.ndarray | None = None if gpus else problem.host_matrix(n, dtype)

    def plan(self, **options: Any) -> Plan:
        """Plan a run with these options."""
        shape = self.n, self.n
        return hetero_la.plan(
            self.problem.routine, shape, self.dtype, workers=self.workers, **options
        )

    def seconds(self, plan: Plan, window: int | None = None) -> float:
        """Run a plan, with so many steps in a Dask task if it is given; return the seconds."""
        job = plan.job()
        if window is not None:
            job = replace(job, window=window)
        storage = self._storage(plan)
        return seconds_of(lambda: run_local(self.client, job, storage))

    def timeline(self, plan: Plan) -> TracedRun:
        """Run a plan, and record when each instruction ran."""
        job, storage = plan.job(), self._storage(plan)
        job.traced = True
        began = time.perf_counter()
        outcome = run_local(self.client, job, storage)
        ended = time.perf_counter()
        traces = [outcome.traces[worker]() for worker in range(len(plan.workers))]
        return TracedRun(plan, began, ended, traces)

    def _storage(self, plan: Plan) -> Storage:
        if self.given is None:
            return RandomStorage(plan, self.problem.diagonal(self.n))
        a = self.given.copy(order="F")
        return ArrayStorage(a, a)


def clock_of(device: Device) -> Clock:
    """Return a clock for calls on a device, which it does one after the other.

    Examples
    --------
    >>> clock_of(CpuDevice())(lambda: time.sleep(0.01), 2) >= 0.02
    True
    """

    def clock(call: Call, calls: int) -> float:
        device.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        device.synchronize()
        return time.perf_counter() - began

    return clock


def seconds_in_turns(contenders: Mapping[str, Timed], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of contenders, which take turns: drift of the machine hits each alike.

    The first turn is warm-up and is not counted.

    Examples
    --------
    >>> seconds_in_turns({"a": lambda: 1.0, "b": lambda: 2.0}, 2)
    {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            taken = run()
            if repeat:
                seconds[name].append(taken)
    return seconds


@contextlib.contextmanager
def cores_alone(gpus: int) -> Iterator[hetero_la.Cluster | None]:
    """Return where functions leave matrices of the host to one worker with all of its cores.

    Without a GPU they do so by themselves, in the calling thread.
    """
    if not gpus:
        yield None
        return
    with hetero_la.Cluster(gpus=0, cpus=1) as cluster:
        yield cluster


def free_gpus(gpus: int) -> None:
    """Give back the memory that earlier runs have left in the pools of GPUs."""
    if gpus:
        import cupy

        for index in range(gpus):
            with cupy.cuda.Device(index):
                cupy.get_default_memory_pool().free_all_blocks()
