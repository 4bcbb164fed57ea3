"""Counters of energy: of GPUs by NVML, of the CPU by the kernel's powercap interface (RAPL)."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_POWERCAP = Path("/sys/class/powercap")
#: Returns joules since some moment; they only grow.
Joules = Callable[[], float]


class PowerSample(NamedTuple):
    """Power at a time: seconds of `time.perf_counter`, and the mean watts of each counter."""

    when: float
    watts: dict[str, float]


class CpuCounter:
    """The energy of all processor packages.

    Parameters
    ----------
    folder : Path, optional
        The kernel's folder of power zones.

    Raises
    ------
    OSError
        If there is no zone of a package, or if it may not be read.
    """

    def __init__(self, folder: Path = _POWERCAP) -> None:
        self._zones = [
            zone for zone in sorted(folder.glob("*-rapl:*")) if zone.name.count(":") == 1
        ]
        if not self._zones:
            raise FileNotFoundError("no processor package tells its energy")
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
        self._last = self._read()
        self._total = 0

    def _read(self) -> list[int]:
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]

    def __call__(self) -> float:
        """Return the joules since the beginning; to be called before a counter wraps twice."""
        now = self._read()
        for before, after, most in zip(self._last, now, self._ranges, strict=True):
            self._total += after - before if after >= before else after - before + most
        self._last = now
        return 1e-6 * self._total


class GpuCounter:
    """The energy of a GPU, given its address on the PCI bus.

    Raises
    ------
    OSError
        If there is no NVML, or the GPU tells no energy.
    """

    def __init__(self, pci_address: str) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call(
            "nvmlDeviceGetHandleByPciBusId_v2", pci_address.encode(), ctypes.byref(self._handle)
        )
        self._first = self._millijoules()

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._nvml, name)(*arguments):
            raise OSError(f"{name} returned {status}")

    def _millijoules(self) -> int:
        energy = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(energy))
        return energy.value

    def __call__(self) -> float:
        """Return the joules since the beginning."""
        return 1e-3 * (self._millijoules() - self._first)


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
