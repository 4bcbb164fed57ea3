"""When a GPU's queues reach which point, on the host's clock."""

from __future__ import annotations

import time
from typing import Any


class GpuStopwatch:
    """Marks points of streams by CUDA events, which are read when the run is over.

    Parameters
    ----------
    streams : sequence of cupy.cuda.Stream
        The queues' streams, by number, of the device that is current.
    """

    def __init__(self, streams: list[Any]) -> None:
        self._streams = streams
        self._origin = self._event(streams[0])
        self._origin.synchronize()
        self._host = time.perf_counter()  # late by the wake-up of a thread, some microseconds

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
