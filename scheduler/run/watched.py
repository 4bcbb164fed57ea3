"""Runs of this process for those who watch them: how far each worker is, and what it does.

A run sends nothing for this while it goes on.  Its workers keep logs anyway, and these are read
when somebody looks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.scheduler.program.instructions import ReceiveMessage
from hetero_la.scheduler.run.call_sums import WORK, CallSums
from hetero_la.scheduler.run.gpu_queues import GpuQueues
from hetero_la.scheduler.run.job import Job
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.scheduler.run.trace import LogEntry
from hetero_la.tiles.arrays.forks import in_forked_child
from hetero_la.tiles.kernels.device import Device, Event

#: Runs that stay listed once they are over.
MOST_OVER = 8
#: Seconds between looks at a GPU, which go on for so long after somebody has looked.
_SAMPLE_INTERVAL, _SAMPLED = 0.05, 5.0
#: Share of a run's work from which on its progress says when it ends, and not the estimate.
_TRUSTED = 0.2


class Seen(TypedDict):
    """What is seen of one worker's part of a run.

    `run` is the name of an attempt, `owner` the process that planned it, and `worker` the worker's
    index among `workers` workers.  `state` is "waiting", "running", "done" or "failed", and `why`
    says why it failed.  It began `seconds` before now, or before its end, which was `ago`.  Of
    `steps` steps it has finished `steps_done`, of `flops` operations `flops_done`; the run has
    `run_flops`, and was estimated to take `estimate` seconds, if not 0.  In the `watched` seconds
    it was busy for those of each kind in `busy`.  It has sent and received so many messages.
    """

    run: str
    title: str
    owner: str
    worker: int
    workers: int
    name: str
    kind: str
    address: str
    state: str
    why: str
    seconds: float
    ago: float
    steps: int
    steps_done: int
    flops: float
    flops_done: float
    run_flops: float
    estimate: float
    watched: float
    busy: dict[str, float]
    sent: int
    received: int
    doing: str


class Part:
    """A worker's part of a run.

    Parameters
    ----------
    run : str
        Name of the attempt at the run, the same for all of its workers.
    job : Job
        The run.
    worker : int
        Index of the worker.
    device : Device
        Its device.
    log : list of LogEntry
        To which its runner adds.
    events : mapping
        Events of its instructions, to which the runner adds as well.
    given : mapping
        Shapes of the values of an earlier run.
    """

    def __init__(
        self, run: str, job: Job, worker: int, device: Device, log: Sequence[LogEntry],
        events: Mapping[int, Event], given: Mapping[Name, tuple[int, ...]],
    ) -> None:  # fmt: skip
        self.run, self._job = run, replace(job, kept={}, given={})  # without their arrays
        self._worker, self._log, self._given = worker, log, given
        self._enqueues = device.enqueues
        self._device: Device | None = device  # until the end: it has memory of its own
        self._events: Mapping[int, Event] | None = events if device.enqueues else None
        self._began = self._ended = 0.0
        self._state, self._why = "waiting", ""
        self._sums: CallSums | None = None
        self._queues: GpuQueues | None = None
        self._busy: dict[str, float] = dict.fromkeys((*WORK, ""), 0.0)
        self._counted = 0  # entries of the log
        self._watched = self._sampled = 0.0
        self._looking = threading.Lock()
        with _lock:
            _going.add(self)

    def begin(self) -> None:
        """Note that the program begins."""
        self._began, self._state = time.perf_counter(), "running"

    def end(self, error: BaseException | None = None) -> None:
        """Note that the part is over; the first call counts."""
        if self._state not in ("waiting", "running"):
            return
        self._ended = time.perf_counter()
        self._began = self._began or self._ended
        self._why = "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
        self._state = "done" if error is None else "failed"
        self._device = self._events = self._queues = None
        with _lock:
            _going.discard(self)
            _over.setdefault(self.run, []).append(self)
            while len(_over) > MOST_OVER:
                del _over[next(iter(_over))]

    @property
    def enqueues(self) -> bool:
        """Whether its device has to be looked at from time to time."""
        return self._events is not None and self._state == "running"

    def look(self) -> Seen:
        """Return what is seen of it now."""
        with self._looking:
            return self._look(time.perf_counter())

    def _look(self, now: float) -> Seen:
        job, workers = self._job, self._job.workers
        info = workers[self._worker] if workers else calling_thread()
        sums = self._sums = self._sums or CallSums.of(job, self._worker, self._given)
        state, until = self._state, self._ended or now
        seconds = until - self._began if self._began else 0.0
        place, doing = self._place()
        if self._enqueues:
            watched, busy = self._watched, self._busy
        else:
            watched, busy = seconds, self._busy_until(until)
        scale = 4 if job.dtype.kind == "c" else 1
        return Seen(
            run=self.run, title=job.title, owner=job.owner, worker=self._worker,
            workers=len(job.programs), name=info.name, kind=info.kind_text, address=info.address,
            state=state, why=self._why, seconds=seconds, ago=now - until,
            steps=int(sums.steps[-1]), steps_done=int(sums.steps[place]),
            flops=scale * float(sums.flops[-1]), flops_done=scale * float(sums.flops[place]),
            run_flops=scale * job.flops, estimate=job.seconds, watched=watched,
            busy={kind: busy[kind] for kind in WORK}, sent=int(sums.sent[place]),
            received=int(sums.received[place]), doing=doing if state == "running" else "",
        )  # fmt: skip

    def _place(self) -> tuple[int, str]:
        """Return how many instructions are done, and what is being done."""
        instructions = self._job.programs[self._worker].instructions
        issued = place = len(self._log)
        if self._state == "running" and (queues := self._gpu()):
            places = queues.next_places(issued)
            place = min(places.values(), default=issued)
        if place == len(instructions):
            return place, "the end"
        one = instructions[place]
        receives = isinstance(one, ReceiveMessage)
        return place, f"waits for data of step {one.step}" if receives else one.label

    def _gpu(self) -> GpuQueues | None:
        device, events = self._device, self._events
        if device is not None and events is not None and self._queues is None:
            program = self._job.programs[self._worker]
            self._queues = GpuQueues(device, program.instructions, events)
        return self._queues

    def _busy_until(self, until: float) -> dict[str, float]:
        """Return the seconds of work of each kind, by the log; calls end when they return."""
        assert self._sums is not None
        # The worker goes on meanwhile: what has ended after `until` is for the next look.
        kinds = self._sums.kinds
        entries = [entry for entry in self._log[self._counted :] if entry.stop <= until]
        for entry in entries:
            self._busy[kinds[entry.place]] += entry.stop - entry.start
        self._counted += len(entries)
        if self._state != "running" or self._counted == len(kinds):
            return self._busy
        last = self._log[self._counted - 1].stop if self._counted else self._began
        kind = kinds[self._counted]
        return self._busy | {kind: self._busy[kind] + max(until - last, 0.0)}

    def sample(self) -> None:
        """Note what the queues of a GPU do at this moment, for the time since the last one.

        A panel counts only while there is no update beside it.
        """
        with self._looking:
            now, queues = time.perf_counter(), self._gpu()
            since, self._sampled = now - self._sampled, now
            if since > _SAMPLED or queues is None or self._sums is None:
                return
            running = {
                self._sums.kinds[p] for p in queues.running(queues.next_places(len(self._log)))
            }
            self._watched += since
            if running:
                self._busy["update" if "update" in running else "panel"] += since


_lock = threading.Lock()
#: Parts that are not over, while their runners are there; and runs that are, the latest last.
_going: weakref.WeakSet[Part] = weakref.WeakSet()
_over: dict[str, list[Part]] = {}
_looked_at = 0.0
_sampling: threading.Thread | None = None


@in_forked_child
def _forget_parent() -> None:
    global _lock, _sampling
    _lock, _sampling = threading.Lock(), None
    _going.clear()
    _over.clear()


def look_around() -> list[Seen]:
    """Return what is seen of all runs of this process."""
    global _looked_at, _sampling
    with _lock:
        going = list(_going)
        parts = [*going, *(part for parts in _over.values() for part in parts)]
        _looked_at = time.monotonic()
        if _sampling is None and any(part.enqueues for part in going):
            _sampling = threading.Thread(target=_sample, name="hetero-la samples", daemon=True)
            _sampling.start()
    return [part.look() for part in parts]


def _sample() -> None:
    """Look at GPUs while somebody watches, and they have something to do."""
    global _sampling
    while True:
        with _lock:
            parts = [part for part in _going if part.enqueues]
            if not parts or time.monotonic() - _looked_at > _SAMPLED:
                _sampling = None
                return
        for part in parts:
            part.sample()
        del parts
        time.sleep(_SAMPLE_INTERVAL)


def runs_of(parts: Iterable[Seen]) -> list[dict[str, Any]]:
    """Return what is seen of each run; those that are not over first, and then the latest."""
    found: dict[str, list[Seen]] = {}
    for part in parts:
        found.setdefault(part["run"], []).append(part)
    runs = [together(parts) for parts in found.values()]
    return sorted(runs, key=lambda run: (is_over(run), run["ago"] + run["seconds"]))


def is_over(what: Mapping[str, Any]) -> bool:
    """Return whether a run, or a part of one, is over, well or not."""
    return what["state"] in ("done", "failed")


def together(parts: Sequence[Seen]) -> dict[str, Any]:
    """Return what is seen of a run as a whole, from the parts of its workers that are known.

    `left` are the seconds until its end: by the estimate at first, and from a fifth of the work on
    as many as the rest takes if it goes on like this.
    """
    first = parts[0]
    states = {part["state"] for part in parts}
    state = "running" if states & {"running", "done"} else "waiting"
    if "failed" in states:
        state = "failed"
    elif states == {"done"} and len(parts) == first["workers"]:
        state = "done"
    steps, flops = max(part["steps"] for part in parts), sum(part["flops"] for part in parts)
    missing = first["workers"] - len(parts)  # have not begun, and do their share as well
    done = sum(part["flops_done"] for part in parts)
    share = done / (flops * (1 + missing / len(parts))) if flops else float(state == "done")
    seconds = max(part["seconds"] for part in parts)
    total = first["estimate"]
    if share:
        weight = min(share / _TRUSTED, 1.0) if total else 1.0
        total += weight * (seconds / share - total)
    unfinished = [part["steps_done"] for part in parts if part["steps_done"] < part["steps"]]
    return {
        "run": first["run"], "title": first["title"], "owner": first["owner"], "state": state,
        "why": next((part["why"] for part in parts if part["why"]), ""), "seconds": seconds,
        "ago": min(part["ago"] for part in parts), "steps": steps,
        "steps_done": 0 if missing else min(unfinished, default=steps), "share": share,
        "flops": share * first["run_flops"], "run_flops": first["run_flops"],
        "rate": share * first["run_flops"] / seconds if seconds else 0.0,
        "left": (1 - share) * total if state == "running" else 0.0,
        "travelling": max(sum(part["sent"] - part["received"] for part in parts), 0),
        "parts": sorted(parts, key=lambda part: part["worker"]),
    }  # fmt: skip
