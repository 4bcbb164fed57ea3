"""Words between the blocks of a panel: a wait for one that does not come has an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_la.tiles.arrays.errors import KernelTimeoutError
from hetero_la.tiles.kernels.device import KernelOptions, Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.kernels.gpu.sources import Source, module
from tests.support import random

#: Waits for 40 words, of which `there` have been sent.
KERNEL = """
#include "exchange.cuh"

extern "C" __global__ void wait(Unit* units, int there, unsigned* lost, Bits* out)
{
    Bits words[2];
    for (int i = threadIdx.x; i < there; i += 32) Words::put(units + i, Bits(i + 1), 7);
    receive(units, 40, 7, lost, words);
    for (int n = 0; n < 2; n++) out[threadIdx.x + 32 * n] = words[n];
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize(("real", "bits"), [("f8", np.uint64), ("f4", np.uint32)])
def test_a_word_that_does_not_come_is_given_up(real: str, bits: Any, tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    (tmp_path / "wait.cu").write_text(KERNEL)
    source = Source("wait", np.dtype(real), ("PATIENCE=100000",), tmp_path)
    wait = module(source).get_function("wait")
    for there in (40, 39, 3, 0):
        units, lost = cupy.zeros(40 * 16, np.uint8), cupy.zeros(1, np.uint32)
        out = cupy.full(64, 99, bits)
        wait((1,), (32,), (units, np.int32(there), lost, out))
        words = out.get()
        assert bool(lost.get()[0]) == (there < 40)
        for lane in range(32):
            own = [i for i in (lane, lane + 32) if i < 40]
            came = all(i < there for i in own)
            assert [words[i] for i in own] == [i + 1 if came else 0 for i in own]


@pytest.mark.gpu
def test_a_run_with_a_lost_word_ends_with_an_error_and_the_next_one_is_right() -> None:
    cupy = pytest.importorskip("cupy")
    device = GpuDevice(0)
    a = random(700, 40)
    for lose in (True, False):
        with device.activate():
            panel = cupy.asarray(a, order="F")
            ipiv, info = cupy.empty(40, np.int32), cupy.empty(1, np.int32)
            device.call("getrf", Queue.PANEL, [panel, ipiv, info], KernelOptions())
            if not lose:
                device.synchronize()
                break
            cupy.cuda.Device(0).synchronize()
            cupy.ndarray(1, np.uint32, device._queues[Queue.PANEL]._workspaces["lost"].data).fill(
                1
            )  # as a kernel does
            cupy.cuda.Device(0).synchronize()
            with pytest.raises(
                KernelTimeoutError, match="kernel on GPU 0 has timed out: a thread block"
            ):
                device.synchronize()
    rows = np.arange(700)
    for i, p in enumerate(ipiv.get()):
        rows[i], rows[p] = rows[p], rows[i]
    packed = panel.get()
    product = np.tril(packed, -1)[:, :40] @ np.triu(packed[:40])
    product += np.vstack([np.triu(packed[:40]), np.zeros((660, 40))])
    assert np.abs(product - a[rows]).max() < 1e-12 * 40
