"""When a GPU's queues reach which point, on the host's clock."""

from __future__ import annotations

import time
from typing import Any

_TRIES = 4


class GpuStopwatch:
    """Marks points of streams by CUDA events, which are read when the run is over.

    Parameters
    ----------
    streams : sequence of cupy.cuda.Stream
        The queues' streams, by number, of the device that is current.
    idle : cupy.cuda.Stream
        One of the same device that is given nothing else.
    """

    def __init__(self, streams: list[Any], idle: Any) -> None:
        self._streams, self._idle = streams, idle
        self._origin = self._event(idle)
        self._took, self._offset = float("inf"), 0.0

    @staticmethod
    def _event(stream: Any) -> Any:
        import cupy

        event = cupy.cuda.Event()
        event.record(stream)
        return event

    def _since_origin(self, mark: Any) -> float:
        import cupy

        return 1e-3 * float(cupy.cuda.get_elapsed_time(self._origin, mark))

    def compare_clocks(self) -> None:
        """Find what the host's clock is ahead of the device's; the device may be at work.

        Another thread may have Python's lock just when an event has come: the quickest of
        all tries tells best when that was.
        """
        for _ in range(_TRIES):
            before = time.perf_counter()
            event = self._event(self._idle)
            event.synchronize()
            after = time.perf_counter()
            if after - before < self._took:
                self._took = after - before
                self._offset = (before + after) / 2 - self._since_origin(event)

    def mark(self, queue: int) -> Any:
        """The point that `queue` has reached in what it was given."""
        return self._event(self._streams[queue])

    def seconds(self, mark: Any) -> float:
        """When the device was there, in seconds of `time.perf_counter`; it must have been.

        That is the host's clock once the two have been compared, and else the device's own.
        """
        return self._offset + self._since_origin(mark)
