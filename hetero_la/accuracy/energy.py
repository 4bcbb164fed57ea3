"""Energy that a run takes: NVML's counters of GPUs, and RAPL's of processors."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: Where Linux shows RAPL's counters.
_RAPL = Path("/sys/class/powercap")


class Counter(NamedTuple):
    """A counter of joules, and the count from which it begins anew, or 0 if it never does."""

    read: Callable[[], float]
    around: float = 0.0


class Meter:
    """Joules since a meter was started, by the counters that can be read.

    The counters are those of whole devices: what else runs there counts, too.

    Parameters
    ----------
    counters : mapping of str to Counter
        By the names of the devices.

    Examples
    --------
    >>> counts = iter([90.0, 4.0])
    >>> Meter({"package-0": Counter(lambda: next(counts), around=100.0)}).joules()
    {'package-0': 14.0}
    """

    def __init__(self, counters: Mapping[str, Counter]) -> None:
        self._counters = counters
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        found = {}
        for name, counter in self._counters.items():
            with contextlib.suppress(Exception):  # of a driver, or of a file for root only
                found[name] = counter.read()
        return found

    def joules(self) -> dict[str, float]:
        """Return the joules of each device since the meter was started."""
        spent = {}
        for name, now in self._read().items():
            if name in self._before:
                count = now - self._before[name]
                spent[name] = count if count >= 0 else count + self._counters[name].around
        return spent


def start_meter() -> Meter:
    """Start a meter of all counters of this machine that can be read."""
    return Meter({**dict(rapl_counters()), **dict(nvml_counters())})


def rapl_counters(folder: Path = _RAPL) -> Iterator[tuple[str, Counter]]:
    """Find the counters of processor packages; parts of a package are in its count.

    Examples
    --------
    >>> list(rapl_counters(Path("no such folder")))
    []
    """
    for zone in sorted(folder.glob("intel-rapl:*")):
        if zone.name.count(":") != 1:
            continue
        try:
            name = (zone / "name").read_text().strip()
            around = float((zone / "max_energy_range_uj").read_text()) / 1e6
            (zone / "energy_uj").read_text()
        except OSError:  # the kernel lets only root read them
            continue
        yield name, Counter(lambda file=zone / "energy_uj": float(file.read_text()) / 1e6, around)  # type: ignore[misc]


def nvml_counters() -> Iterator[tuple[str, Counter]]:
    """Find the counters of GPUs, if NVIDIA's ``nvidia-ml-py`` is installed."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except Exception:  # no library, no driver, or no GPU: each has an exception of its own
        return

    def reader(handle: Any) -> Callable[[], float]:
        return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    for index, handle in enumerate(handles):
        yield f"GPU {index}", Counter(reader(handle))
