"""Random matrices that are made where they are used, and checks of their factors."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from hetero_la.plan import Plan
from hetero_la.tiles.kernels.spec import Device
from hetero_la.tiles.shard import ALL_ROWS


def random_columns(start: int, shape: tuple[int, int], dtype: Any, diagonal: float = 0.0) -> Any:
    """Columns of a uniform random matrix, the same wherever they are made."""
    import cupy

    real = np.empty(0, dtype).real.dtype
    generator = cupy.random.RandomState(start)
    block = generator.random_sample(shape[::-1], dtype=real) - real.type(0.5)
    if np.dtype(dtype).kind == "c":
        block = block + 1j * (generator.random_sample(shape[::-1], dtype=real) - real.type(0.5))
    columns = block.astype(dtype, copy=False).T
    if diagonal:
        own = cupy.arange(shape[1])
        columns[start + own, own] = columns[start + own, own].real + diagonal
    return columns


class RandomStorage:
    """A run on a random matrix that is on the GPUs before the clock starts.

    Parameters
    ----------
    plan : Plan
        What will run.
    check : bool, optional
        Whether to keep the factors.
    diagonal : float, optional
        What is added to the diagonal.
    """

    def __init__(self, plan: Plan, check: bool = False, diagonal: float = 0.0) -> None:
        owners = [p for p in plan.programs if p.columns]
        self._check, self.diagonal = check, diagonal
        self._loaded = threading.Barrier(len(owners), action=self._start)
        self._left = {plan.workers[p.worker].name: len(p.columns) for p in owners}
        self._finished: list[float] = []
        self.began = 0.0
        self.blocks: dict[int, Any] = {}

    def _start(self) -> None:
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """From the moment at which all columns were there to the end of the last worker."""
        return max(self._finished) - self.began

    def home(self, device: Device, width: int) -> tuple[None, bool]:
        """None: the shards are made for the run."""
        return None, False

    def load(self, device: Device, start: int, stop: int, target: Any) -> None:
        """Make columns; the last ones wait until all workers have theirs."""
        import cupy

        cupy.cuda.Stream.null.use()
        target[...] = random_columns(start, target.shape, target.dtype, diagonal=self.diagonal)
        self._left[device.name] -= 1
        if not self._left[device.name]:
            cupy.cuda.Device().synchronize()
            cupy.get_default_memory_pool().free_all_blocks()
            self._loaded.wait(timeout=120)

    def store(
        self, device: Device, start: int, stop: int, source: Any, rows: slice = ALL_ROWS
    ) -> None:
        """Keep a view of the factors."""
        if self._check:
            self.blocks[start] = source

    def flush(self, device: Device) -> None:
        """Stop this worker's clock."""
        device.synchronize()
        self._finished.append(time.perf_counter())
