from __future__ import annotations

import contextlib
import shutil

import numpy as np
import pytest

from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.gpu import sources
from tests.tiles.kernels import gpu


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    with _active(CpuDevice() if request.param == "cpu" else gpu()) as device:
        yield device


@pytest.fixture
def on_gpu():
    with _active(gpu()) as device:
        yield device


@contextlib.contextmanager
def _active(device):
    with device.activate():
        yield device
        device.synchronize()


@pytest.fixture
def cuda_folder(tmp_path, monkeypatch):
    """A copy of the folder of CUDA sources, from which sources are taken during the test."""
    folder = shutil.copytree(sources.FOLDER, tmp_path / "cuda")
    monkeypatch.setattr(sources, "FOLDER", folder)
    return folder


@pytest.fixture
def rng():
    return np.random.default_rng(7)
