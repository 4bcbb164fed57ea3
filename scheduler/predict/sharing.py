"""Panels beside updates on one GPU, by the rule of `events`.

In closed form, because the calls of both queues are known beforehand: the ends of the panel's
calls, and the speed that they leave to the updates meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hetero_la.scheduler.machine.device import Overlap


class UpdateCall(NamedTuple):
    """A call of the update queue: when it can start, and its seconds alone."""

    ready: float
    seconds: float


class PanelCall(NamedTuple):
    """A call of the panel queue: when it can start, its seconds alone, and its overlap."""

    ready: float
    seconds: float
    overlap: Overlap = Overlap()


class PanelSpan(NamedTuple):
    """An interval in which a call of the panel queue leaves `speed` to the updates."""

    start: float
    stop: float
    speed: float


class _UpdateQueue:
    """The update queue, advanced step by step."""

    def __init__(self, calls: Iterable[UpdateCall]) -> None:
        self._calls = deque(call for call in calls if call.seconds > 0)
        self._now = -math.inf
        self._left = self._calls[0].seconds if self._calls else 0.0

    @property
    def begins(self) -> float:
        """Time at which the next call begins, or the current one goes on."""
        return max(self._now, self._calls[0].ready) if self._calls else math.inf

    def ends(self, speed: float) -> float:
        """Return the time at which the current call ends at that speed."""
        return self.begins + self._left / speed if speed > 0 else math.inf

    def advance(self, until: float, speed: float) -> None:
        """Advance to a time, at one speed."""
        while self._calls and self.begins <= until:
            stop = self.ends(speed)
            if stop > until:
                self._left -= (until - self.begins) * speed
                break
            self._now = stop
            self._calls.popleft()
            self._left = self._calls[0].seconds if self._calls else 0.0
        self._now = max(self._now, until)


def panel_spans(panel: Sequence[PanelCall], updates: Iterable[UpdateCall]) -> list[PanelSpan]:
    """Return when each call of the panel queue runs beside the given updates.

    Examples
    --------
    >>> work = [PanelCall(1.0, 1.0), PanelCall(0.0, 1.0, Overlap(2.0, 0.25))]
    >>> panel_spans(work, [UpdateCall(0.0, 10.0)])
    [PanelSpan(start=1.0, stop=2.0, speed=0.0), PanelSpan(start=2.0, stop=4.0, speed=0.75)]
    >>> panel_spans(work, [])[-1].stop
    3.0
    """
    queue, now = _UpdateQueue(updates), -math.inf
    spans = []
    for ready, seconds, overlap in panel:
        start = now = max(now, ready)
        queue.advance(now, 1.0)
        speed = 1 - overlap.share
        left = seconds
        while left > 0:
            busy = queue.begins <= now
            rate = 1 / overlap.slowdown if busy else 1.0
            change = queue.ends(speed) if busy else queue.begins
            stop = now + left / rate
            left = left - (change - now) * rate if change < stop else 0.0
            now = min(stop, change)
            queue.advance(now, speed)
        spans.append(PanelSpan(start, now, speed))
    return spans


def update_end(start: float, seconds: float, slowed: Iterable[PanelSpan]) -> float:
    """Return the end of an update that begins at `start` and would take `seconds` alone.

    Examples
    --------
    >>> update_end(0.0, 3.0, [PanelSpan(1.0, 2.0, 0.0), PanelSpan(2.0, 12.0, 0.5)])
    6.0
    """
    for begin, end, speed in slowed:
        if end <= start:
            continue
        alone = max(begin - start, 0.0)
        if seconds <= alone:
            break
        seconds, start = seconds - alone, max(start, begin)
        if seconds <= (end - start) * speed:
            return start + seconds / speed
        seconds, start = seconds - (end - start) * speed, end
    return start + seconds
