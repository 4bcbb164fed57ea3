"""CUDA sources of the studies compile by NVRTC; operands of pipelines stay in registers."""

from __future__ import annotations

import importlib

import pytest

from hetero_la.studies.common.cuda import FOLDER
from hetero_la.studies.common.study import study_names
from hetero_la.tiles.kernels.gpu.sources import Source
from tests.tiles.nvrtc import NVRTC, compiled_by_nvrtc

SOURCES: dict[str, tuple[Source, ...]] = {
    name: importlib.import_module(f"hetero_la.studies.{name}").__dict__.get("SOURCES", ())
    for name in study_names()
}


def test_every_file_belongs_to_a_study() -> None:
    files = {source.path for sources in SOURCES.values() for source in sources}
    assert files == set(FOLDER.glob("*.cu"))


@pytest.mark.slow
@pytest.mark.skipif(NVRTC is None, reason="needs the wheel nvidia-cuda-nvrtc")
@pytest.mark.parametrize("name", [name for name, sources in SOURCES.items() if sources])
def test_sources_compile_by_nvrtc(name: str) -> None:
    for source in SOURCES[name]:
        said = compiled_by_nvrtc(source)
        if name == "pipeline":
            assert " 0 bytes stack frame" in said, f"{source}: {said}"
