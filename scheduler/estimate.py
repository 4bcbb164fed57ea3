"""Quick estimates of a right-looking factorization, step by step, without a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.scheduler.costs import MachineModel
from hetero_la.tiles.layout import TileLayout

#: Kernels, and the shapes of their arrays.
Calls = list[tuple[str, tuple[tuple[int, ...], ...]]]


@dataclass(frozen=True)
class Step:
    """What a step of a factorization consists of.

    Attributes
    ----------
    panel : callable
        Kernels of a panel that may be done by another worker than its owner, for the
        trailing matrix's height and the tile size.
    finish : callable
        Kernels that its owner adds, likewise.
    update : callable
        Kernels of the update of `width` columns: height, tile size, width.
    travels : callable
        Elements that go to the panel's worker and come back.
    """

    panel: Callable[[int, int], Calls]
    finish: Callable[[int, int], Calls]
    update: Callable[[int, int, int], Calls]
    travels: Callable[[int, int], int]


def step_seconds(
    step: Step,
    layout: TileLayout,
    model: MachineModel,
    owners: Sequence[int],
    panel_worker: int | None,
    dtype: Any,
) -> Iterator[tuple[float, float]]:
    """For each step, the time of the chain to its panel, and of its trailing update.

    The chain updates one tile column, factors it and brings it to the owners.

    Parameters
    ----------
    step : Step
        Of which routine.
    layout : TileLayout
        How the matrix is cut.
    model : MachineModel
        Devices and links.
    owners : sequence of int
        Workers that own columns, taken as equally fast.
    panel_worker : int or None
        The worker that factors panels; None for the owners.
    dtype : dtype
        Element type.
    """
    device, nb = model.devices[owners[0]], layout.nb
    at = owners[0] if panel_worker is None else panel_worker
    itemsize = np.dtype(dtype).itemsize

    def seconds(worker: int, calls: Calls) -> float:
        model_of = model.devices[worker]
        times = [model_of.kernel_seconds(kind, shapes, dtype) for kind, shapes in calls]
        issuing = model_of.issue_seconds * len(times)
        # A GPU's host issues the next calls while it works.
        return max(sum(times), issuing) if model_of.kind == "gpu" else sum(times) + issuing

    for k in range(layout.kt):
        height = layout.m - layout.row(k)
        width = max(layout.width - (k + 1) * nb, 0) // len(owners)
        chain = seconds(at, step.panel(height, nb)) + seconds(owners[0], step.finish(height, nb))
        if panel_worker is not None:
            nbytes = step.travels(height, nb) * itemsize
            chain += 2 * model.transfer_seconds(nbytes, owners[0], panel_worker, private=True)
        elif len(owners) > 1:
            chain += model.transfer_seconds(height * nb * itemsize, owners[0], owners[1])
        elif device.kind == "gpu":
            chain *= device.panel_slowdown  # beside the update of the same GPU
        if k:
            chain += seconds(owners[0], step.update(height + nb, nb, nb))
        update = step.update(height, nb, width) if height > nb and width else []
        yield chain, seconds(owners[0], update)


def estimate_seconds(
    step: Step,
    layout: TileLayout,
    model: MachineModel,
    owners: Sequence[int],
    panel_worker: int | None,
    dtype: Any,
) -> float:
    """Time of a factorization with look-ahead: each step takes its longer part.

    See `step_seconds` for the parameters.
    """
    steps = list(step_seconds(step, layout, model, owners, panel_worker, dtype))
    chains = [chain for chain, _ in steps] + [0.0]
    updates = [0.0] + [update for _, update in steps]
    return sum(map(max, chains, updates))


def steps_while_loading(
    step: Step,
    layout: TileLayout,
    model: MachineModel,
    owners: Sequence[int],
    panel_worker: int | None,
    dtype: Any,
) -> int:
    """How many steps fit into the time in which the columns travel to their workers.

    On average half of the columns are there meanwhile.  See `step_seconds`.
    """
    nbytes = layout.m * layout.width * np.dtype(dtype).itemsize / len(owners)
    left = model.host_seconds(nbytes, owners[0])
    steps = step_seconds(step, layout, model, owners, panel_worker, dtype)
    for k, (chain, update) in enumerate(steps):
        left -= max(update / 2, chain)
        if left <= 0:
            return k + 1
    return layout.kt
