"""Memory that runs need, and the error if it is not available."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from hetero_la.tiles.arrays.counted import a_matrix
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.kernels.gpu.products import PARTS_BYTES
from hetero_la.tiles.storage.layout import TileLayout

T = TypeVar("T")

#: Workspaces of GPU kernels that are of one chunk at most: for gathers and triangular solves, on
#: each of two queues.
CHUNKS = 4
#: A chunk's part of the memory that a run may use, and the bytes that it has at least.
_CHUNK_OF_MEMORY, _LEAST_CHUNK = 1 / 128, 1 << 24


def chunk_within(limit: int | None) -> int:
    """Return the bytes of a kernel's chunk, for the bytes that a run may use.

    Examples
    --------
    >>> chunk_within(None) == chunk_within(10**12) == 2**26, chunk_within(4 * 10**9)
    (True, 31250000)
    """
    most = KernelOptions().chunk
    return most if limit is None else min(max(int(limit * _CHUNK_OF_MEMORY), _LEAST_CHUNK), most)


def kernel_elements(layout: TileLayout, width: int, *, cholesky_qr: bool) -> int:
    """Return the elements of a GPU's workspaces that grow with the `width` of its columns.

    The triangular solve is out of place, on either of two queues, and so is CholeskyQR2, which
    needs ten squares beside a panel.  In two-level blocking, panels that were received are copied
    side by side.
    """
    received = layout.blocked and width < layout.width
    block = layout.m * layout.inner_size(0) if received else 0
    solved = panel = 0
    for k in range(layout.kt):
        start, nb = layout.row(k), layout.column_width(k)
        solved = max(solved, nb * min(width, layout.width - start - nb))
        panel = max(panel, (layout.m - start + 10 * nb) * nb)
    return 2 * (solved + block) + (panel if cholesky_qr else 0)


def parts_elements(layout: TileLayout, width: int, dtype: np.dtype) -> int:
    """Return the elements of the parts into which a GPU splits the operands of its products.

    A left operand is a panel, or its adjoint, and a right one as many columns of the matrix as its
    workspace holds; each of two queues has both.  A part has half of a number's bytes.
    """
    panel = layout.m * layout.inner_size(0)
    right = min(2 * PARTS_BYTES // dtype.itemsize, 3 * layout.m * width)
    return (6 if dtype.kind == "c" else 3) * panel + max(right, 3 * panel)


def require_room(
    routine: str, shape: tuple[int, int], dtype: Any, device: int | str, needed: int, free: int
) -> None:
    """Raise `InsufficientMemoryError` if more bytes are needed than are free.

    Parameters
    ----------
    routine : str
        Name of the routine, for the message.
    shape, dtype
        Shape and dtype of the matrix, for the message.
    device : int or str
        Index or PCI address of a GPU, or -1 for the host.
    needed, free : int
        Sizes in bytes.
    """
    if needed > free:
        where = "the host" if device == -1 else f"GPU {device}"
        error = InsufficientMemoryError(
            f"{routine} of {a_matrix(*shape[:2], np.dtype(dtype).name)} needs "
            f"{needed:,} bytes on {where}, which has {free:,}"
        )
        error.on_gpu = device != -1
        raise error


def quickest_with_room(ways: Iterable[Callable[[], T]], seconds: Callable[[T], float]) -> T:
    """Return what is predicted to be the quickest of the plans for which there is memory.

    Parameters
    ----------
    ways : iterable of callable
        Each makes a plan, or raises `InsufficientMemoryError`.
    seconds : callable
        Predicts the time of what they return.

    Raises
    ------
    InsufficientMemoryError
        The last one, if there is not memory for any.
    """
    planned: list[T] = []
    for way in ways:
        try:
            planned.append(way())
        except InsufficientMemoryError as error:
            lacking = error
    if not planned:
        raise lacking
    return min(planned, key=seconds)
