"""Times with the parts of the longest chain of waits that leads to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Kinds of time in a chain of waits.
PARTS = ("panel", "look-ahead update", "trailing update", "network", "links in a node", "end")
PANEL, AHEAD, UPDATE, NETWORK, LINKS, END = range(len(PARTS))


class Moment(NamedTuple):
    """A time, and the parts of the longest chain of waits to it, which add up to that time."""

    at: float
    parts: np.ndarray

    def after(self, seconds: float, part: int) -> Moment:
        """Return the time `seconds` later, by a wait of kind `part`."""
        parts = self.parts.copy()
        parts[part] += seconds
        return Moment(self.at + seconds, parts)


class Arrival(NamedTuple):
    """Arrival of a panel: the time at which it is sent, and the time on each worker.

    `network_share` is the network's fraction of the way to each worker, between 0 and 1.
    """

    sent: Moment
    at: np.ndarray
    far: np.ndarray

    def moment(self, worker: int) -> Moment:
        """Return the time of arrival on one worker."""
        waited, far = float(self.at[worker]) - self.sent.at, float(self.far[worker])
        return self.sent.after(waited * far, NETWORK).after(waited * (1 - far), LINKS)


#: Begin of a run.
BEGINNING = Moment(0.0, np.zeros(len(PARTS)))
