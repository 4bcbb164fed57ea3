"""A kernel for LU of narrow panels, in two forms, that tells the time of each of its phases."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero_la.studies.common.cuda import cuda_source, kernel, launch
from hetero_la.studies.common.timing import gpu_clock
from hetero_la.studies.factorizations.panel_runs import PACKED, PIVOTS, Factors
from hetero_la.tiles.kernels.gpu.sources import Source

#: Columns of a panel, and rows of a block.
COLUMNS, ROWS = 32, 256
#: Forms of the kernel, and what it does for a column, both in the order of its source.
ORDERS = ("greedy", "lazy")
PHASES = ("update", "search", "exchange", "pivot row")


def _source(order: str) -> Source:
    defines = f"IB={COLUMNS} THREADS={ROWS} LAZY={ORDERS.index(order)}"
    return cuda_source("lu_leaf", *defines.split())


LEAF_SOURCES = tuple(_source(order) for order in ORDERS)


class Leaf:
    """LU of a panel of `COLUMNS` columns on the current GPU, by one launch.

    Parameters
    ----------
    order : str
        One of `ORDERS`.
    given : numpy.ndarray
        The panel, of at most `ROWS` rows for each multiprocessor.
    """

    def __init__(self, order: str, given: np.ndarray) -> None:
        import cupy

        self._kernel, self._rows = kernel(_source(order), "lu_leaf"), len(given)
        self._blocks = -(-self._rows // ROWS)
        self._given = cupy.asarray(given, order="F")
        self._array = cupy.empty_like(self._given)
        self._pivots = cupy.empty(COLUMNS, np.int32)
        # A candidate is a magnitude, a row's number, and the row.
        self._exchange = cupy.zeros(2 * (self._blocks + 1) * (2 + COLUMNS))
        self._counter = cupy.zeros(1, np.uint32)
        self._spent = cupy.zeros((self._blocks, COLUMNS, len(PHASES)), np.int64)

    def _launch(self, spent: Any) -> None:
        launch(
            self._kernel, self._blocks, ROWS, self._array, self._rows, self._rows, self._pivots,
            self._exchange, self._counter, spent, cooperative=True,
        )  # fmt: skip

    def seconds(self) -> float:
        """Return the seconds of one factorization of the panel."""
        self._array[...] = self._given
        no_trace = 0
        return gpu_clock(partial(self._launch, no_trace), 1)

    def trace(self) -> np.ndarray:
        """Return the seconds of each phase of each column, mean of all blocks."""
        self._array[...] = self._given
        self._launch(self._spent)
        spent: np.ndarray = 1e-9 * self._spent.get().mean(axis=0)
        return spent

    def factors(self) -> Factors:
        """Return the factors."""
        return {PACKED: self._array.get(), PIVOTS: self._pivots.get()}
