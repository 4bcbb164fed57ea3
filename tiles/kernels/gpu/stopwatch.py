"""When a GPU's queues reach which point, on the host's clock."""

from __future__ import annotations

import time
from typing import Any

#: Comparisons of the clocks at a time, and seconds that a good one takes at most.
_TRIES, _GOOD = 4, 20e-6


class GpuStopwatch:
    """Marks points of streams by CUDA events, which are read when the run is over.

    Parameters
    ----------
    streams : sequence of cupy.cuda.Stream
        The queues' streams, by number, of the device that is current.
    idle : cupy.cuda.Stream
        One of the same device that is given nothing else: its events come at once, even if
        the device is at work.
    """

    def __init__(self, streams: list[Any], idle: Any) -> None:
        self._streams, self._idle = streams, idle
        self._took, self._host, self._origin = self._try()

    def _try(self) -> tuple[float, float, Any]:
        """Seconds that an event took, when it was, to within half of that, and the event."""
        before = time.perf_counter()
        event = self._event(self._idle)
        event.synchronize()
        after = time.perf_counter()
        return after - before, (before + after) / 2, event

    @staticmethod
    def _event(stream: Any) -> Any:
        import cupy

        event = cupy.cuda.Event()
        event.record(stream)
        return event

    def compare_clocks(self) -> None:
        """Find out better by how much the host's clock is ahead; the device must be active.

        Another thread may have Python's lock just when an event has come: the quickest of
        all tries tells best when that was.
        """
        for _ in range(_TRIES):
            if self._took <= _GOOD:
                return
            found = self._try()
            if found[0] < self._took:
                self._took, self._host, self._origin = found

    def mark(self, queue: int) -> Any:
        """The point that `queue` has reached in what it was given."""
        return self._event(self._streams[queue])

    def seconds(self, mark: Any) -> float:
        """When the device was there, in seconds of `time.perf_counter`; it must have been."""
        return self._host + self.between(self._origin, mark)

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to another: CUDA has 24 bits for them, however many there are."""
        import cupy

        return 1e-3 * float(cupy.cuda.get_elapsed_time(begin, end))
