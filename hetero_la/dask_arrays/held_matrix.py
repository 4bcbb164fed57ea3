"""A Dask matrix whose blocks are held where they are, and what is computed with them.

Vectors are NumPy arrays of the caller: few numbers travel, and no block of the matrix does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client

from hetero_la.dask_arrays.inputs import empty_like, on_gpu
from hetero_la.mixed.equilibration import Equilibration, lowered, scaled
from hetero_la.scheduler.cluster.clients import running_client
from hetero_la.tiles.arrays.transfer import (
    array_module,
    on_device_of_arrays,
    to_current_gpu,
    to_host,
)

#: Terms that are added up one after another: the fewer, the less does the sum round.
_TERMS = 128


class Computing:
    """Computes Dask arrays at once, by the workers of a client or Dask's own scheduler.

    Parameters
    ----------
    client : Client, Cluster or None
        As for all functions.
    """

    def __init__(self, client: Any) -> None:
        self._client: Client | None = None if client is None else running_client(client)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which runs are planned for the workers of the client."""
        return contextlib.nullcontext() if self._client is None else self._client.as_current()

    def hold(self, *arrays: da.Array) -> list[da.Array]:
        """Compute arrays, whose blocks stay where they are."""
        if self._client is None:
            return list(dask.persist(*arrays))
        return list(self._client.persist(list(arrays)))

    def host(self, *arrays: da.Array) -> list[np.ndarray]:
        """Return arrays as NumPy arrays."""
        asked = [
            a.map_blocks(to_host, dtype=a.dtype, meta=np.empty((0,) * a.ndim, a.dtype))
            for a in arrays
        ]
        if self._client is None:
            return list(dask.compute(*asked))
        return list(self._client.compute(asked, sync=True))


class HeldMatrix:
    """A matrix that is computed once, and of which each worker keeps its blocks.

    Parameters
    ----------
    a : dask.array.Array, shape (m, n)
        The matrix.
    computing : Computing
        Computes it.

    Attributes
    ----------
    blocks : dask.array.Array
        What is held.
    computing : Computing
        What computes it, and with it.
    """

    def __init__(self, a: da.Array, computing: Computing) -> None:
        self.computing = computing
        (self.blocks,) = computing.hold(a)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        m, n = self.blocks.shape
        return m, n

    @property
    def complex(self) -> bool:
        """Whether its entries are complex numbers."""
        return bool(self.blocks.dtype.kind == "c")

    def times(self, x: np.ndarray, trans: int = 0) -> np.ndarray:
        """Return A X, or A^T X (`trans` 1) or A^H X (2)."""
        if trans == 2:
            return self.times(x.conj(), 1).conj()
        a = self.blocks.T if trans else self.blocks
        rhs = da.from_array(x, chunks=(a.chunks[1], -1))
        parts = da.blockwise(
            _product, "ijk", a, "ij", rhs, "jk", dtype=x.dtype, adjust_chunks={"j": 1},
            meta=np.empty((0, 0, 0), x.dtype),
        )  # fmt: skip
        (y,) = self.computing.host(parts.sum(axis=1))
        return y

    def largest(self, scaling: Equilibration | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest modulus in each row and column, of the matrix as it is or scaled."""
        by_row = self._by_blocks(_largest, scaling, axis=1).max(axis=1)
        by_column = self._by_blocks(_largest, scaling, axis=0).max(axis=0)
        rows, columns = self.computing.host(by_row, by_column)
        return rows, columns

    def norms(self, scaling: Equilibration | None) -> tuple[float, float]:
        """Return the 1-norms of the matrix, as it is or scaled, and of its transpose."""
        by_row = self._by_blocks(_sum, scaling, axis=1).sum(axis=1).max()
        by_column = self._by_blocks(_sum, scaling, axis=0).sum(axis=0).max()
        rows, columns = self.computing.host(by_row, by_column)
        return float(columns), float(rows)

    def frobenius(self) -> float:
        """Return the Frobenius norm."""
        (squares,) = self.computing.host(self._by_blocks(_squares, None, axis=0).sum())
        return float(np.sqrt(squares))

    def lowered(self, dtype: Any, scaling: Equilibration | None) -> da.Array:
        """Return a copy in the lower precision, scaled, which is not held."""
        if scaling is None:
            return self.blocks.astype(dtype)
        return da.blockwise(
            _lowered, "ij", self.blocks, "ij", *self._exponents(scaling), lower=dtype,
            dtype=dtype, meta=empty_like(self.blocks, (0, 0), dtype),
        )  # fmt: skip

    def _by_blocks(
        self, function: Callable[..., Any], scaling: Equilibration | None, axis: int
    ) -> da.Array:
        """Return what a function finds along an axis of each block."""
        exponents = [] if scaling is None else self._exponents(scaling)
        return da.blockwise(
            function, "ij", self.blocks, "ij", *exponents, axis=axis, dtype=np.float64,
            adjust_chunks={"ij"[axis]: 1}, meta=np.empty((0, 0)),
        )  # fmt: skip

    def _exponents(self, scaling: Equilibration) -> list[Any]:
        rows, columns = self.blocks.chunks
        return [
            da.from_array(scaling.rows, chunks=(rows,)), "i",
            da.from_array(scaling.columns, chunks=(columns,)), "j",
        ]  # fmt: skip


def placed(a: np.ndarray, like: da.Array) -> da.Array:
    """Return a NumPy array as a Dask array of one block, of the kind of the blocks of `like`."""
    found = da.from_array(a, chunks=-1)
    if not on_gpu(like):
        return found
    meta = empty_like(like, (0,) * a.ndim, a.dtype)
    return found.map_blocks(to_current_gpu, dtype=a.dtype, meta=meta)


@on_device_of_arrays
def _product(block: Any, x: np.ndarray) -> np.ndarray:
    x, parts = array_module(block).asarray(x), range(0, block.shape[1], _TERMS)
    sums = [block[:, j : j + _TERMS] @ x[j : j + _TERMS] for j in parts]
    return to_host(sum(sums[1:], sums[0]))[:, None]


def _moduli(block: Any, rows: Any, columns: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return abs(block) if rows is None else abs(scaled(block, rows, columns))


@on_device_of_arrays
def _largest(block: Any, rows: Any = None, columns: Any = None, *, axis: int) -> np.ndarray:
    return to_host(_moduli(block, rows, columns).max(axis=axis, keepdims=True)).astype(float)


@on_device_of_arrays
def _sum(block: Any, rows: Any = None, columns: Any = None, *, axis: int) -> np.ndarray:
    return to_host(_moduli(block, rows, columns).sum(axis=axis, keepdims=True))


@on_device_of_arrays
def _squares(block: Any, *, axis: int) -> np.ndarray:
    return to_host((_moduli(block, None, None) ** 2).sum(axis=axis, keepdims=True))


@on_device_of_arrays
def _lowered(block: Any, rows: np.ndarray, columns: np.ndarray, *, lower: Any) -> Any:
    return lowered(block, lower, Equilibration(rows, columns))
