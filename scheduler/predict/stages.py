"""Time from one tile's step to the next one's, for a search of tile sizes.

A run with look-ahead goes from panel to panel.  From the moment at which one panel is there,
its trailing update runs beside what leads to the next panel: that tile column is brought up
to date, and factored.  So a stage of the run, from panel to panel, depends on where the next
tile begins, on its size, and on the size of the one before.  `simulate` has what is left out:
who owns which column, the host's time to issue calls, copies and Dask.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hetero_la.scheduler.graph.step_kernels import Call, Tile
from hetero_la.scheduler.machine.device import Overlap
from hetero_la.scheduler.predict.estimate import StepTimes
from hetero_la.scheduler.predict.sharing import overlapped
from hetero_la.tiles.kernels.spec import SPECS


class Panel(NamedTuple):
    """Times of one panel, in seconds.

    Attributes
    ----------
    factor : float
        Its factorization: on a GPU, of kernels too narrow to fill it.
    overlap : Overlap
        What its first kernel and an update of the same GPU do to each other.
    finish : float
        What its owner adds to that.
    travel : float
        Until the other owners have it.
    closing : float
        What comes after the last step for its tile column, shared by all owners, and for
        its rows of right-hand sides.
    """

    factor: float
    overlap: Overlap
    finish: float
    travel: float
    closing: float


class Trailing(NamedTuple):
    """Update of a step on all columns to its right: seconds of one owner, flops of all."""

    seconds: float
    flops: float


class Stage(NamedTuple):
    """Seconds from panel to panel, with look-ahead and without."""

    ahead: float
    without: float

    def of(self, lookahead: bool) -> float:
        """Return the seconds of a run with or without look-ahead."""
        return self.ahead if lookahead else self.without


class Stages(StepTimes):
    """Times of stages; panels are factored by the owners of their columns.

    Parameters are those of `StepTimes`.

    Examples
    --------
    >>> from hetero_la.algorithms.routines import ROUTINES
    >>> from hetero_la.scheduler.machine.model import MachineModel
    >>> from hetero_la.scheduler.machine.device import H200
    >>> model = MachineModel((H200,))
    >>> stages = Stages(ROUTINES["lu"].tasks, 8192, 8192, 0, model, [0], None, "float64")
    >>> stages.seconds([512] * 16) < stages.seconds([2048] * 4)
    True
    """

    def _tile(self, start: int, nb: int) -> Tile:
        rows, columns = min(nb, self._m - start), min(nb, self._n - start)
        return Tile(start, rows, columns, self._m - start - rows, self._n - start - columns)

    def panel_times(self, start: int, nb: int) -> Panel:
        """Return the times of the tile column that begins at `start`."""
        tile, owners = self._tile(start, nb), self._owners
        factor, finish = self._panel_calls(tile)
        travel = self._travel_seconds(tile) if len(owners) > 1 else 0.0
        chain, own = self._steps.closing(tile)
        closing = self._seconds(owners[0], [*chain, *own]) / len(owners) + self.substitution(tile)
        device = self._model.devices[owners[0]]
        overlap = device.overlap(factor[0].kind, nb) if factor else Overlap()
        seconds = self._seconds(owners[0], factor)
        return Panel(seconds, overlap, self._seconds(owners[0], finish), travel, closing)

    def trailing(self, start: int, nb: int) -> Trailing:
        """Return the trailing update of the step whose tile begins at `start`."""
        tile = self._tile(start, nb)
        inside, right = self._right_of(tile)
        calls = self._steps.update(tile, inside)
        if right:
            calls += self._steps.beside(tile, right)
        return Trailing(self.update(tile), _flops(calls))

    def stage(self, start: int, before: int, nb: int, panel: Panel, trailing: Trailing) -> Stage:
        """Return the time from the panel before, of size `before`, to the one at `start`."""
        if not before:
            only = panel.factor + panel.finish + panel.travel + panel.closing
            return Stage(only, only)
        calls = self._steps.update(self._tile(start - before, before), nb)
        first = self._seconds(self._owners[0], calls) + panel.finish
        rest = trailing.seconds * max(1 - _flops(calls) / max(trailing.flops, 1.0), 0.0)
        device, owners = self._model.devices[self._owners[0]], len(self._owners)
        factor, lost = panel.factor, 0.0
        if device.kind == "gpu":
            # What fills the GPU stops the update, and what does not slows it down.
            factor, lost = overlapped(panel.factor, panel.overlap, rest)
            load = rest + (first + lost) / owners
        else:
            load = rest + (first + factor) / owners
        chain = first + factor + panel.travel
        alone = first + panel.factor + panel.travel + rest
        return Stage(max(chain, load) + panel.closing, alone + panel.closing)

    def seconds(self, sizes: Iterable[int]) -> float:
        """Return the time of a run with look-ahead, with tiles of these sizes."""
        total, start, before = 0.0, 0, 0
        trailing = Trailing(0.0, 0.0)
        for nb in sizes:
            panel = self.panel_times(start, nb)
            total += self.stage(start, before, nb, panel, trailing).ahead
            trailing = self.trailing(start, nb)
            start, before = start + nb, nb
        return total + trailing.seconds


def _flops(calls: Iterable[Call]) -> float:
    return sum(SPECS[kind].flops(shapes) for kind, shapes in calls)
