"""Teams: which workers take part in a run, in which roles, and how many columns each owns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hetero_la.algorithms.routine import Routine
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options, PanelDevice
from hetero_la.scheduler.graph.step_kernels import Call, StepKernels, Tile
from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes
from hetero_la.scheduler.predict.estimate import Stages
from hetero_la.scheduler.probe.quick import machine_model
from hetero_la.tiles.arrays.errors import DeviceUnavailableError
from hetero_la.tiles.storage.layout import TileLayout

#: Estimated seconds of a run up to which measuring the devices is not worth its time.
_MIN_SECONDS_TO_MEASURE = 0.1
#: CPU workers own columns beside GPUs if that takes at most this part of the time, and twice as
#: many GPUs a matrix that one of them has: estimates of such teams are too short by about a tenth.
_GAIN = 0.9
#: About how many stages of a run are summed up to compare teams.
_STAGES = 32
#: The update by which workers are compared: a tile's, on the rows and columns beyond it.
_TYPICAL = Tile(256, 256, 256, 4096, 4096)
_PRODUCT = Call("gemm", [(4096, 256), (256, 4096), (4096, 4096)])


class Roles(NamedTuple):
    """Who can do what.

    Attributes
    ----------
    owners : tuple of WorkerInfo
        Workers of one kind that can own columns.
    helper : WorkerInfo or None
        The CPU worker that may factor panels for them.
    beside : tuple of WorkerInfo
        CPU workers that may own columns beside them.
    """

    owners: tuple[WorkerInfo, ...]
    helper: WorkerInfo | None
    beside: tuple[WorkerInfo, ...] = ()


class Team(NamedTuple):
    """Workers that take part, the one that factors panels (None: the owners), and their model.

    `speeds` are those of the workers, in proportion to which they own columns.
    """

    workers: tuple[WorkerInfo, ...]
    panel_worker: int | None
    model: MachineModel
    speeds: tuple[float, ...]

    @property
    def owners(self) -> tuple[WorkerInfo, ...]:
        """The workers that own columns."""
        return tuple(w for place, w in enumerate(self.workers) if place != self.panel_worker)

    @property
    def mixed(self) -> bool:
        """Whether workers of both kinds own columns."""
        return len({owner.kind for owner in self.owners}) > 1


def assign_roles(workers: tuple[WorkerInfo, ...], options: Options, on_host: bool = False) -> Roles:
    """Find who can own columns, and who may factor panels.

    CPU workers may own columns beside GPUs if the matrix is on the host.
    """
    if not workers:
        raise ValueError("a run needs workers, and there are none")
    gpus = tuple(worker for worker in workers if worker.kind == "gpu")
    cpus = tuple(worker for worker in workers if worker.kind == "cpu")
    if not gpus:
        if options.panel is PanelDevice.GPU:
            raise DeviceUnavailableError("panel='gpu' needs a GPU worker, and there is none")
        return Roles(cpus, None)
    if options.panel is PanelDevice.CPU and not cpus:
        raise DeviceUnavailableError("panel='cpu' needs a CPU worker besides the GPU workers")
    if options.panel is PanelDevice.GPU or not cpus:
        return Roles(gpus, None)
    helper = None if options.checkpoint else with_all_cores(cpus[0], workers)
    return Roles(gpus, helper, cpus if on_host and options.panel is PanelDevice.AUTO else ())


def with_all_cores(worker: WorkerInfo, workers: Sequence[WorkerInfo]) -> WorkerInfo:
    """Return a CPU worker with the BLAS threads of all those of its process, which have no part.

    Virtual GPUs compute on the same cores, and do have a part.
    """
    there = [other for other in workers if (other.host, other.pid) == (worker.host, worker.pid)]
    if any(other.virtual for other in there):
        return worker
    threads = sum(other.blas_threads for other in there if other.kind == "cpu")
    return replace(worker, blas_threads=threads)


def sharing_memory(workers: Sequence[WorkerInfo]) -> list[int]:
    """Return which workers compute in the result's memory: CPUs, if all are in this process."""
    if over_processes(workers):
        return []
    return [g for g, worker in enumerate(workers) if worker.kind == "cpu"]


def merged_columns(routine: Routine, owners: Sequence[WorkerInfo]) -> list[int]:
    """Return how many tile columns of each owner one call of an update takes; 0: all of them."""
    if len(owners) == 1:
        return [0]
    shared, apart = sharing_memory(owners), StepKernels.of(routine.tasks).trapezoid
    if len(shared) == len(owners):
        return [2] * len(owners)  # columns are dealt out to the owners there and back
    return [int(apart or place in shared) for place in range(len(owners))]


def choose_team(
    routine: Routine, cut: Callable[[tuple[WorkerInfo, ...]], TileLayout], dtype: Any,
    options: Options, roles: Roles, given: Given,
) -> Team:  # fmt: skip
    """Choose who owns columns, and who factors panels.

    All ways are estimated for the whole run, overlap included: with nominal rates first, and if
    the run is long enough and on devices of both kinds, with measured ones.

    Parameters
    ----------
    routine : Routine
        What is run.
    cut : callable
        Returns how the matrix is cut for some owners of columns.
    dtype : dtype
        Element type.
    options : Options
        Options of the run.
    roles : Roles
        Who can do what.
    given : Given
        Where the matrix is.  If one GPU of this process has it, it is copied to others, and back:
        so a few GPUs may be faster than all.
    """
    owners, helper, beside = roles
    if not any(owner.here and owner.device == given.home for owner in owners):
        given = given._replace(home=None)
    others = (*((helper,) if helper else ()), *(cpu for cpu in beside if cpu != helper))
    workers = (*owners, *others)
    choice = _Choice(routine, cut, dtype, options, roles, given)
    model = machine_model(workers, dtype, measure=False).computing(options.products)
    times = choice.seconds(workers, model)
    if len(times) > 1 and others and min(times.values()) > _MIN_SECONDS_TO_MEASURE:
        model = machine_model(workers, dtype).computing(options.products)
        times = choice.seconds(workers, model)
    chosen, panel_worker = min(times, key=lambda team: times[team])
    places = chosen if panel_worker is None else (*chosen, panel_worker)
    speeds = choice.speeds(model)
    return Team(
        tuple(workers[place] for place in places),
        None if panel_worker is None else len(chosen),
        replace(
            model, devices=tuple(model.devices[place] for place in places),
            workers=tuple(model.workers[place] for place in places),
        ),
        tuple(0.0 if place == panel_worker else speeds[place] for place in places),
    )  # fmt: skip


class _Choice(NamedTuple):
    """The teams from which one is chosen; workers are places among all that might take part.

    A team is the places of the owners of columns, and that of the panel worker.
    """

    routine: Routine
    cut: Callable[[tuple[WorkerInfo, ...]], TileLayout]
    dtype: Any
    options: Options
    roles: Roles
    given: Given

    def seconds(
        self, workers: Sequence[WorkerInfo], model: MachineModel
    ) -> dict[tuple[tuple[int, ...], int | None], float]:
        """Return the estimated time of each team; a single one is not estimated."""
        speeds, first = self.speeds(model), range(len(self.roles.owners))
        teams: dict[tuple[tuple[int, ...], int | None], float] = {}
        for owners in self._owners(workers, first, speeds):
            if self.options.panel is not PanelDevice.CPU or self.roles.helper is None:
                teams[owners, None] = 1.0
            if self.roles.helper is not None:
                teams[owners, len(first)] = 1.0
        mixed = [place for place, w in enumerate(workers) if w in self.roles.owners]
        mixed += [place for place, w in enumerate(workers) if w in self.roles.beside]
        nominal = MachineModel.nominal(workers).devices
        # Nominal rates of a GPU and of cores are not those of this machine: not even their ratio.
        if self.roles.beside and all(model.devices[p] != nominal[p] for p in mixed):
            for owners in self._owners(workers, mixed, speeds):
                teams.setdefault((owners, None), _GAIN)
        if len(teams) == 1:
            return teams
        return {
            (owners, at): self._estimate(workers, model, speeds, owners, at) / gain
            for (owners, at), gain in teams.items()
        }

    def speeds(self, model: MachineModel) -> list[float]:
        """Return how much of a typical update each device does in a second, to two digits."""
        calls = StepKernels.of(self.routine.tasks).update(_TYPICAL, _TYPICAL.beyond) or [_PRODUCT]
        return [_speed(device, calls, self.dtype) for device in model.devices]

    def _owners(
        self, workers: Sequence[WorkerInfo], places: Sequence[int], speeds: Sequence[float]
    ) -> Iterator[tuple[int, ...]]:
        """Yield some workers, the fastest ones, then more of them, as long as all get columns."""
        fastest, *more = [*self._few(workers, places), *_without_the_slowest(places, speeds)]
        yield fastest
        for owners in more:
            layout = self.cut(tuple(workers[place] for place in owners))
            own = [speeds[place] for place in owners]
            if (layout.nt + layout.rt) * min(own) >= sum(own):
                yield owners

    def _few(
        self, workers: Sequence[WorkerInfo], places: Sequence[int]
    ) -> Iterator[tuple[int, ...]]:
        """Yield one, two, four of several GPUs, that which has the matrix among them."""
        if self.given.home is None or not all(workers[place].has_gpu for place in places):
            return
        ordered = sorted(places, key=lambda place: workers[place].device != self.given.home)
        count = 1
        while count < len(ordered):
            yield tuple(sorted(ordered[:count]))
            count *= 2

    def _estimate(
        self, workers: Sequence[WorkerInfo], model: MachineModel, speeds: Sequence[float],
        owners: Sequence[int], panel_worker: int | None,
    ) -> float:  # fmt: skip
        """Return the time of a team, with the loads of CPU workers, which compute afterwards."""
        team = tuple(workers[place] for place in owners)
        own = [speeds[place] for place in owners]
        layout = self.cut(team)
        stages = Stages(
            self.routine.tasks, layout, model, owners, panel_worker, self.dtype,
            merged_columns(self.routine, team), own,
        )  # fmt: skip
        nbytes = layout.m * layout.width * self.dtype.itemsize / sum(own)
        loads = (
            model.host_seconds(nbytes * speed, place, source=self.given.source)
            for place, speed in zip(owners, own, strict=True)
            if model.devices[place].kind == "cpu"
        )
        seconds = stages.seconds(every=max(layout.kt // _STAGES, 1)) + max(loads, default=0.0)
        if self.given.home is None or len(team) == 1:
            return seconds
        away = layout.m * layout.width * self.dtype.itemsize * (1 - 1 / len(team))
        seconds += 2 * model.peer_link.seconds(away)
        return seconds / _GAIN ** math.log2(len(team))


def _without_the_slowest(
    places: Sequence[int], speeds: Sequence[float]
) -> Iterator[tuple[int, ...]]:
    """Yield the workers of the fastest one's speed or up to half of it, up to a quarter, and so on.

    These are few groups, whatever the speeds; the last one has all workers.
    """
    fastest = max((speeds[place] for place in places), default=1.0)
    halvings = {place: int(math.log2(fastest / speeds[place])) for place in places}
    for most in sorted(set(halvings.values())):
        yield tuple(place for place in places if halvings[place] <= most)


def _speed(device: DeviceModel, calls: Sequence[Call], dtype: Any) -> float:
    seconds = sum(device.kernel_seconds(kind, shapes, dtype) for kind, shapes in calls)
    return float(f"{1 / seconds:.1e}")
