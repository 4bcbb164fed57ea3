"""Runs on matrices in files, by one worker, with checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero_la.execution.executor_choice import caller_gpu, device_of_caller
from hetero_la.execution.report import Report, Timing
from hetero_la.execution.timeline import traced
from hetero_la.in_files.checkpoint_folder import CheckpointFolder
from hetero_la.numerics.lapack_vectors import StepValues
from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.memory import quickest_with_room
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan, resume_visits
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.run.inline import run_inline
from hetero_la.scheduler.run.job import Outcome
from hetero_la.scheduler.run.runner import Runner
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.arrays.transfer import gpu_count, to_host
from hetero_la.tiles.kernels.cpu.device import CpuDevice, available_memory
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.storage.file_storage import FileStorage, StoredMatrix

#: Part of the memory that is free which a run on a file uses if nothing is said: the rest is for
#: pages of the file, and others.
_PART = 0.5


@dataclass
class StoredRun:
    """A run on a matrix in a file: its plan, and what has been done of it.

    Attributes
    ----------
    plan : Plan
        Plan of the whole run.
    device : Device
        The device of its only worker.
    done : int
        Visits to columns that have been done and saved.
    """

    plan: Plan
    device: Device
    done: int = 0

    @classmethod
    def choose(cls, problem: Problem, options: Mapping[str, Any]) -> StoredRun:
        """Choose between the host and a GPU, by their predictions."""
        devices: list[tuple[WorkerInfo, Device, int]] = [
            (calling_thread(), CpuDevice("caller"), available_memory())
        ]
        if gpu_count():
            gpu = caller_gpu(0)
            devices.append((calling_thread(gpu=0), gpu, gpu.free_bytes()))

        def planned(info: WorkerInfo, device: Device, free: int) -> StoredRun:
            bound = options.get("memory") or max(int(_PART * free), 1)
            how = Options.choose({**options, "memory": bound})
            given = Given(info.kind == "gpu", mapped=True)
            return cls(make_plan(problem, how, (info,), given), device)

        ways = (partial(planned, *device) for device in devices)
        return quickest_with_room(ways, lambda run: run.plan.predicted_seconds)

    @property
    def state(self) -> dict[str, Any]:
        """What tells whether another run would go on with this one's work, and from where."""
        plan, groups = self.plan, self.plan.groups
        return {
            "routine": plan.routine, "shape": [plan.layout.m, plan.layout.n],
            "dtype": plan.dtype.name, "columns": plan.layout.column_starts,
            "groups": None if groups is None else list(groups.group), "done": self.done,
        }  # fmt: skip

    def resume(self, folder: CheckpointFolder, target: StoredMatrix) -> dict[Name, np.ndarray]:
        """Go on from what was saved in a folder; return the values that are there."""
        state = folder.read() or {"done": 0}
        done = state.pop("done")
        mine = {key: value for key, value in self.state.items() if key != "done"}
        for key, value in mine.items():
            if state.get(key) != value:
                raise ValueError(
                    f"{folder.path} has the state of another run, of other {key}: resume with "
                    "the same matrix and options, or without resume=True"
                )
        self.done = done
        folder.restore(target)
        return folder.values(done)

    def execute(
        self, source: StoredMatrix, target: StoredMatrix, flush: Callable[[], None],
        folder: CheckpointFolder | None, given: dict[Name, np.ndarray],
    ) -> tuple[StepValues, Report]:  # fmt: skip
        """Do what is left, save it visit by visit, and return all per-step vectors."""
        plan = resume_visits(self.plan, self.done) if self.done else self.plan
        job = plan.job()
        job.given = dict(given)
        keep = {} if folder is None else {"keep": folder.keep}
        lower = plan.routine == "cholesky"
        storage = FileStorage(source, target, lower=lower, **keep)
        began = time.perf_counter()
        with device_of_caller, traced(job) as record:
            runner = Runner(job, 0, self.device, storage)
            try:
                if folder is not None:
                    self._run_visits(runner, storage, flush, folder)
                outcome = Outcome(run_inline(runner) if folder is None else runner.finish())
            except BaseException as error:  # between visits, nobody else ends the writes
                runner.come_to_rest(error)
                raise
            runner.keep_record(outcome)
            record(plan, outcome)
        outcome.values |= {n: v for n, v in given.items() if n[0] in plan.graph.results}
        flush()
        report = Report(plan, Timing.of(time.perf_counter() - began, plan, outcome))
        return StepValues(outcome.values, plan.layout, plan.dtype), report

    def _run_visits(
        self, runner: Runner, storage: FileStorage, flush: Callable[[], None],
        folder: CheckpointFolder,
    ) -> None:  # fmt: skip
        start, names = 0, self.plan.graph.values
        for visit, stop in runner.program.visits:
            runner.run(start, stop)
            start = stop
            with self.device.activate():
                self.device.synchronize()
            storage.settle()
            flush()
            self.done = visit + 1
            made = {name: to_host(value) for name, value in runner.values(names).items()}
            folder.save(self.state, made)
        runner.run(start, len(runner.program.instructions))
