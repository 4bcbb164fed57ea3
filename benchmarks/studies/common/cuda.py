"""CUDA sources of studies, which are in the folder ``cuda`` beside them, and what GPUs are like."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from hetero_la.tiles.kernels.gpu.sources import Source, module

FOLDER = Path(__file__).parents[1] / "cuda"


def cuda_source(file: str, *defines: str) -> Source:
    """Return a source of the folder, with its macros as ``NAME=value``.

    Examples
    --------
    >>> cuda_source("barrier", "ROUNDS=10").macros
    ('ROUNDS=10',)
    """
    return Source(file, None, defines, FOLDER)


def kernel(source: Source, name: str) -> Any:
    """Return a kernel of a source as a function of CuPy: of grid, block and arguments."""
    return module(source).get_function(name)


@functools.cache
def properties(device: int = 0) -> dict[str, Any]:
    """Return what CUDA says of a device: ``multiProcessorCount``, ``l2CacheSize`` and others."""
    import cupy

    return dict(cupy.cuda.runtime.getDeviceProperties(device))


@functools.cache
def attribute(name: str, device: int = 0) -> int:
    """Return an attribute of a device, as ``"ClockRate"`` in kHz."""
    import cupy

    return int(cupy.cuda.Device(device).attributes[name])
