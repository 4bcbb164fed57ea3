"""Imports run downwards, and each library has its place."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero_la.scheduler
import hetero_la.tiles

TOP = ("hetero_la", "scheduler", "tiles")  # from above; imports run from left to right
DATA = "configs"  # files only, for any layer to read
CUPY = ("tiles/kernels/gpu", "tiles/transfer.py")
DASK = ("scheduler/dask_", "scheduler/cluster", "hetero_la/dask_arrays/")


def modules() -> Iterator[tuple[str, Path]]:
    """Every module as ``"layer/path.py"``; a linked or installed layer counts once."""
    package = Path(hetero_la.scheduler.__file__).resolve().parent
    folders = {
        "hetero_la": Path(importlib.import_module("hetero_la.files").__file__ or "").parent,
        "scheduler": package,
        "tiles": Path(hetero_la.tiles.__file__).resolve().parent,
    }
    for layer, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder)
            if layer != "hetero_la" or inner.parts[0] not in ("scheduler", "tiles", DATA):
                yield f"{layer}/{inner.as_posix()}", path


def imports(source: str, package: str) -> Iterator[str]:
    """Full names of all modules that `source`, a module of `package`, imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def dotted_package(name: str) -> str:
    folder = Path(name).parent.as_posix().replace("/", ".")
    return folder if folder.startswith("hetero_la") else f"hetero_la.{folder}"


def layer_of(module: str) -> str | None:
    """The layer that an imported name belongs to."""
    parts = module.split(".")
    if parts[0] != "hetero_la":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in (*TOP, DATA) else "hetero_la"


def faults(name: str, source: str) -> list[str]:
    found = []
    above = TOP[: TOP.index(name.split("/")[0])]
    for module in imports(source, dotted_package(name)):
        root = module.split(".")[0]
        # ``from hetero_la import tiles`` names the package above on its way down.
        if layer_of(module) in above and module != "hetero_la":
            found.append(f"{name} imports {module}, which stands above it")
        if root in ("cupy", "cupyx", "cupy_backends") and not name.startswith(CUPY):
            found.append(f"{name} imports {module}: CuPy belongs in {CUPY}")
        if root in ("dask", "distributed") and not name.startswith(DASK):
            found.append(f"{name} imports {module}: Dask belongs in {DASK}")
        if root in ("scheduler", "tiles"):
            found.append(f"{name} imports {module} without hetero_la before it")
    return found


MODULES = dict(modules())


def test_all_layers_are_looked_at() -> None:
    names = set(MODULES)
    assert {"hetero_la/cli.py", "scheduler/graph.py", "tiles/kernels/cpu.py"} <= names
    assert not [name for name in names if name.startswith("hetero_la/tiles")]


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_downwards_and_libraries_keep_their_place(name: str) -> None:
    assert faults(name, MODULES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tiles/shard.py", "from hetero_la.scheduler.graph import Task"),
        ("tiles/shard.py", "from hetero_la import scheduler"),
        ("tiles/shard.py", "from ..scheduler import graph"),
        ("tiles/kernels/cpu.py", "from ...scheduler import graph"),
        ("scheduler/graph.py", "from hetero_la.algorithms import lu"),
        ("scheduler/graph.py", "def f():\n    import hetero_la.options"),
        ("scheduler/graph.py", "import distributed"),
        ("hetero_la/linalg.py", "from dask import array"),
        ("tiles/shard.py", "import cupy as cp"),
        ("scheduler/runner.py", "importlib.import_module('cupy.cuda')"),
        ("hetero_la/plan.py", "from scheduler.graph import Task"),
    ],
)
def test_a_fault_is_found(name: str, source: str) -> None:
    assert len(faults(name, source)) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tiles/kernels/gpu.py", "import cupy"),
        ("tiles/kernels/gpu_panel.py", "import cupy"),
        ("scheduler/cluster.py", "from distributed import SpecCluster"),
        ("hetero_la/plan.py", "from hetero_la.tiles import layout"),
        ("hetero_la/plan.py", "from hetero_la import scheduler"),
        ("scheduler/graph.py", "from hetero_la.tiles.layout import TileLayout"),
        ("tiles/kernels/cpu.py", "from .spec import SPECS\nfrom ..layout import TileLayout"),
    ],
)
def test_no_fault_is_made_up(name: str, source: str) -> None:
    assert faults(name, source) == []


@pytest.mark.parametrize("layer", ["scheduler", "tiles"])
def test_a_bare_import_is_refused_in_one_sentence(layer: str) -> None:
    folder = Path(sys.modules[f"hetero_la.{layer}"].__file__ or "").resolve().parents[1]
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import {layer}"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert f"ImportError: import this package as hetero_la.{layer}" in ended.stderr
