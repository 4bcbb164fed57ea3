from __future__ import annotations

import numpy as np
import pytest

from hetero_la.tiles.kernels.cpu.device import CpuDevice
from tests.tiles.kernels import gpu


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    device = CpuDevice() if request.param == "cpu" else gpu()
    with device.activate():
        yield device
        device.synchronize()


@pytest.fixture
def rng():
    return np.random.default_rng(7)
