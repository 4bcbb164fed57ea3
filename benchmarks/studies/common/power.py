"""Power over time, from counters of joules."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

#: Returns joules since some moment; they only grow.
Joules = Callable[[], float]


class PowerSample(NamedTuple):
    """Power at a time: seconds of `time.perf_counter`, and the mean watts of each counter."""

    when: float
    watts: dict[str, float]


class PowerLog:
    """A thread that reads counters from time to time, while it is entered.

    Parameters
    ----------
    counters : mapping
        Counters by name.
    interval : float
        Seconds between two readings.

    Examples
    --------
    >>> with PowerLog({"CPU": lambda: 50 * time.perf_counter()}, 0.01) as log:
    ...     time.sleep(0.1)
    >>> round(log.samples()[0].watts["CPU"])
    50
    """

    def __init__(self, counters: Mapping[str, Joules], interval: float) -> None:
        self._counters, self._interval = counters, interval
        self._readings: list[tuple[float, dict[str, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _read(self) -> None:
        joules = {name: counter() for name, counter in self._counters.items()}
        self._readings.append((time.perf_counter(), joules))

    def _watch(self) -> None:
        while not self._over.wait(self._interval):
            self._read()

    def __enter__(self) -> Self:
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._over.set()
        self._thread.join()
        self._read()

    @property
    def seconds(self) -> float:
        """Seconds from the first reading to the last one."""
        return self._readings[-1][0] - self._readings[0][0]

    @property
    def joules(self) -> dict[str, float]:
        """The energy of each counter from the first reading to the last one."""
        first, last = self._readings[0][1], self._readings[-1][1]
        return {name: last[name] - first[name] for name in last}

    def samples(self) -> list[PowerSample]:
        """Return the power between each two readings, at the later one's time.

        The last two may be too close to each other for that.
        """
        return [
            PowerSample(after, {name: (now[name] - then[name]) / (after - before) for name in now})
            for (before, then), (after, now) in itertools.pairwise(self._readings)
            if after - before > self._interval / 2
        ]
