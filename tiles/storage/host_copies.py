"""Whole matrices between pageable host memory and a GPU of the calling thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.tiles.arrays.transfer import is_column_major
from hetero_la.tiles.kernels.device import Device, Queue
from hetero_la.tiles.storage.staging import Staging

#: Bytes up to which the driver's own copy from pageable memory takes no longer than ours.
_SMALL = 1 << 24


class HostCopies:
    """Copies of whole arrays between the host and one GPU, by a ring of pinned buffers.

    Parameters
    ----------
    device : Device
        The GPU.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._staging = device, Staging(device)

    def to_gpu(self, a: np.ndarray) -> Any:
        """Return a copy of an array of one or two dimensions, in the same memory order."""
        if a.ndim == 1:
            return self.to_gpu(a[:, None])[:, 0]
        if not is_column_major(a) and is_column_major(a.T):
            return self.to_gpu(a.T).T
        with self._device.activate():
            copy = self._device.empty(a.shape, a.dtype)
            if a.nbytes <= _SMALL and is_column_major(a):
                self._device.copy(copy, a, Queue.COPY)
                self._device.synchronize()
            else:
                self._staging.upload(copy, a)
                self._staging.flush()
        return copy

    def to_host(self, a: Any) -> np.ndarray:
        """Return a copy of an array of up to two dimensions, in the same memory order."""
        if a.ndim == 0 or not a.size:
            return a.get()
        if a.ndim == 1:
            return self.to_host(a[:, None])[:, 0]
        if not is_column_major(a) and is_column_major(a.T):
            return self.to_host(a.T).T
        with self._device.activate():
            copy = np.empty(a.shape, a.dtype, order="F")
            a = a if is_column_major(a) else a.copy(order="F")
            if a.nbytes <= _SMALL:
                self._device.copy(copy, a, Queue.COPY)
                self._device.synchronize()
            else:
                self._staging.download(copy, a)
                self._staging.flush()
        return copy
