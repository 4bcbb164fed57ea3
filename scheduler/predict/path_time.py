"""Times that know what the longest chain of waits to them consists of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: What a chain of waits consists of.
PARTS = ("panel", "look-ahead update", "trailing update", "network", "links in a node", "end")
PANEL, AHEAD, UPDATE, NETWORK, LINKS, END = range(len(PARTS))


class Moment(NamedTuple):
    """A time, and what the longest chain to it consists of; together they are equal."""

    at: float
    parts: np.ndarray

    def after(self, seconds: float, part: int) -> Moment:
        """What is there `seconds` later, for this reason."""
        parts = self.parts.copy()
        parts[part] += seconds
        return Moment(self.at + seconds, parts)


class Arrival(NamedTuple):
    """When a panel is where: the moment it is sent, and each worker's time.

    `far` is the part of that way, between 0 and 1, that is the network's.
    """

    sent: Moment
    at: np.ndarray
    far: np.ndarray

    def moment(self, worker: int) -> Moment:
        """When it is there on one worker."""
        waited, far = float(self.at[worker]) - self.sent.at, float(self.far[worker])
        return self.sent.after(waited * far, NETWORK).after(waited * (1 - far), LINKS)


#: Of a run.
BEGINNING = Moment(0.0, np.zeros(len(PARTS)))
