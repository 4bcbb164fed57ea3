"""Speed of a GPU under sustained load, relative to its full clock.

Large products in a row draw more power than a GPU may draw for long, so that it lowers its clock
after a fraction of a second.  Kernels are measured in shorter bursts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.tiles.kernels.device import Queue

#: Order and inner size of the products, their duration, and the pause before them, in seconds.
_EDGE, _INNER, _LOADED, _REST = 16384, 512, 1.5, 1.0
#: Relative changes of speed that are noise, and products over which a median is taken.
_NOISE, _WINDOW = 0.02, 5
#: A product that takes longer than others by this factor has waited for another process.
_STALL = 1.5


class Clock(NamedTuple):
    """Speed of a device over a long run.

    Attributes
    ----------
    burst : float
        Seconds of load for which it keeps its full speed.
    sustained : float
        Fraction of the full speed after that.
    """

    burst: float
    sustained: float


def measure_clock(probe: Probe) -> Clock:
    """Time products on the current GPU after a pause, and return `fit_clock` of them."""
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
    """Fit full speed at first, and less from some time on, to the times of equal products.

    Parameters
    ----------
    marks : sequence of float
        Start of the first product, and end of each; there are many.

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
    # Further drops of the clock count, but not the time for which another process had the GPU.
    after = [min(seconds, _STALL * late) for seconds in taken[last:]]
    return Clock(marks[last] - marks[0], full / statistics.mean(after))
