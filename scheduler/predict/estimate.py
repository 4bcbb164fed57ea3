"""Quick estimates of a right-looking factorization, from panel to panel, without a graph.

From the moment at which one panel is there, its trailing update runs beside what leads to the
next panel: that tile column is brought up to date, and factored.  So the time from panel to
panel depends on where the next tile begins, on its size, and on that of the one before.
`simulate` has what is left out: who owns which column, when the host issues calls, copies and Dask.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.graph.step_kernels import Build, Call, StepKernels, Tile
from hetero_la.scheduler.machine.device import DeviceModel, Overlap
from hetero_la.scheduler.machine.model import MachineModel, Source
from hetero_la.scheduler.placement.placement import panels_alone
from hetero_la.scheduler.predict.sharing import PanelCall, UpdateCall, panel_spans, update_end
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout


class Panel(NamedTuple):
    """Times of one panel, in seconds.

    Attributes
    ----------
    tile : Tile
        Its diagonal tile.
    factor : float
        Its factorization: on a GPU, of kernels too narrow to fill it.
    overlap : Overlap
        What its first kernel and an update of the same GPU do to each other.
    finish : float
        What its owner adds to that.
    travel : float
        Until all owners have it.
    closing : float
        What comes after the last step for its tile column, shared by all owners, and for
        its rows of right-hand sides.
    issuing : float
        In which a host thread enqueues it, on a GPU.
    """

    tile: Tile
    factor: float
    overlap: Overlap
    finish: float
    travel: float
    closing: float
    issuing: float


class Trailing(NamedTuple):
    """Update of a tile's step on all columns to its right: seconds of one owner, flops of all.

    `issuing` are the seconds in which host threads enqueue it, on all GPUs.
    """

    tile: Tile
    seconds: float
    flops: float
    issuing: float


class Stage(NamedTuple):
    """Seconds from panel to panel, with look-ahead and without."""

    ahead: float
    without: float

    def of(self, lookahead: bool) -> float:
        """Return the seconds of a run with or without look-ahead."""
        return self.ahead if lookahead else self.without


class Stages:
    """Times from panel to panel.

    Parameters
    ----------
    build : callable
        Builder of the graph, from a layout.
    layout : TileLayout
        How the matrix is cut, unless a method is given other tiles.
    model : MachineModel
        Devices and links.
    owners : sequence of int
        Workers that own columns, taken as fast as the first one, unless there are `speeds`.
    panel_worker : int or None
        The worker that factors panels; None for the owners.
    dtype : dtype
        Element type.
    neighbours : int or sequence of int, optional
        How many tile columns of any owner, or of each, one call of an update takes; 0: all of them.
    speeds : sequence of float, optional
        Of the owners, in proportion to which they own columns.  Owners of different speed or device
        are different kinds; `panel`, `trailing` and `stage` are for those like the first one.

    Examples
    --------
    >>> from hetero_la.algorithms.routines import ROUTINES
    >>> from hetero_la.scheduler.machine.device import H200
    >>> layout, model = TileLayout(8192, 8192, 512), MachineModel((H200,))
    >>> stages = Stages(ROUTINES["lu"].tasks, layout, model, [0], None, "float64")
    >>> stages.seconds() < stages.seconds([2048] * 4)
    True
    """

    def __init__(
        self, build: Build, layout: TileLayout, model: MachineModel, owners: Sequence[int],
        panel_worker: int | None, dtype: Any, neighbours: int | Sequence[int] = 0,
        speeds: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self._steps, self.layout, self._dtype = StepKernels.of(build), layout, np.dtype(dtype)
        self.model, self._owners, self._panel_worker = model, owners, panel_worker
        merged = [neighbours] * len(owners) if isinstance(neighbours, int) else neighbours
        self._neighbours = merged[0]
        #: Columns that are factored in blocks of several panels, and of one such block.
        self._blocked, self._block = layout.row(layout.blocked), layout.row(layout.block(0)[1])
        #: Whether what an owner updates gets shorter from column to column.
        self._spread = len(owners) > 1 and self._steps.trapezoid
        #: The part of the columns that the first owner has, and that all those like it have.
        self._share, self._part = 1 / len(owners), 1.0
        #: Whether an owner's update waits for its own panel.
        kinds = [model.devices[g].kind for g in owners]
        self._panels_alone = panels_alone(kinds, panel_worker)
        #: Host threads that enqueue for owners.
        self._threads = sum(not set(team).isdisjoint(owners) for team in model.host_threads())
        self._kinds = [self]
        equals = _kinds([model.devices[g] for g in owners], speeds) if speeds else []
        if len(equals) > 1:
            self._kinds = [self._of_kind(places, speeds, merged) for places in equals]

    def _of_kind(
        self, places: Sequence[int], speeds: Sequence[float], merged: Sequence[int]
    ) -> Stages:
        """Return the stages for owners that are alike, given their places among the owners."""
        own = [self._owners[place] for place in places]
        kind = copy.copy(self)
        # What goes to others is as late as where it goes to another kind.
        kind._owners = [own[0], *(g for g in self._owners if g not in own), *own[1:]]
        kind._neighbours = merged[places[0]]
        kind._share = speeds[places[0]] / sum(speeds)
        kind._part = kind._share * len(own)
        return kind

    def _seconds(self, calls: Sequence[Call], worker: int | None = None) -> float:
        """Return the time of calls on a worker, by default on an owner of columns."""
        model = self.model.devices[self._owners[0] if worker is None else worker]
        times = [model.kernel_seconds(kind, shapes, self._dtype) for kind, shapes in calls]
        # A GPU's host issues the next calls while it works.
        issuing = model.issue_seconds * len(times) if model.kind == "cpu" else 0.0
        return sum(times) + issuing

    def _issuing(self, calls: Sequence[Call]) -> float:
        """Return the seconds in which a host thread enqueues calls on a GPU."""
        model = self.model.devices[self._owners[0]]
        if model.kind == "cpu":
            return 0.0
        enqueuing = sum(model.host_seconds(call.kind, call.shapes) for call in calls)
        return enqueuing + model.issue_seconds * len(calls)

    def tile(self, start: int, nb: int) -> Tile:
        """Return the diagonal tile of size `nb` that begins at `start`."""
        m, n = self.layout.m, self.layout.n
        rows, columns = min(nb, m - start), min(nb, n - start)
        return Tile(start, rows, columns, m - start - rows, n - start - columns)

    def panel(self, tile: Tile) -> Panel:
        """Return the times of the tile column of a tile."""
        calls = self._steps.panel(tile, right_hand_sides=self.layout.nrhs > 0)
        factor = [call for call in calls if SPECS[call.kind].chain]
        finish = [call for call in calls if not SPECS[call.kind].chain]
        chain, own = self._steps.closing(tile)
        device, overlap = self.model.devices[self._owners[0]], Overlap()
        if factor and device.kind == "gpu":
            overlap = device.overlap(factor[0].kind, self._updating(tile).columns)
        # Without a factorization, the factors are given.
        travel = self._travel_seconds(tile, factor, finish) if factor else 0.0
        closing = self._seconds([*chain, *own]) * self._share
        if nrhs := self.layout.nrhs:
            columns = max(nrhs - tile.start * self._steps.begins_late(tile), 0)
            closing += self._dealt_out(partial(self._steps.substitution, tile), columns, tile)
        seconds = self._seconds(factor, self._panel_worker)
        issuing = self._issuing([*calls, *chain, *own])
        return Panel(tile, seconds, overlap, self._seconds(finish), travel, closing, issuing)

    def _travel_seconds(self, tile: Tile, factor: Sequence[Call], finish: Sequence[Call]) -> float:
        """Return the time to send a panel to other owners, and to the panel worker and back."""
        model, owners, at, seconds = self.model, self._owners, self._panel_worker, 0.0
        itemsize = self._dtype.itemsize
        if at is not None:
            nbytes = math.prod(factor[0].shapes[0]) * itemsize
            seconds += 2 * model.transfer_seconds(nbytes, owners[0], at, private=True)
        if len(owners) > 1 and (finish or at is None):  # or else it comes from the panel worker
            nbytes = (self.layout.m - tile.start) * tile.columns * itemsize
            others = len(owners) - 1
            seconds += model.transfer_seconds(nbytes, owners[0], owners[1], receivers=others)
        return seconds

    def trailing(self, tile: Tile) -> Trailing:
        """Return the trailing update of a tile's step."""
        own, tile = tile, self._updating(tile)
        inside, right = tile.beyond, self.layout.nrhs
        if right and self._steps.rides_along(tile):
            inside, right = tile.beyond + right, 0

        def update(width: int) -> list[Call]:
            # Columns all over the matrix are half as tall, on average.
            above = tile.below - (tile.below + width) // 2 if self._spread else 0
            return self._steps.update(tile, width, above)

        beside = partial(self._steps.beside, tile)
        seconds = self._dealt_out(update, inside, tile) + self._dealt_out(beside, right, tile)
        calls = self._steps.update(tile, inside)
        flops = _flops(calls + beside(right) if right else calls)
        part = own.columns / tile.columns
        issuing = len(self._owners) * self._issuing(calls)
        return Trailing(own, part * seconds, part * flops, part * issuing)

    def _updating(self, tile: Tile) -> Tile:
        """Return the tile of a whole block of panels, if their updates are done at once."""
        if tile.start >= self._blocked:
            return tile
        return self.tile(tile.start // self._block * self._block, self._block)

    def _dealt_out(self, calls: Callable[[int], list[Call]], columns: int, tile: Tile) -> float:
        """Return an owner's time for its part of some columns, in calls of limited width."""
        width = math.ceil(columns * self._share)
        if not width:
            return 0.0
        at_once = min(self._neighbours * tile.columns or width, width)
        return self._seconds(calls(at_once)) * width / at_once

    def stage(self, trailing: Trailing | None, panel: Panel) -> Stage:
        """Return the time from the panel before, whose update is given, to this one."""
        chain, load, alone = self._chain_and_load(trailing, panel)
        return Stage(max(chain, load) + panel.closing, alone + panel.closing)

    def _chain_and_load(
        self, trailing: Trailing | None, panel: Panel
    ) -> tuple[float, float, float]:
        """Return the times until a panel is there, of all that an owner does, and of one by one.

        An owner's host thread may take longer to enqueue it all.
        """
        first, rest, lost, factor = panel.finish, 0.0, 0.0, panel.factor
        issuing = panel.issuing
        if trailing is not None:
            calls = self._steps.update(trailing.tile, panel.tile.columns)
            first += self._seconds(calls)
            rest = trailing.seconds * max(1 - _flops(calls) / max(trailing.flops, 1.0), 0.0)
            issuing += self._issuing(calls) + trailing.issuing
        alone = first + factor + panel.travel + rest
        if self._panel_worker is None and not self._panels_alone:
            # On a GPU, the update goes on beside the panel; on a CPU, it is put off.
            (span,) = panel_spans([PanelCall(0.0, factor, panel.overlap)], [UpdateCall(0.0, rest)])
            factor, lost = span.stop, update_end(0.0, rest, [span]) - rest
        elif self._panels_alone:
            lost = factor
        load = max(rest + (first + lost) * self._share, issuing / self._threads)
        return first + factor + panel.travel, load, alone

    def seconds(self, sizes: Iterable[int] = (), every: int = 1) -> float:
        """Return the time of a run with look-ahead, with tiles of these sizes.

        It is summed over one stage of so many, which stands for its neighbours.
        """
        tiles, start = list[Tile](), 0
        for nb in sizes:
            tiles.append(self.tile(start, nb))
            start += nb
        tiles = tiles or self._own_tiles()
        stages = list(self._stages(tiles, every=every))
        return sum(stages) * (len(tiles) + 1) / len(stages)

    def _own_tiles(self) -> list[Tile]:
        return [Tile.of(self.layout, k) for k in range(self.layout.kt)]

    def _stages(self, tiles: Sequence[Tile], part: float = 1.0, every: int = 1) -> Iterator[float]:
        """Yield the times from panel to panel, and of the last update, or one of so many.

        With `part`, only that part of the columns is there to be updated.
        """
        pairs = list(zip([None, *tiles], [*tiles, None], strict=True))
        for before, tile in pairs[every // 2 :: every]:
            updates = [kind._partial(before, part) for kind in self._kinds]
            if not tile:
                yield max(update.seconds if update else 0.0 for update in updates)
                continue
            panels = [kind.panel(tile) for kind in self._kinds]
            times = [
                kind._chain_and_load(update, panel)
                for kind, update, panel in zip(self._kinds, updates, panels, strict=True)
            ]
            load = max(load for _, load, _ in times)
            # Each panel has an owner of one kind; meanwhile all owners do their parts.
            yield max(panel.closing for panel in panels) + sum(
                kind._part * max(chain, load)
                for kind, (chain, _, _) in zip(self._kinds, times, strict=True)
            )

    def _partial(self, tile: Tile | None, part: float) -> Trailing | None:
        if tile is None:
            return None
        trailing = self.trailing(tile)
        return trailing._replace(seconds=part * trailing.seconds, issuing=part * trailing.issuing)

    def elements_loaded(self) -> list[int]:
        """Return how many elements of each tile column are copied to a GPU, and back."""
        layout = self.layout
        inside = layout.nt if self._steps.trapezoid else 0  # columns from their diagonal tiles down
        return [
            width * (layout.m - (layout.row(j) if j < inside else 0))
            for j, width in enumerate(layout.column_widths)
        ]

    def steps_while_loading(self, source: Source = "row-major") -> int:
        """Return how many steps fit into the time in which the columns reach their workers.

        On average half of the columns are there meanwhile.  `source` is as for
        `MachineModel.host_seconds`.
        """
        layout, nbytes = self.layout, sum(self.elements_loaded()) * self._dtype.itemsize
        left = max(
            self.model.host_seconds(nbytes * kind._share, kind._owners[0], source=source)
            for kind in self._kinds
        )
        stages = self._stages(self._own_tiles(), 0.5)
        for k, seconds in zip(range(1, layout.kt), stages, strict=False):
            left -= seconds
            if left <= 0:
                return k
        return layout.kt


def _kinds(devices: Sequence[DeviceModel], speeds: Sequence[float]) -> list[list[int]]:
    """Return the places of those of equal speed and device."""
    found: list[list[int]] = []
    for place, (device, speed) in enumerate(zip(devices, speeds, strict=True)):
        for places in found:
            if speed == speeds[places[0]] and device == devices[places[0]]:
                places.append(place)
                break
        else:
            found.append([place])
    return found


def _flops(calls: Iterable[Call]) -> float:
    return sum(SPECS[kind].flops(shapes) for kind, shapes in calls)
