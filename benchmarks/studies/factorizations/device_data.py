"""Random matrices that are made where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_la.planning.plan import Plan
from hetero_la.scheduler.program.instructions import Program
from hetero_la.tiles.kernels.device import Device
from hetero_la.tiles.storage.shard import ALL_ROWS, Shard, Wanted, local_width


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
    """A random matrix whose columns are with their GPUs before a run begins, and stay there.

    Parameters
    ----------
    plan : Plan
        What will run, once.
    diagonal : float, optional
        What is added to the diagonal.

    Attributes
    ----------
    blocks : dict
        Tile columns, by the column at which they begin; after the run, the factors.
    """

    def __init__(self, plan: Plan, diagonal: float = 0.0) -> None:
        self.diagonal = diagonal
        self.blocks: dict[int, Any] = {}
        self._shards = {
            plan.workers[program.worker].name: self._made(plan, program)
            for program in plan.programs
            if program.columns
        }

    def _made(self, plan: Plan, program: Program) -> Any:
        import cupy

        layout = plan.layout
        with cupy.cuda.Device(plan.workers[program.worker].device):
            shape = layout.m, local_width(layout, program.columns)
            array = cupy.empty(shape, plan.dtype, order="F")
            shard = Shard(array, layout, program.columns)
            for column in program.columns:
                block, (start, _) = shard.view(0, layout.mt, column, column), layout.columns(column)
                block[...] = random_columns(start, block.shape, block.dtype, self.diagonal)
                self.blocks[start] = block
            cupy.cuda.Device().synchronize()
        return array

    def home(self, device: Device, width: int) -> tuple[Any, bool]:
        """The columns themselves, which are there; none for whom the plan gives none."""
        return self._shards.get(device.name), device.name in self._shards

    def begin_loading(self, device: Device, columns: Sequence[Wanted]) -> None:
        """Nothing: the columns are there."""

    def load(
        self, device: Device, start: int, stop: int, target: Any, rows: slice = ALL_ROWS
    ) -> None:
        """Nothing: the columns are there."""

    def store(
        self, device: Device, start: int, stop: int, source: Any, rows: slice = ALL_ROWS
    ) -> None:
        """Nothing: the factors stay."""

    def flush(self, device: Device) -> None:
        """Nothing is on its way."""

    def abandon(self, device: Device) -> None:
        """Nothing is on its way."""
