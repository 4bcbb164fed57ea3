"""Time from one tile's step to the next one's, for a search of tile sizes.

A run with look-ahead goes from panel to panel.  From the moment at which one panel is there,
its trailing update runs beside what leads to the next panel: that tile column is brought up
to date, and factored.  So a stage of the run, from panel to panel, depends on where the next
tile begins, on its size, and on the size of the one before.  `simulate` has what is left out:
who owns which column, the host's time to issue calls, copies, Dask, and what QR does with
its right-hand sides in the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hetero_la.scheduler.machine.device import Overlap
from hetero_la.scheduler.predict.estimate import Calls, StepTimes
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
    >>> stages = Stages(ROUTINES["lu"].step, 8192, 8192, model, [0], None, "float64")
    >>> stages.seconds([512] * 16) < stages.seconds([2048] * 4)
    True
    """

    def panel_times(self, start: int, nb: int) -> Panel:
        """Return the times of the tile column that begins at `start`."""
        factor, finish = self._panel_calls(start, nb)
        owners, height = self._owners, self._m - start
        travel = 0.0
        if len(owners) > 1:
            nbytes = height * nb * self._dtype.itemsize
            travel = self._model.transfer_seconds(nbytes, owners[0], owners[1])
        closing = self._seconds(owners[0], self._step.closing(height, nb)) / len(owners)
        closing += self._dealt_out(
            lambda width: self._step.substitution(start, height, nb, width),
            max(self._width - self._m, 0), nb,
        )  # fmt: skip
        overlap = self._model.devices[owners[0]].overlap(factor[0][0], nb)
        seconds = self._seconds(owners[0], factor)
        return Panel(seconds, overlap, self._seconds(owners[0], finish), travel, closing)

    def trailing(self, start: int, nb: int) -> Trailing:
        """Return the trailing update of the step whose tile begins at `start`."""
        height, (inside, right) = self._m - start, self._beyond(start, nb)
        calls = self._step.update(height, nb, inside)
        if self._step.beside is not None:
            calls += self._step.beside(height, nb, right)
        return Trailing(self.update(start, nb), _flops(calls))

    def stage(self, start: int, before: int, nb: int, panel: Panel, trailing: Trailing) -> Stage:
        """Return the time from the panel before, of size `before`, to the one at `start`."""
        if not before:
            only = panel.factor + panel.finish + panel.travel + panel.closing
            return Stage(only, only)
        calls = self._step.update(self._m - start + before, before, nb)
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


def _flops(calls: Calls) -> float:
    return sum(SPECS[kind].flops(list(shapes)) for kind, shapes in calls)
