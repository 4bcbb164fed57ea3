"""The matrix through time: the task that last began to change each tile."""

from __future__ import annotations

import numpy as np

from hetero_la.pictures.palette import families, family
from hetero_la.pictures.runs.recording import Recording

#: Colours of tiles that no task has changed yet, and of those that none will change any more.
EMPTY, DONE = (0xF4, 0xF4, 0xF4), (0xC3, 0xC9, 0xD1)
#: Part of a kernel's colour on a tile at work, just after, and long after.
_AT_WORK, _AFTER, _PALE = 1.0, 0.75, 0.28


class TileStates:
    """States of the tiles of a run; times that are asked for must not decrease.

    Parameters
    ----------
    run : Recording
        The run.

    Examples
    --------
    >>> import hetero_la
    >>> run = hetero_la.plan("cholesky", (300, 300), nb=100).predicted_recording()
    >>> states = TileStates(run)
    >>> states.at(run.seconds).tolist()
    [[0, -1, -1], [2, 5, -1], [2, 7, 9]]
    """

    def __init__(self, run: Recording) -> None:
        self._run = run
        layout = run.graph.layout
        self._states = np.full((layout.mt, layout.nt + layout.rt), -1)
        self._order = np.argsort(run.task_spans[:, 0], kind="stable")
        self._begun = 0
        self.last = self.at(np.inf).copy()
        self._states.fill(-1)
        self._begun = 0

    def at(self, time: float) -> np.ndarray:
        """Return the number of the task that last began on each tile, or -1."""
        starts = self._run.task_spans[:, 0]
        while self._begun < len(self._order) and starts[self._order[self._begun]] <= time:
            task = int(self._order[self._begun])
            for region in self._run.written(task):
                self._states[region.start : region.stop, region.index] = task
            self._begun += 1
        return self._states

    def colours(self, time: float, glow: float) -> np.ndarray:
        """Return the colour of each tile: its kernel's, pale once that has ended for `glow`.

        Parameters
        ----------
        time : float
            Seconds from the start of the run.
        glow : float
            Seconds in which a tile fades.

        Returns
        -------
        numpy.ndarray, shape (mt, columns of tiles, 3), uint8
        """
        states = self.at(time)
        if not len(self._order):
            return np.broadcast_to(np.array(EMPTY, np.uint8), (*states.shape, 3))
        kernels = np.array([_rgb(family(task.kind).colour) for task in self._run.graph.tasks])
        since = (time - self._run.task_spans[states, 1]) / glow
        share = _AFTER - (_AFTER - _PALE) * np.clip(since, 0.0, 1.0)
        share[since < 0] = _AT_WORK
        mixed = share[..., None] * kernels[states] + (1 - share[..., None]) * np.array(EMPTY)
        mixed[(since >= 1) & (states == self.last)] = DONE
        mixed[states < 0] = EMPTY
        return mixed.round().astype(np.uint8)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def legend(run: Recording) -> list[tuple[str, str]]:
    """Return role and colour of each family of kernels of a run."""
    kinds = dict.fromkeys(task.kind for task in run.graph.tasks)
    return [(shared.role.value, shared.colour) for shared in families(kinds)]
