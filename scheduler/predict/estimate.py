"""Quick estimates of a right-looking factorization, step by step, without a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout

#: Kernels, and the shapes of their arrays.
Calls = list[tuple[str, tuple[tuple[int, ...], ...]]]


@dataclass(frozen=True)
class Step:
    """Kernels of one step of a factorization.

    Attributes
    ----------
    panel : callable
        Kernels of a panel that may be done by another worker than its owner, for the
        trailing matrix's height and the tile size.
    finish : callable
        Kernels that its owner adds, likewise.
    update : callable
        Kernels of the update of the first `width` columns: height, tile size, width.  Of the
        last tile's rows there may be fewer than its size, and below them there is nothing.
    travels : callable
        Elements that go to the panel's worker and come back.
    closing : callable
        Kernels after the last step that each tile column has, likewise.
    beside : callable or None
        Kernels of the update of right-hand sides, of which there are `width` columns, where
        they are not those of `update`; the matrix is then square.
    substitution : callable
        Kernels after the last step that solve with the tile rows' triangles once more: rows
        above the tile, the trailing matrix's height, tile size, width.  For square matrices;
        what QR does with its columns at the end is in no estimate.
    """

    panel: Callable[[int, int], Calls]
    finish: Callable[[int, int], Calls]
    update: Callable[[int, int, int], Calls]
    travels: Callable[[int, int], int]
    closing: Callable[[int, int], Calls] = lambda height, nb: []
    beside: Callable[[int, int, int], Calls] | None = None
    substitution: Callable[[int, int, int, int], Calls] = lambda start, height, nb, width: []


def is_trapezoid(step: Step) -> bool:
    """Return whether a step updates only the lower triangle of the trailing matrix."""
    return any(SPECS[kind].trapezoid for kind, _ in step.update(2, 1, 1))


class StepTimes:
    """Times of the parts of a step.

    Parameters
    ----------
    step : Step
        Of which routine.
    m, width : int
        Rows of the matrix, and its columns with the right-hand sides, in elements.
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
        self, step: Step, m: int, width: int, model: MachineModel, owners: Sequence[int],
        panel_worker: int | None, dtype: Any, neighbours: int = 0,
    ) -> None:  # fmt: skip
        self._step, self._m, self._width, self._dtype = step, m, width, np.dtype(dtype)
        self._model, self._owners, self._panel_worker = model, owners, panel_worker
        self._neighbours = neighbours
        #: Whether what an owner updates gets shorter from column to column.
        self._spread = len(owners) > 1 and is_trapezoid(step)

    def _seconds(self, worker: int, calls: Calls) -> float:
        model = self._model.devices[worker]
        times = [model.kernel_seconds(kind, shapes, self._dtype) for kind, shapes in calls]
        issuing = model.issue_seconds * len(times)
        # A GPU's host issues the next calls while it works.
        return max(sum(times), issuing) if model.kind == "gpu" else sum(times) + issuing

    def panel(self, start: int, nb: int) -> float:
        """Return the time to factor the tile column at `start` and to send it to the owners."""
        step, model, owners, height = self._step, self._model, self._owners, self._m - start
        at = owners[0] if self._panel_worker is None else self._panel_worker
        factor, finish = self._panel_calls(start, nb)
        seconds = self._seconds(at, factor) + self._seconds(owners[0], finish)
        itemsize, device = self._dtype.itemsize, model.devices[owners[0]]
        if self._panel_worker is not None:
            nbytes = step.travels(height, nb) * itemsize
            seconds += 2 * model.transfer_seconds(nbytes, owners[0], at, private=True)
        elif len(owners) > 1:
            seconds += model.transfer_seconds(height * nb * itemsize, owners[0], owners[1])
        elif device.kind == "gpu":
            # Beside the update of the same GPU.
            seconds *= device.overlap(factor[0][0], nb).slowdown
        return seconds

    def _panel_calls(self, start: int, nb: int) -> tuple[Calls, Calls]:
        """Return the kernels of a panel, and those that its owner adds; none after the last one."""
        factor = self._step.panel(self._m - start, nb)
        if start + nb >= self._width:
            return factor[:1], []
        return factor, self._step.finish(self._m - start, nb)

    def ahead(self, start: int, before: int, nb: int) -> float:
        """Return the time to apply a step of size `before` to the tile column at `start`."""
        height = self._m - start + before
        return self._seconds(self._owners[0], self._step.update(height, before, nb))

    def update(self, start: int, nb: int) -> float:
        """Return the time of the trailing update of the step whose tile begins at `start`."""
        inside, right = self._beyond(start, nb)
        height, beside = self._m - start, self._step.beside or self._step.update

        def update(width: int) -> Calls:
            # Columns all over the matrix are half as tall, on average.
            rows = nb + (height - nb + width) // 2 if self._spread else height
            return self._step.update(rows, nb, width)

        seconds = self._dealt_out(update, inside, nb)
        return seconds + self._dealt_out(lambda width: beside(height, nb, width), right, nb)

    def _beyond(self, start: int, nb: int) -> tuple[int, int]:
        """Return the columns right of a tile for `update`, and those for `beside`."""
        if self._step.beside is None:
            return max(self._width - start - nb, 0), 0
        return self._m - start - nb, self._width - self._m

    def _dealt_out(self, calls: Callable[[int], Calls], columns: int, nb: int) -> float:
        """Return an owner's time for its part of some columns, in calls of limited width."""
        width = -(-columns // len(self._owners))
        if not width:
            return 0.0
        at_once = min(self._neighbours * nb or width, width)
        return self._seconds(self._owners[0], calls(at_once)) * width / at_once


def step_seconds(
    step: Step,
    layout: TileLayout,
    model: MachineModel,
    owners: Sequence[int],
    panel_worker: int | None,
    dtype: Any,
) -> Iterator[tuple[float, float]]:
    """Yield for each step the time of the chain to its panel, and of its trailing update.

    The chain updates one tile column, factors it and brings it to the owners.

    Parameters
    ----------
    layout : TileLayout
        How the matrix is cut.
    step, model, owners, panel_worker, dtype
        As of `StepTimes`.
    """
    times = StepTimes(step, layout.m, layout.width, model, owners, panel_worker, dtype)
    before = 0
    for start, nb in zip(layout.row_starts[: layout.kt], layout.column_widths, strict=False):
        chain = times.panel(start, nb)
        if start:
            chain += times.ahead(start, before, nb)
        yield chain, times.update(start, nb)
        before = nb


def estimate_seconds(
    step: Step,
    layout: TileLayout,
    model: MachineModel,
    owners: Sequence[int],
    panel_worker: int | None,
    dtype: Any,
) -> float:
    """Return the time of a factorization with look-ahead: each step takes its longer part.

    What comes after the last step, as the substitution of a solve, is left out.
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
    """Return how many steps fit into the time in which the columns reach their workers.

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
