"""Clocks of studies: samples of the seconds of a call, on the host or on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = Callable[[], Any]
#: Returns the seconds that so many calls in a row take.
Clock = Callable[[Call, int], float]

_MOST_CALLS = 10_000
#: Times the clock that a sample at least takes.
SAMPLES, LEAST = 7, 5e-3


def host_clock(call: Call, calls: int) -> float:
    """Return the seconds of calls until the last one has returned.

    Examples
    --------
    >>> 0.02 <= host_clock(lambda: time.sleep(0.01), 2) < 1
    True
    """
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - began


def gpu_clock(call: Call, calls: int) -> float:
    """Return the seconds that the current GPU spends on what calls enqueue, without gaps if it can.

    CUDA's events before the first and after the last call are its clock.
    """
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return 1e-3 * float(cupy.cuda.get_elapsed_time(begin, end))


def synchronous_clock(call: Call, calls: int) -> float:
    """Return the seconds of calls, of which each is waited for before the next."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        call()
        stream.synchronize()
    return time.perf_counter() - began


def samples(
    call: Call, clock: Clock = host_clock, count: int = SAMPLES, least: float = LEAST
) -> list[float]:
    """Return samples of the seconds of one call.

    Each is the mean of as many calls in a row as take at least `least` seconds; the first calls
    are warm-up and are not counted.

    Examples
    --------
    >>> len(samples(lambda: None, count=3, least=1e-4))
    3
    """
    calls = _calls(call, clock, least)
    return [clock(call, calls) / calls for _ in range(count)]


def _calls(call: Call, clock: Clock, least: float) -> int:
    """Warm up; return the number of calls that take so many seconds, about."""
    clock(call, 1)
    return min(max(int(least / max(clock(call, 1), 1e-9)), 1), _MOST_CALLS)


def in_turns(
    contenders: Mapping[str, Call], clock: Clock = host_clock, count: int = SAMPLES
) -> dict[str, list[float]]:
    """Return samples of contenders, which take turns: drift of the machine hits each alike.

    Examples
    --------
    >>> {name: len(found) for name, found in in_turns({"a": int, "b": list}, count=2).items()}
    {'a': 2, 'b': 2}
    """
    calls = {name: _calls(call, clock, LEAST) for name, call in contenders.items()}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(count):
        for name, call in contenders.items():
            found[name].append(clock(call, calls[name]) / calls[name])
    return found


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the entries of a row for samples: their median, least, most and number.

    Examples
    --------
    >>> spread([3.0, 1.0, 2.0])
    {'seconds': 2.0, 'least': 1.0, 'most': 3.0, 'samples': 3}
    """
    return {
        "seconds": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "samples": len(seconds),
    }
