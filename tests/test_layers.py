"""Imports run from room to room in the order of the design page; each library has its place."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

import hetero_la.scheduler
import hetero_la.studies
import hetero_la.tiles

TOP = ("hetero_la", "scheduler", "tiles")
CUPY = (
    "hetero_la.tiles.kernels.gpu.", "hetero_la.tiles.kernels.gpu_libraries.",
    "hetero_la.tiles.arrays.transfer", "hetero_la.bench.contenders",
    "hetero_la.studies.",
)  # fmt: skip
DASK = (
    "hetero_la.dask_arrays", "hetero_la.scheduler.cluster.", "hetero_la.scheduler.on_dask.",
    "hetero_la.scheduler.recovery.", "hetero_la.scheduler.probe.dask_latency",
    "hetero_la.studies.factorizations.",
)  # fmt: skip
#: Files, and functions that read them; any room may import these.
DATA = "hetero_la.configs"
#: Folders of the package that are elsewhere in a checkout.
LINKED = ("scheduler", "studies", "tiles", "configs")
DESIGN = Path(__file__).parents[1] / "docs" / "explanation" / "design.md"


def order() -> list[str]:
    """The rooms, each above all that it may import."""
    text = DESIGN.read_text(encoding="utf-8").split("```")[1]
    rooms = [line.split()[0].replace("/", ".") for line in text.strip().splitlines()]
    return [room if room.startswith("hetero_la") else f"hetero_la.{room}" for room in rooms]


def modules() -> Iterator[tuple[str, Path]]:
    """Every module by its full name; a linked or installed folder counts once."""
    folders = {
        "hetero_la": Path(importlib.import_module("hetero_la.io.files").__file__ or "").parents[1],
        "hetero_la.scheduler": Path(hetero_la.scheduler.__file__).resolve().parent,
        "hetero_la.studies": Path(hetero_la.studies.__file__ or "").resolve().parent,
        "hetero_la.tiles": Path(hetero_la.tiles.__file__).resolve().parent,
    }
    for package, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder).with_suffix("").parts
            if package != "hetero_la" or inner[0] not in LINKED:
                names = inner[:-1] if inner[-1] == "__init__" else inner
                yield ".".join((package, *names)), path


MODULES = dict(modules())
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}
ROOMS = order()


def room_of(module: str) -> str:
    """The room of a module; the package root holds `linalg`, and what patches libraries with it."""
    if module in ROOMS:
        return module
    return module if module in PACKAGES else module.rpartition(".")[0]


def imported(source: str, package: str) -> Iterator[str]:
    """Full names of what `source`, a module of `package`, imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def imports_of(name: str, source: str) -> list[str]:
    return list(imported(source, name if name in PACKAGES else name.rpartition(".")[0]))


def faults(name: str, source: str) -> list[str]:
    found = []
    for module in imports_of(name, source):
        root = module.split(".")[0]
        if root == "hetero_la" and not module.startswith(DATA):
            here, there = room_of(name), room_of(module)
            if ROOMS.index(there) < ROOMS.index(here):
                found.append(f"{name} imports {module}: {there} stands above {here}")
        if root in ("cupy", "cupyx", "cupy_backends") and not name.startswith(CUPY):
            found.append(f"{name} imports {module}: CuPy belongs in {CUPY}")
        if root in ("dask", "distributed") and not name.startswith(DASK):
            found.append(f"{name} imports {module}: Dask belongs in {DASK}")
        if root in ("scheduler", "tiles"):
            found.append(f"{name} imports {module} without hetero_la before it")
    return found


def test_rooms_are_those_of_the_design() -> None:
    assert len(ROOMS) == len(set(ROOMS))
    assert {room_of(name) for name in MODULES} - {"hetero_la.scheduler", "hetero_la.tiles"} == set(
        ROOMS
    )


@pytest.mark.skipif(not DESIGN.exists(), reason="looks at the whole checkout")
def test_all_packages_are_installed() -> None:
    listed = tomllib.loads((DESIGN.parents[2] / "pyproject.toml").read_text())["tool"][
        "setuptools"
    ]["packages"]
    assert sorted(listed) == sorted({*PACKAGES, "hetero_la.configs"})


def test_rooms_have_three_to_twelve_files() -> None:
    files: dict[str, int] = {}
    for name in MODULES.keys() - PACKAGES:
        room = name.rpartition(".")[0]
        files[room] = files.get(room, 0) + 1
    assert not files.keys() & {"hetero_la.scheduler", "hetero_la.tiles"}
    assert files.pop("hetero_la") == 2  # __main__ and linalg
    assert files.pop("hetero_la.studies") >= 1  # a catalogue, of which each file stands alone
    assert not {room: count for room, count in files.items() if not 3 <= count <= 12}


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    assert len(found) > 100
    assert not {name: files for name, files in found.items() if len(files) > 1}


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_downwards_and_libraries_keep_their_place(name: str) -> None:
    assert faults(name, MODULES[name].read_text(encoding="utf-8")) == []


def test_no_file_imports_another_in_a_circle() -> None:
    graph = networkx.DiGraph()
    for name, path in MODULES.items():
        for module in imports_of(name, path.read_text(encoding="utf-8")):
            if module in MODULES and module != name:
                graph.add_edge(name, module)
    assert list(networkx.simple_cycles(graph)) == []
    assert len(graph) > 150


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tiles.storage.shard", "from hetero_la.scheduler.graph.task_graph import TaskGraph"),
        ("tiles.storage.shard", "from hetero_la.scheduler.graph import task_graph"),
        ("tiles.storage.shard", "from ...scheduler.graph import task_graph"),
        ("tiles.kernels.cpu.device", "from ....scheduler.graph import task_graph"),
        ("scheduler.graph.task_graph", "from hetero_la.algorithms import lu"),
        ("scheduler.graph.task_graph", "def f():\n    import hetero_la.planning.options"),
        ("scheduler.graph.task_graph", "from hetero_la.scheduler.program import messages"),
        ("scheduler.graph.task_graph", "import distributed"),
        ("linalg", "from dask import array"),
        ("tiles.storage.shard", "import cupy as cp"),
        ("scheduler.run.runner", "importlib.import_module('cupy.cuda')"),
        ("planning.plan", "from scheduler.graph.task_graph import Task"),
        ("planning.plan", "from hetero_la import api"),
    ],
)
def test_a_fault_is_found(name: str, source: str) -> None:
    assert len(faults(f"hetero_la.{name}", source)) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tiles.kernels.gpu.device", "import cupy"),
        ("scheduler.cluster.cluster", "from distributed import SpecCluster"),
        ("planning.plan", "from hetero_la.tiles.storage import layout"),
        ("scheduler.graph.task_graph", "from hetero_la.tiles.storage.layout import TileLayout"),
        ("tiles.kernels.cpu.device", "from ..spec import SPECS\nfrom ...storage.layout import A"),
    ],
)
def test_no_fault_is_made_up(name: str, source: str) -> None:
    assert faults(f"hetero_la.{name}", source) == []


@pytest.mark.parametrize("layer", TOP[1:])
def test_a_bare_import_is_refused_in_one_sentence(layer: str) -> None:
    folder = Path(sys.modules[f"hetero_la.{layer}"].__file__ or "").resolve().parents[1]
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import {layer}"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert re.search(f"ImportError: import this package as hetero_la.{layer}", ended.stderr)
