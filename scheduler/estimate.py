"""Quick estimates of a right-looking factorization, step by step, without a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hetero_la.scheduler.costs import MachineModel
from hetero_la.tiles.layout import TileLayout


def step_seconds(
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

    def seconds(worker: int, kind: str, *shapes: tuple[int, ...]) -> float:
        return model.devices[worker].kernel_seconds(kind, shapes, dtype)

    def update(rows: int, width: int) -> float:
        return (
            seconds(owners[0], "swap", (nb,), (2, 2 * nb), (rows + nb, width))
            + seconds(owners[0], "trmm", (nb, nb), (nb, nb), (nb, width))
            + seconds(owners[0], "gemm", (rows, nb), (nb, width), (rows, width))
        )

    for k in range(layout.kt):
        height, rows = layout.m - layout.row(k), layout.m - layout.row(k + 1)
        width = max(layout.width - (k + 1) * nb, 0) // len(owners)
        chain = seconds(at, "getrf", (height, nb), (nb,), (1,))
        chain += seconds(at, "trtri", (nb, nb), (nb, nb))
        nbytes = height * nb * itemsize
        if panel_worker is not None:
            chain += 2 * model.transfer_seconds(nbytes, owners[0], panel_worker, private=True)
        elif len(owners) > 1:
            chain += model.transfer_seconds(nbytes, owners[0], owners[1])
        elif device.kind == "gpu":
            chain *= device.panel_slowdown  # beside the update of the same GPU
        if k:
            chain += update(height, nb)
        yield chain, update(rows, width) if rows and width else 0.0


def estimate_seconds(
    layout: TileLayout,
    model: MachineModel,
    owners: Sequence[int],
    panel_worker: int | None,
    dtype: Any,
) -> float:
    """Time of a factorization with look-ahead: each step takes its longer part.

    See `step_seconds` for the parameters.
    """
    steps = list(step_seconds(layout, model, owners, panel_worker, dtype))
    chains = [chain for chain, _ in steps] + [0.0]
    updates = [0.0] + [update for _, update in steps]
    return sum(map(max, chains, updates))


def steps_while_loading(
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
    steps = step_seconds(layout, model, owners, panel_worker, dtype)
    for k, (chain, update) in enumerate(steps):
        left -= max(update / 2, chain)
        if left <= 0:
            return k + 1
    return layout.kt
