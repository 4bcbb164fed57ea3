"""Probes of kernels over grids of their sizes, on all workers of a kind at once.

CPU workers share caches, memory bandwidth and the clock of a processor with many busy cores, so
each is measured while the others do the same.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from hetero_la.scheduler.machine.rate_tables import KernelRates, RateTable
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.kernel_cases import Axes, KernelCase

#: Number of rounds over all points: other load on the machine then slows down no more than a part
#: of the samples of one point.
_ROUNDS = 3
#: Seconds within which every worker has to reach the next point.
_BARRIER_SECONDS = 120.0


def measure_kernels(
    probes: Sequence[Probe],
    wanted: Mapping[str, Axes],
    report: Callable[[str], None] = lambda kind: None,
) -> KernelRates:
    """Measure kernels on several devices of a kind at once.

    Parameters
    ----------
    probes : sequence of Probe
        One for each device.
    wanted : mapping of str to tuple
        Kernels, and the sizes at which to measure them.
    report : callable, optional
        Called with each kernel's name before it is measured, in each of several rounds.
    """
    found: dict[str, list[list[float]]] = {}
    for _ in range(_ROUNDS):
        for kind, axes in wanted.items():
            report(kind)
            points = list(itertools.product(*axes))
            make = functools.partial(KernelCase, kind=kind, axes=axes)
            samples = sample_together(probes, make, KernelCase.samples, points)
            known = found.setdefault(kind, [[] for _ in points])
            found[kind] = [old + new for old, new in zip(known, samples, strict=True)]
    return KernelRates(tuple(_table(kind, axes, found[kind]) for kind, axes in wanted.items()))


def sample_together(
    probes: Sequence[Probe],
    make: Callable[[Probe], Any],
    measure: Callable[[Any, Any], list[float]],
    points: Sequence[Any],
) -> list[list[float]]:
    """Return samples of all devices at each of several points, each measured by all at once.

    Parameters
    ----------
    probes : sequence of Probe
        One for each device.
    make : callable
        Prepares the measurement on one device.
    measure : callable
        Given the result of `make` and a point, returns samples.
    points : sequence
        Second arguments of `measure`.

    Raises
    ------
    TimeoutError
        If a device does not reach the next point within minutes.
    """
    barrier = threading.Barrier(len(probes), timeout=_BARRIER_SECONDS)

    def work(probe: Probe) -> list[list[float]]:
        found = []
        try:
            with probe.device.activate():
                prepared = make(probe)
                for point in points:
                    barrier.wait()
                    found.append(measure(prepared, point))
        except BaseException:
            barrier.abort()
            raise
        return found

    with ThreadPoolExecutor(len(probes), thread_name_prefix="probe") as pool:
        futures = [pool.submit(work, probe) for probe in probes]
        try:
            wait(futures)
        except BaseException:  # Ctrl-C
            barrier.abort()
            raise
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        # The first real error counts, not those of the devices that waited for the failed one.
        real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
        raise (
            real[0] if real else TimeoutError(f"a device took longer than {_BARRIER_SECONDS:.0f} s")
        )
    results = [future.result() for future in futures]
    return [list(itertools.chain(*samples)) for samples in zip(*results, strict=True)]


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the interquartile range over it.

    Examples
    --------
    >>> median_and_spread([1.0, 2.0, 3.0, 4.0, 5.0])
    (3.0, 0.6667)
    """
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, round((high - low) / middle, 4)


def _table(kind: str, axes: Axes, found: list[list[float]]) -> RateTable:
    seconds, spreads = zip(*map(median_and_spread, found), strict=True)
    return RateTable(kind, axes, seconds, spreads)
