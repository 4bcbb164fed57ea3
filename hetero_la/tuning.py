"""Decisions from sizes and the machine model: who factors panels, and tile size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetero_la.options import Options, PanelDevice
from hetero_la.routines import ROUTINES, Routine, Tiling
from hetero_la.scheduler.costs import MachineModel
from hetero_la.scheduler.estimate import estimate_seconds, steps_while_loading
from hetero_la.scheduler.probes import machine_model
from hetero_la.scheduler.workers import WorkerInfo
from hetero_la.tiles.errors import DeviceUnavailableError
from hetero_la.tiles.layout import TileLayout

#: Runs estimated to be shorter, in seconds, are not worth measuring the devices for.
_WORTH_MEASURING = 0.1


def choose_panel_worker(
    routine: Routine,
    layout: TileLayout,
    owners: tuple[WorkerInfo, ...],
    helper: WorkerInfo | None,
    options: Options,
    dtype: Any,
) -> tuple[MachineModel, int | None]:
    """The machine's model, and the worker that factors panels, if it is not their owners.

    Both ways are estimated for the whole run, overlap included; from nominal rates
    first, and where the run is long enough, from measured ones.
    """
    if helper is None:
        return machine_model(owners, dtype, measure=False), None
    team, at = (*owners, helper), len(owners)
    if options.panel is PanelDevice.CPU:
        return machine_model(team, dtype, measure=False), at

    def times(model: MachineModel) -> tuple[float, float]:
        here = estimate_seconds(routine.step, layout, model, range(at), None, dtype)
        return here, estimate_seconds(routine.step, layout, model, range(at), at, dtype)

    model = machine_model(team, dtype, measure=False)
    if min(times(model)) > _WORTH_MEASURING:
        model = machine_model(team, dtype)
    on_owners, on_helper = times(model)
    return model, at if on_helper < on_owners else None


def arrival_steps(
    routine: Routine,
    layout: TileLayout,
    model: MachineModel,
    owners: Sequence[int],
    at: int | None,
    dtype: Any,
) -> Callable[[int], int]:
    """Step by which each column has travelled to its GPU."""
    steps = steps_while_loading(routine.step, layout, model, owners, at, dtype)
    columns = layout.nt + layout.rt
    return lambda column: column * steps // columns


def roles(
    workers: tuple[WorkerInfo, ...], options: Options
) -> tuple[tuple[WorkerInfo, ...], WorkerInfo | None]:
    """Owners of columns, and the CPU worker that may factor panels for them."""
    gpus = tuple(worker for worker in workers if worker.kind == "gpu")
    cpus = tuple(worker for worker in workers if worker.kind == "cpu")
    if not gpus:
        if options.panel is PanelDevice.GPU:
            raise DeviceUnavailableError("panel='gpu' needs a GPU worker, and there is none")
        return cpus, None
    if options.panel is PanelDevice.CPU and not cpus:
        raise DeviceUnavailableError("panel='cpu' needs a CPU worker besides the GPU workers")
    if options.panel is PanelDevice.GPU or options.checkpoint or not cpus:
        return gpus, None
    return gpus, cpus[0]


def tile_size(
    routine: str, m: int, n: int, nrhs: int, options: Options, owners: Sequence[WorkerInfo]
) -> int:
    """As asked for, or by default; a larger one than the whole problem is that."""
    nb = options.nb or default_nb(routine, m, n, owners)
    return min(nb, max(m, n, nrhs, 1))


def default_nb(routine: str, m: int, n: int, owners: Sequence[WorkerInfo]) -> int:
    """Tile size, from measurements: see ``docs/performance.md``."""
    size = max(min(m, n), 1)
    if owners[0].kind == "gpu" and not owners[0].virtual:
        return _tiling(routine, size, owners).nb
    if len(owners) == 1:
        return size if size <= 384 else 128 if size < 2048 else 256
    # Three columns a worker keep all of them busy until near the end.
    share = size // (3 * len(owners)) // 32 * 32
    return min(max(share, 96), 192)


def default_lookahead(routine: str, m: int, n: int, owners: Sequence[WorkerInfo]) -> int:
    """How many panels to factor ahead, from measurements as for the tile size."""
    if owners[0].kind == "cpu":
        return 1
    return _tiling(routine, min(m, n), owners).lookahead


def _tiling(routine: str, order: int, owners: Sequence[WorkerInfo]) -> Tiling:
    known = ROUTINES[routine]
    tiles = known.one_gpu_tiles if len(owners) == 1 else known.gpu_tiles
    return next(tiling for tiling in tiles if order >= tiling.order)
