"""Whole matrices between pageable host memory and a GPU of the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_la.tiles.arrays.reused_memory import ReusedMemory
from hetero_la.tiles.arrays.transfer import (
    is_column_major,
    small_to_device,
    small_to_device_later,
)
from hetero_la.tiles.kernels.device import Device, Queue
from hetero_la.tiles.storage.staging import Staging

#: Bytes up to which the driver's own copy from pageable memory takes no longer than ours.
DRIVER_BYTES = 12 << 20
_results = ReusedMemory()


class HostCopies:
    """Copies of whole arrays between the host and one GPU, by a ring of pinned buffers.

    Parameters
    ----------
    device : Device
        The GPU.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._staging = device, Staging(device)

    def to_gpu_later(self, a: np.ndarray) -> tuple[Any, Callable[[], object]]:
        """Return an array on the GPU, and a function that fills it; a large one is filled."""
        if a.nbytes <= DRIVER_BYTES:
            return small_to_device_later(a)
        return self.to_gpu(a), lambda: None

    def to_gpu(self, a: np.ndarray) -> Any:
        """Return a copy of an array of one or two dimensions, in the same memory order."""
        if a.nbytes <= DRIVER_BYTES:
            return small_to_device(a)
        if a.ndim == 1:
            return self.to_gpu(a[:, None])[:, 0]
        if not is_column_major(a) and is_column_major(a.T):
            return self.to_gpu(a.T).T
        copy = self._device.empty(a.shape, a.dtype)
        self._copy(copy, a, self._staging.upload)
        return copy

    def to_host(self, a: Any) -> np.ndarray:
        """Return a copy of an array of up to two dimensions, in the same memory order."""
        small = a.nbytes <= DRIVER_BYTES
        if a.ndim == 1 and not small:
            return self.to_host(a[:, None])[:, 0]
        if a.ndim == 2 and not is_column_major(a) and is_column_major(a.T):
            return self.to_host(a.T).T
        fits = a.flags.f_contiguous if small else is_column_major(a)  # `get` takes no other view
        a = a if fits else a.copy(order="F")
        copy = _results.empty(a.shape, a.dtype, order="F")
        if small:
            a.get(out=copy)
        else:
            self._copy(copy, a, self._download)
        return copy

    def _download(self, target: Any, source: Any) -> None:
        self._device.record(Queue.STORE).synchronize()  # the caller's work on `source` has ended
        self._staging.download(target, source)

    def _copy(self, target: Any, source: Any, staged: Callable[[Any, Any], None]) -> None:
        """Copy by the pinned buffers, which an interrupt makes unusable, and wait."""
        with self._device.activate():
            try:
                staged(target, source)
                self._staging.flush()
            except BaseException:
                self._device.synchronize()
                self._staging.abandon()
                self._staging = Staging(self._device)
                raise
