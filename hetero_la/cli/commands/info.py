"""Command ``info``: shows this machine, and the defaults of a run on it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform

import hetero_la
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import available_memory, blas_libraries, usable_cores
from hetero_la.tiles.kernels.gpu.device import gpu_descriptions

_LIBRARIES = (
    "hetero-la", "numpy", "scipy", "dask", "distributed", "networkx", "threadpoolctl",
    "cupy-cuda12x", "cupy-cuda13x", "h5py", "zarr", "matplotlib",
)  # fmt: skip


def info(args: argparse.Namespace) -> int:
    """Print the result of `describe_machine`; return the exit status."""
    for section, entries in describe_machine().items():
        print(section)
        width = max((len(name) for name in entries), default=0)
        for name, value in entries.items():
            print(f"  {name.ljust(width)}  {value}")
    return 0


def describe_machine() -> dict[str, dict[str, str]]:
    """Return devices, memory, libraries, and the workers that a run has by default.

    Returns
    -------
    dict of str to dict of str to str
        Sections ``devices``, ``libraries`` and ``runs``, each with names and texts.

    Examples
    --------
    >>> from hetero_la.cli.commands.info import describe_machine
    >>> list(describe_machine())
    ['devices', 'libraries', 'runs']
    """
    devices = {
        "cpu cores": str(usable_cores()),
        "memory available": f"{available_memory() / 1e9:.1f} GB",
        "gpus": str(gpu_count()),
    }
    devices |= {f"gpu {i}": text for i, text in enumerate(gpu_descriptions())}
    libraries = {"python": platform.python_version()}
    libraries |= {name: _version(name) for name in _LIBRARIES}
    blas = [
        f"{found['internal_api']} {found['version']} ({found['num_threads']} threads)"
        for found in blas_libraries()
    ]
    libraries["BLAS"] = ", ".join(dict.fromkeys(blas)) or "unknown"
    profile = current_profile()
    with hetero_la.Cluster() as cluster:
        workers = ", ".join(str(name) for name in cluster.worker_spec)
    runs = {
        "workers by default": workers,
        "presets": ", ".join(hetero_la.available_presets()),
        "profile": f"measured {profile.measured}"
        if profile
        else "none: 'hetero-la probe' makes it",
    }
    return {"devices": devices, "libraries": libraries, "runs": runs}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
