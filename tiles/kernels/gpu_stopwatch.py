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
    """

    def __init__(self, streams: list[Any]) -> None:
        self._streams = streams
        # Another thread may have Python's lock just when the event has come: the quickest of
        # some tries tells best when that was.
        tries = [self._try() for _ in range(_TRIES)]
        _, self._host, self._origin = min(tries, key=lambda found: found[0])

    def _try(self) -> tuple[float, float, Any]:
        """Seconds that an event took, when it was, to within half of that, and the event."""
        before = time.perf_counter()
        event = self._event(self._streams[0])
        event.synchronize()
        after = time.perf_counter()
        return after - before, (before + after) / 2, event

    @staticmethod
    def _event(stream: Any) -> Any:
        import cupy

        event = cupy.cuda.Event()
        event.record(stream)
        return event

    def mark(self, queue: int) -> Any:
        """The point that `queue` has reached in what it was given."""
        return self._event(self._streams[queue])

    def seconds(self, mark: Any) -> float:
        """When the device was there, in seconds of `time.perf_counter`; it must have been."""
        import cupy

        return self._host + 1e-3 * float(cupy.cuda.get_elapsed_time(self._origin, mark))
