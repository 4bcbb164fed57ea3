"""CUDA sources of studies, which are in the folder ``cuda`` beside them, and what GPUs are like."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from hetero_la.tiles.kernels.gpu.sources import Source, module

FOLDER = Path(__file__).parents[1] / "cuda"
#: Fused multiply-adds of a multiprocessor in a cycle, without tensor cores, by capability.
_UNITS = {
    "float32": {70: 64, 75: 64, 80: 64, 86: 128, 89: 128, 90: 128},
    "float64": {70: 32, 75: 2, 80: 32, 86: 2, 89: 2, 90: 64},
}
#: Fused multiply-adds of a multiprocessor's tensor cores in a cycle, by capability.
_TENSOR_UNITS = {"float64": {80: 64, 90: 128}, "TF32": {80: 512, 90: 1024}}


def cuda_source(file: str, *defines: str) -> Source:
    """Return a source of the folder, with its macros as ``NAME=value``.

    Examples
    --------
    >>> cuda_source("barrier", "ROUNDS=10").macros
    ('ROUNDS=10',)
    """
    return Source(file, None, defines, FOLDER)


@functools.cache
def kernel(source: Source, name: str) -> Any:
    """Return a kernel of a source, compiled for the current GPU, for `launch`."""
    return module(source).get_function(name).kernel


def launch(
    function: Any, blocks: int | tuple[int, ...], threads: int | tuple[int, ...], *arguments: Any,
    shared: int = 0, cooperative: bool = False,
) -> None:  # fmt: skip
    """Enqueue a kernel on the current stream; integers are passed as 64-bit ones."""
    grid = (blocks,) if isinstance(blocks, int) else blocks
    block = (threads,) if isinstance(threads, int) else threads
    function(grid, block, arguments, shared, None, cooperative)


def multiprocessors() -> int:
    """Return the number of multiprocessors of the current GPU."""
    return attribute("MultiProcessorCount")


def peak(dtype: str) -> float | None:
    """Return the flop/s of the current GPU without tensor cores at its highest clock, if known."""
    return _peak(_UNITS[dtype])


def tensor_peak(numbers: str) -> float | None:
    """Return the flop/s of the current GPU's tensor cores at its highest clock, if known.

    `numbers` are ``"float64"`` or ``"TF32"``.
    """
    return _peak(_TENSOR_UNITS[numbers])


def _peak(units: dict[int, int]) -> float | None:
    """Return the flop/s of so many fused multiply-adds, of each capability, in a cycle."""
    adds, hertz = units.get(capability()), 1e3 * attribute("ClockRate")
    return None if adds is None else 2 * adds * multiprocessors() * hertz


def bandwidth_of_pins() -> float:
    """Return the bytes/s of the current GPU's memory by its clock and its width, as CUDA says."""
    transfers = 2 * 1e3 * attribute("MemoryClockRate")
    return transfers * attribute("GlobalMemoryBusWidth") / 8


def capability() -> int:
    """Return the compute capability of the current GPU, as 90 for 9.0."""
    import cupy

    return int(cupy.cuda.Device().compute_capability)


def attribute(name: str) -> int:
    """Return an attribute of the current GPU, as ``"L2CacheSize"`` in bytes."""
    import cupy

    return int(_attributes(cupy.cuda.Device().id)[name])


@functools.cache
def _attributes(device: int) -> dict[str, int]:
    """Return all attributes of a GPU, which takes longer than a launch."""
    import cupy

    return dict(cupy.cuda.Device(device).attributes)
