"""Times at which a GPU's queues reach marked points, on the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Comparisons of the clocks at a time, and seconds below which one is exact enough.
_TRIES, _GOOD = 4, 20e-6


class GpuStopwatch:
    """Marks of points of streams by CUDA events, which are read when the run is over.

    Parameters
    ----------
    streams : sequence of cupy.cuda.Stream
        The queues' streams, by number, of the current device.
    idle : cupy.cuda.Stream
        A stream of the same device without other work: its events occur at once, even if the
        device is busy.
    """

    def __init__(self, streams: list[Any], idle: Any) -> None:
        self._streams, self._idle = streams, idle
        self._took, self._host, self._origin = self._timed_event()

    def _timed_event(self) -> tuple[float, float, Any]:
        """Return the seconds that an event took, its host time, exact to half of them, and it."""
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
        """Refine the offset between the device's clock and the host's; the device is active.

        Another thread may hold Python's lock just when an event occurs: the quickest of all tries
        is the most exact.
        """
        for _ in range(_TRIES):
            if self._took <= _GOOD:
                return
            found = self._timed_event()
            if found[0] < self._took:
                self._took, self._host, self._origin = found

    def mark(self, queue: int) -> Any:
        """Mark the point that `queue` has reached in its work."""
        return self._event(self._streams[queue])

    def seconds(self, mark: Any) -> float:
        """Return when the device passed a mark, in seconds of `time.perf_counter`; it must have."""
        return self._host + self.between(self._origin, mark)

    def between(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks, to 24 bits, which is CUDA's precision for them."""
        import cupy

        return 1e-3 * float(cupy.cuda.get_elapsed_time(begin, end))


class Stretch:
    """A stretch of the current stream's work, from here to `end`."""

    def __init__(self) -> None:
        self._begin = self._mark()

    @staticmethod
    def _mark() -> Any:
        import cupy

        return cupy.cuda.get_current_stream().record()

    def end(self) -> Callable[[], float]:
        """End the stretch; return what waits for its end, and returns its seconds."""
        import cupy

        end = self._mark()

        def seconds() -> float:
            end.synchronize()
            return 1e-3 * float(cupy.cuda.get_elapsed_time(self._begin, end))

        return seconds
