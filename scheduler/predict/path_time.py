"""Times with the parts of the longest chain of waits that leads to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Kinds of time in a chain of waits.
PARTS = ("panel", "look-ahead update", "trailing update", "network", "links in a node", "end")
PANEL, AHEAD, UPDATE, NETWORK, LINKS, END = range(len(PARTS))


class PathTime(NamedTuple):
    """A time, and the parts of the longest chain of waits to it, which add up to that time."""

    time: float
    parts: np.ndarray

    def after(self, seconds: float, part: int) -> PathTime:
        """Return the time `seconds` later, by a wait of kind `part`."""
        parts = self.parts.copy()
        parts[part] += seconds
        return PathTime(self.time + seconds, parts)


class Arrival(NamedTuple):
    """Arrival of a panel: the time at which it is sent, and the time on each worker.

    `network_share` is the network's fraction of the way to each worker, between 0 and 1.
    """

    sent: PathTime
    times: np.ndarray
    network_share: np.ndarray

    def on_worker(self, worker: int) -> PathTime:
        """Return the time of arrival on one worker."""
        waited = float(self.times[worker]) - self.sent.time
        share = float(self.network_share[worker])
        return self.sent.after(waited * share, NETWORK).after(waited * (1 - share), LINKS)


#: Begin of a run.
BEGINNING = PathTime(0.0, np.zeros(len(PARTS)))
