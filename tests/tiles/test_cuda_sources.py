"""CUDA sources compile by nvcc and NVRTC, and a changed header is not served from CuPy's cache."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hetero_la.tiles.kernels.gpu import common, lu, qr, sources
from hetero_la.tiles.kernels.gpu.batched import arrays, least_squares
from hetero_la.tiles.kernels.gpu.sources import Source
from hetero_la.tiles.kernels.gpu_libraries import resident_lu
from tests.tiles.kernels import DTYPES
from tests.tiles.nvrtc import NVRTC, compiled_by_nvrtc

NVCC = shutil.which("nvcc")
#: A real type and a complex one, of either precision: CI compiles these by both compilers.
ONCE = (np.float32, np.complex128)
each_type = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, marks=() if dtype in ONCE else pytest.mark.exhaustive)
        for dtype in DTYPES
    ],
)


def sources_of(dtype: np.dtype) -> Iterator[Source]:
    """All that is compiled for a dtype, with the widest leaves."""
    yield common.PERMUTE
    for file in ("columns", "lower", "triangles", "reconstruct", "growth", "band", "norms"):
        yield common.source(file, dtype)
    yield common.source("stacks", dtype)
    # Only single precision has parts.
    yield common.source("products", np.dtype(dtype.char.translate({ord("d"): "f", ord("D"): "F"})))
    for rows in (1, 4):
        yield resident_lu.strips_source(dtype, rows)
    for shape in lu.SHAPES:
        yield lu.leaf_source(shape, shape.columns(dtype), dtype)
    for order in arrays.ORDERS[dtype.char]:
        yield arrays.stacks_source("stack_factors", dtype, order)
        for width, probes in ((1, 0), (16, 1)):
            defines = f"WIDTH={width}", f"PROBES={probes}"
            yield arrays.stacks_source("stack_solutions", dtype, order, *defines)
    yield least_squares.least_squares_source(dtype)
    for resident in (True, False):
        yield lu.tall_source(dtype, resident)
        yield qr.leaf_source(dtype, resident)


def test_every_file_is_compiled() -> None:
    files = {source.path for source in sources_of(np.dtype(np.float64))}
    assert files == set(sources.FOLDER.glob("*.cu"))


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@each_type
def test_sources_compile_by_nvcc_without_warnings(dtype: type, tmp_path: Path) -> None:
    for source in sources_of(np.dtype(dtype)):
        command = [NVCC, *source.options, "-arch=sm_80", "-cubin", "-Werror=all-warnings"]
        (tmp_path / "code.cu").write_text(source.code)
        subprocess.run([*command, tmp_path / "code.cu", "-o", tmp_path / "cubin"], check=True)


@pytest.mark.slow
@pytest.mark.skipif(NVRTC is None, reason="needs the wheel nvidia-cuda-nvrtc")
@each_type
def test_sources_compile_by_nvrtc(dtype: type) -> None:
    """CuPy compiles by whichever version is installed; each finds other errors."""
    for source in sources_of(np.dtype(dtype)):
        compiled_by_nvrtc(source)


def test_a_changed_header_changes_the_code_that_is_compiled(
    cuda_folder: Path,
) -> None:
    before = common.PERMUTE.code
    assert common.PERMUTE.code == before
    with (cuda_folder / "pivots.cuh").open("a") as header:
        header.write("// more\n")
    assert common.PERMUTE.code != before
