"""The rate of the trailing update C <- C - A B on a device, sustained and in a burst.

On random data: zeros switch fewer transistors, and a GPU that they keep cool reads 5 to 10 %
faster.  "Sustained" is the rate over a second and more without a pause, as in a long run; "burst"
is the median of single products, each after a pause.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from hetero_la.studies.factorizations.device_data import random_columns
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.tiles.kernels.device import Device, KernelOptions, Queue
from hetero_la.tiles.kernels.spec import SPECS

_SUSTAINED_SECONDS, _PAUSE_SECONDS, _BURSTS = 1.0, 0.2, 5


class Rate(NamedTuple):
    """Flops a second."""

    sustained: float
    burst: float


def update_rate(
    device: Device, dtype: str = "float64", n: int = 16384, k: int = 512,
    seconds: float = _SUSTAINED_SECONDS,
) -> Rate:  # fmt: skip
    """Measure C <- C - A B on a device, C of shape (n, n) and A of shape (n, k).

    Examples
    --------
    >>> from hetero_la.tiles.kernels.cpu.device import CpuDevice
    >>> update_rate(CpuDevice(), n=64, k=8, seconds=0.01).sustained > 0
    True
    """
    with device.activate():
        arrays = [
            _random(device, seed, shape, dtype)
            for seed, shape in enumerate(((n, k), (k, n), (n, n)))
        ]

        def update(count: int) -> None:
            for _ in range(count):
                device.call("gemm", Queue.UPDATE, arrays, KernelOptions())
            device.synchronize()

        update(1)
        bursts = []
        for _ in range(_BURSTS):
            time.sleep(min(_PAUSE_SECONDS, seconds))
            bursts.append(seconds_of(lambda: update(1)))
        burst = statistics.median(bursts)
        count = int(seconds / burst) + 1
        update(count)  # comes to temperature
        sustained = seconds_of(lambda: update(count)) / count
    flops = SPECS["gemm"].flops([a.shape for a in arrays])
    flops *= 4 if np.dtype(dtype).kind == "c" else 1
    return Rate(flops / sustained, flops / burst)


def _random(device: Device, seed: int, shape: tuple[int, int], dtype: str) -> Any:
    """Return a column-major random matrix on a device."""
    if device.index >= 0:
        return random_columns(seed, shape, dtype).copy(order="F")
    real = np.random.default_rng(seed).random(shape) - 0.5
    return np.asfortranarray(real, dtype)
