"""What part of its speed a GPU keeps under load.

Products without end draw more power than a GPU may draw for long: it lowers its clock
after a fraction of a second.  Kernels are measured in shorter bursts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.tiles.arrays.device import Queue

#: Edge and inner size of the products, how long they go on, and the rest before them.
_EDGE, _INNER, _LOADED, _REST = 16384, 512, 1.5, 1.0
#: Changes of speed by less are noise, and so is what fewer pieces than a window tell.
_NOISE, _WINDOW = 0.02, 5
#: A piece that takes so many times as long as others has waited for something else.
_STALL = 1.5


class Clock(NamedTuple):
    """How a device's speed changes in a long run.

    Attributes
    ----------
    burst : float
        Seconds of load for which it keeps its full speed.
    sustained : float
        What part of it is left after that.
    """

    burst: float
    sustained: float


def measure_clock(probe: Probe) -> Clock:
    """Let a GPU, which has to be the current one, do products after a rest; see `fit_clock`."""
    device, watch = probe.device, probe.device.stopwatch()
    assert watch is not None  # a GPU has one
    product = [probe.array(*shape) for shape in ((_EDGE, _INNER), (_INNER, _EDGE), (_EDGE, _EDGE))]

    def marks(count: int) -> list[float]:
        found = [watch.mark(Queue.UPDATE)]
        for _ in range(count):
            device.call("gemm", Queue.UPDATE, product, probe.options)
            found.append(watch.mark(Queue.UPDATE))
        device.synchronize()
        return [watch.seconds(mark) for mark in found]

    begin, end = marks(2)[1:]
    time.sleep(_REST)
    return fit_clock(marks(max(int(_LOADED / (end - begin)), 20)))


def fit_clock(marks: Sequence[float]) -> Clock:
    """Full speed at first, and less from some moment on: what equal pieces of work tell.

    Parameters
    ----------
    marks : sequence of float
        When the first began, and when each ended; there are many.

    Examples
    --------
    >>> clock = fit_clock([*range(11), *(10 + 1.25 * i for i in range(1, 91))])
    >>> clock.burst, round(clock.sustained, 3)
    (10, 0.8)
    """
    taken = [end - begin for begin, end in itertools.pairwise(marks)]
    full = statistics.median(taken[:_WINDOW])
    late = statistics.median(taken[len(taken) // 2 :])
    half = _WINDOW // 2
    around = [statistics.median(taken[max(i - half, 0) : i + half + 1]) for i in range(len(taken))]
    last = next((i for i, seconds in enumerate(around) if 2 * seconds > full + late), 0)
    if full / late > 1 - _NOISE:
        return Clock(0.0, 1.0)
    # Further dips of the clock count, but not the time for which another process had the GPU.
    after = [min(seconds, _STALL * late) for seconds in taken[last:]]
    return Clock(marks[last] - marks[0], full / statistics.mean(after))
