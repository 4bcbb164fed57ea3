"""Random matrices that are made where they are used, and checks of their factors."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from hetero_la.plan import Plan
from hetero_la.tiles.kernels.spec import Device


def random_columns(start: int, shape: tuple[int, int], dtype: Any, seed: int = 0) -> Any:
    """Columns of a uniform random matrix, the same wherever they are made."""
    import cupy

    real = np.empty(0, dtype).real.dtype
    generator = cupy.random.RandomState(seed * 1_000_003 + start)
    block = generator.random_sample(shape[::-1], dtype=real) - real.type(0.5)
    if np.dtype(dtype).kind == "c":
        block = block + 1j * (generator.random_sample(shape[::-1], dtype=real) - real.type(0.5))
    return block.astype(dtype, copy=False).T


class RandomStorage:
    """A run on a random matrix that is on the GPUs before the clock starts.

    Parameters
    ----------
    plan : Plan
        What will run.
    check : bool, optional
        Whether to keep what `residual` needs.
    """

    def __init__(self, plan: Plan, check: bool = False) -> None:
        owners = [p for p in plan.programs if p.columns]
        self._plan, self._check = plan, check
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
        target[...] = random_columns(start, target.shape, target.dtype)
        self._left[device.name] -= 1
        if not self._left[device.name]:
            cupy.cuda.Device().synchronize()
            cupy.get_default_memory_pool().free_all_blocks()
            self._loaded.wait(timeout=120)

    def store(self, device: Device, start: int, stop: int, source: Any) -> None:
        """Keep a view of the factors, for `residual`."""
        if self._check:
            self.blocks[start] = source

    def flush(self, device: Device) -> None:
        """Stop this worker's clock."""
        device.synchronize()
        self._finished.append(time.perf_counter())

    def residual(self, perm: np.ndarray, repeats: int = 3) -> float:
        """Estimate of ||P A - L U|| / (n ||A|| eps), from products with random vectors.

        ||(P A - L U) x|| / ||x|| is at most the 2-norm of the residual, and for random x
        close to its Frobenius norm over sqrt(n); the 1-norm of A scales it.
        """
        import cupy

        m, n = self._plan.layout.m, self._plan.layout.n
        x = np.random.default_rng(0).standard_normal((n, repeats))
        ax, ux, lux = (np.zeros((m, repeats), self._plan.dtype) for _ in range(3))
        norm = 0.0
        for start, block in sorted(self.blocks.items()):
            with cupy.cuda.Device(block.device.id):
                cupy.cuda.Stream.null.use()
                columns = slice(start, start + block.shape[1])
                a = random_columns(start, block.shape, block.dtype)
                norm = max(norm, float(cupy.abs(a).sum(axis=0).max()))
                part = cupy.asarray(x[columns].astype(block.dtype))
                ax += cupy.asnumpy(a @ part)
                ux += cupy.asnumpy(cupy.triu(block, -start) @ part)
        for start, block in sorted(self.blocks.items()):
            with cupy.cuda.Device(block.device.id):
                lower = cupy.tril(block, -start - 1)
                diagonal = cupy.arange(block.shape[1])
                lower[start + diagonal, diagonal] = 1
                lux += cupy.asnumpy(lower @ cupy.asarray(ux[start : start + block.shape[1]]))
        eps = np.finfo(self._plan.dtype).eps / 2
        error = np.linalg.norm(ax[perm] - lux, axis=0) / np.linalg.norm(x, axis=0)
        return float(error.max() / (n * norm * eps)) * np.sqrt(n)
