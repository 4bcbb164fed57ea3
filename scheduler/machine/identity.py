"""Identity of this machine: its hardware and the versions of its libraries."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from pathlib import Path
from typing import Any

from hetero_la.tiles.kernels.cpu.blas_threads import blas_libraries
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.kernels.gpu.device import gpu_descriptions

#: Entries of `machine_identity` that are hardware; the others are versions of libraries.
HARDWARE = ("cpu", "cores", "gpus")


@functools.cache
def machine_identity() -> dict[str, Any]:
    """Return hardware and library versions, which a profile has to match."""
    return {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "gpus": gpu_descriptions(),
        "blas": _blas_names(),
        "hetero-la": _version(),
    }


def _version() -> str:
    try:
        return importlib.metadata.version("hetero-la")
    except importlib.metadata.PackageNotFoundError:  # a copy that was not installed
        return ""


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return os.uname().machine


def _blas_names() -> list[str]:
    """Return the BLAS libraries of SciPy, whose functions the kernels call; else all loaded."""
    found = blas_libraries()
    own = [entry for entry in found if "scipy" in Path(entry["filepath"]).as_posix()]
    names = {
        f"{e['internal_api']} {e['version']} {e.get('architecture') or ''}".strip()
        for e in own or found
    }
    return sorted(names)
