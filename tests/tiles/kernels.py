"""What the tests of kernels share: views on a device, and sizes of errors."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_la.tiles.kernels.device import KernelOptions, Queue

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
LIMIT = 30  # of residuals in units of eps, as LAPACK's own tests have it
OPTIONS = KernelOptions()


def gpu():
    pytest.importorskip("cupy")
    from hetero_la.tiles.arrays.transfer import gpu_count
    from hetero_la.tiles.kernels.gpu.device import GpuDevice

    if gpu_count() == 0:
        pytest.skip("no GPU")
    return GpuDevice(0)


def random(rng, shape, dtype):
    a = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        a = a + 1j * rng.standard_normal(shape)
    return np.asfortranarray(a, dtype)


def eps(dtype):
    return np.finfo(dtype).eps / 2


def norm(a):
    return np.abs(a).sum(axis=0).max(initial=0)


class View:
    """A matrix at an offset inside a larger one on the device."""

    def __init__(self, device, a):
        self.device, self.shape = device, a.shape
        rows, columns = a.shape
        self.frame = np.asfortranarray(np.full((rows + 7, columns + 3), 77, a.dtype))
        self.inside = (slice(4, 4 + rows), slice(2, 2 + columns))
        self.frame[self.inside] = a
        self.whole = device.empty(self.frame.shape, a.dtype)
        device.copy(self.whole, self.frame, Queue.PANEL)
        self.array = self.whole[self.inside]

    def get(self):
        """The matrix, after a check that nothing around it has changed."""
        out = fetch(self.device, self.whole)
        inner = out[self.inside].copy()
        out[self.inside] = self.frame[self.inside]
        np.testing.assert_array_equal(out, self.frame)
        return inner


def fetch(device, array):
    host = np.empty(array.shape, array.dtype, order="F")
    device.copy(host, array, Queue.PANEL)
    device.synchronize()
    return host


def vector(device, values):
    values = np.asarray(values, np.int32)
    array = device.empty(values.shape, np.int32)
    device.copy(array, values, Queue.PANEL)
    device.synchronize()  # `values` need not live longer
    return array


def run(device, kernel, *arrays, options=OPTIONS):
    plain = [a.array if isinstance(a, View) else a for a in arrays]
    device.call(kernel, Queue.PANEL, plain, options)


def swapped(a, ipiv):
    a = a.copy()
    for i, p in enumerate(ipiv):
        a[[i, p]] = a[[p, i]]
    return a
