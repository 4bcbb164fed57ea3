"""Quick estimates of a right-looking factorization, step by step, without a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero_la.scheduler.graph.step_kernels import Build, Call, StepKernels, Tile
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout


class StepTimes:
    """Times of the parts of a step.

    Parameters
    ----------
    build : callable
        Builder of the graph, from a layout.
    m, n, nrhs : int
        Rows and columns of the matrix, and right-hand sides, in elements.
    model : MachineModel
        Devices and links.
    owners : sequence of int
        Workers that own columns, taken as equally fast.
    panel_worker : int or None
        The worker that factors panels; None for the owners.
    dtype : dtype
        Element type.
    neighbours : int, optional
        How many of an owner's tile columns one call of an update takes; 0: all of them.
    """

    def __init__(
        self, build: Build, m: int, n: int, nrhs: int, model: MachineModel,
        owners: Sequence[int], panel_worker: int | None, dtype: Any, neighbours: int = 0,
    ) -> None:  # fmt: skip
        self._steps = StepKernels.of(build)
        self._m, self._n, self._nrhs, self._dtype = m, n, nrhs, np.dtype(dtype)
        self._model, self._owners, self._panel_worker = model, owners, panel_worker
        self._neighbours = neighbours
        #: Whether what an owner updates gets shorter from column to column.
        self._spread = len(owners) > 1 and self._steps.trapezoid

    def _seconds(self, worker: int, calls: Sequence[Call]) -> float:
        model = self._model.devices[worker]
        times = [model.kernel_seconds(kind, shapes, self._dtype) for kind, shapes in calls]
        issuing = model.issue_seconds * len(times)
        # A GPU's host issues the next calls while it works.
        return max(sum(times), issuing) if model.kind == "gpu" else sum(times) + issuing

    def panel(self, tile: Tile) -> float:
        """Return the time to factor the tile column of a tile and to send it to the owners."""
        model, owners = self._model, self._owners
        at = owners[0] if self._panel_worker is None else self._panel_worker
        factor, finish = self._panel_calls(tile)
        if not factor:  # the factors are given
            return 0.0
        seconds = self._seconds(at, factor) + self._seconds(owners[0], finish)
        itemsize, device = self._dtype.itemsize, model.devices[owners[0]]
        if self._panel_worker is not None:
            nbytes = math.prod(factor[0].shapes[0]) * itemsize
            seconds += 2 * model.transfer_seconds(nbytes, owners[0], at, private=True)
        elif len(owners) > 1:
            seconds += self._travel_seconds(tile)
        elif device.kind == "gpu":
            # Beside the update of the same GPU.
            seconds *= device.overlap(factor[0].kind, tile.columns).slowdown
        return seconds

    def _travel_seconds(self, tile: Tile) -> float:
        """Return the time to send a panel from its owner to another one."""
        nbytes = (self._m - tile.start) * tile.columns * self._dtype.itemsize
        return self._model.transfer_seconds(nbytes, self._owners[0], self._owners[1])

    def _panel_calls(self, tile: Tile) -> tuple[list[Call], list[Call]]:
        """Return the kernels of a panel that any worker may run, and those that its owner adds."""
        calls = self._steps.panel(tile, right_hand_sides=self._nrhs > 0)
        factor = [call for call in calls if SPECS[call.kind].chain]
        return factor, [call for call in calls if not SPECS[call.kind].chain]

    def ahead(self, before: Tile, columns: int) -> float:
        """Return the time to apply the step of a tile to some columns."""
        return self._seconds(self._owners[0], self._steps.update(before, columns))

    def update(self, tile: Tile) -> float:
        """Return the time of the trailing update of a tile's step."""
        inside, right = self._right_of(tile)

        def update(width: int) -> list[Call]:
            # Columns all over the matrix are half as tall, on average.
            above = tile.below - (tile.below + width) // 2 if self._spread else 0
            return self._steps.update(tile, width, above)

        seconds = self._dealt_out(update, inside, tile)
        return seconds + self._dealt_out(partial(self._steps.beside, tile), right, tile)

    def substitution(self, tile: Tile) -> float:
        """Return the time of the calls on right-hand sides after the last step, for a tile."""
        if not self._nrhs:
            return 0.0
        columns = max(self._nrhs - tile.start * self._steps.begins_late(tile), 0)
        return self._dealt_out(partial(self._steps.substitution, tile), columns, tile)

    def _right_of(self, tile: Tile) -> tuple[int, int]:
        """Return the columns that a step updates as the matrix, and other right-hand sides."""
        if self._nrhs and self._steps.rides_along(tile):
            return tile.beyond + self._nrhs, 0
        return tile.beyond, self._nrhs

    def _dealt_out(self, calls: Callable[[int], list[Call]], columns: int, tile: Tile) -> float:
        """Return an owner's time for its part of some columns, in calls of limited width."""
        width = -(-columns // len(self._owners))
        if not width:
            return 0.0
        at_once = min(self._neighbours * tile.columns or width, width)
        return self._seconds(self._owners[0], calls(at_once)) * width / at_once


def step_seconds(
    build: Build, layout: TileLayout, model: MachineModel, owners: Sequence[int],
    panel_worker: int | None, dtype: Any,
) -> Iterator[tuple[float, float, float]]:  # fmt: skip
    """Yield for each step the times of the chain to its panel, its trailing update, and its end.

    The chain updates one tile column, factors it and brings it to the owners.  The end is the
    calls on right-hand sides after the last step.

    Parameters
    ----------
    layout : TileLayout
        How the matrix is cut.
    build, model, owners, panel_worker, dtype
        As of `StepTimes`.
    """
    m, n, nrhs = layout.m, layout.n, layout.nrhs
    times = StepTimes(build, m, n, nrhs, model, owners, panel_worker, dtype)
    tiles = [Tile.of(layout, k) for k in range(layout.kt)]
    for before, tile in zip([None, *tiles], tiles, strict=False):
        chain = times.panel(tile)
        if before is not None:
            chain += times.ahead(before, tile.columns)
        yield chain, times.update(tile), times.substitution(tile)


def estimate_seconds(
    build: Build, layout: TileLayout, model: MachineModel, owners: Sequence[int],
    panel_worker: int | None, dtype: Any,
) -> float:  # fmt: skip
    """Return the time of a factorization with look-ahead: each step takes its longer part.

    Calls on the matrix itself after the last step are left out.
    See `step_seconds` for the parameters.
    """
    steps = list(step_seconds(build, layout, model, owners, panel_worker, dtype))
    chains = [chain for chain, _, _ in steps] + [0.0]
    updates = [0.0] + [update for _, update, _ in steps]
    return sum(map(max, chains, updates)) + sum(end for _, _, end in steps)


def steps_while_loading(
    build: Build, layout: TileLayout, model: MachineModel, owners: Sequence[int],
    panel_worker: int | None, dtype: Any,
) -> int:  # fmt: skip
    """Return how many steps fit into the time in which the columns reach their workers.

    On average half of the columns are there meanwhile.  See `step_seconds`.
    """
    nbytes = layout.m * layout.width * np.dtype(dtype).itemsize / len(owners)
    left = model.host_seconds(nbytes, owners[0])
    steps = step_seconds(build, layout, model, owners, panel_worker, dtype)
    for k, (chain, update, _) in enumerate(steps):
        left -= max(update / 2, chain)
        if left <= 0:
            return k + 1
    return layout.kt
