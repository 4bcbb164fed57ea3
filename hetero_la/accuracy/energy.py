"""Energy that a run takes: NVML's counters of GPUs, and RAPL's of processors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    The counters are those of whole devices: what else runs there counts, too.  It has to be asked
    before a counter begins anew twice.

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
        self._last = self._read()
        self._spent = dict.fromkeys(self._last, 0.0)

    def _read(self) -> dict[str, float]:
        found = {}
        for name, counter in self._counters.items():
            with contextlib.suppress(Exception):  # of a driver, or of a file for root only
                found[name] = counter.read()
        return found

    def joules(self) -> dict[str, float]:
        """Return the joules of each device since the meter was started."""
        now = self._read()
        for name in now.keys() & self._last.keys():
            count = now[name] - self._last[name]
            self._spent[name] += count if count >= 0 else count + self._counters[name].around
        self._last |= now
        return {name: self._spent[name] for name in now if name in self._spent}

    def total(self) -> float:
        """Return the joules of all devices together."""
        return sum(self.joules().values())


def start_meter() -> Meter:
    """Start a meter of all counters of this machine that can be read."""
    return Meter(_readable_counters())


@functools.cache  # to look for them takes longer than to read them
def _readable_counters() -> dict[str, Counter]:
    return {**dict(rapl_counters()), **dict(nvml_counters())}


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


def nvml_counters(addresses: Sequence[str] | None = None) -> Iterator[tuple[str, Counter]]:
    """Find the counters of GPUs: of all, or of those with these addresses on the PCI bus."""
    try:
        handles = _handles(addresses)
        for index, handle in enumerate(handles):
            _joules(handle)
            yield f"GPU {index}", Counter(functools.partial(_joules, handle))
    except OSError:  # no driver, or a GPU that does not count
        return


def _handles(addresses: Sequence[str] | None) -> list[ctypes.c_void_p]:
    """Return NVML's handles of GPUs."""
    found = ctypes.c_uint(0 if addresses is None else len(addresses))
    if addresses is None:
        _call("nvmlDeviceGetCount_v2", ctypes.byref(found))
    handles = [ctypes.c_void_p() for _ in range(found.value)]
    for index, handle in enumerate(handles):
        if addresses is None:
            _call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        else:
            address = addresses[index].encode()
            _call("nvmlDeviceGetHandleByPciBusId_v2", address, ctypes.byref(handle))
    return handles


def _joules(handle: ctypes.c_void_p) -> float:
    energy = ctypes.c_ulonglong()
    _call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(energy))
    return 1e-3 * energy.value


def _call(name: str, *arguments: object) -> None:
    if status := getattr(_nvml(), name)(*arguments):
        raise OSError(f"{name} returned {status}")


@functools.cache
def _nvml() -> Any:
    """Return NVML, initialized; raise OSError if there is none."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if status := library.nvmlInit_v2():
        raise OSError(f"nvmlInit_v2 returned {status}")
    return library
